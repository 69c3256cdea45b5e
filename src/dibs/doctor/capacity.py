"""Where the jobs lie, and how much room is left there: files, memory, connections."""

from collections.abc import Iterator

from dibs.doctor.facts import Examined, Finding, Level
from dibs.text import spoken_size

NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"),
)
LITTLE_ROOM = 100_000_000  # bytes
BIG_FILE = 200_000_000  # bytes
LONG_LOG = 200_000_000  # bytes


def file(examined: Examined) -> Iterator[Finding]:
    path = examined.facts.get(("file", "path"))
    if path is None:
        return
    kind = examined.facts.get(("file", "file system")) or "unknown"
    if kind in NETWORK:
        yield Finding(
            Level.problem,
            "file",
            f"{path} lies on a network file system ({kind}): its locks can't be trusted and jobs may be lost",
            "move it to a local disk, or use a server",
        )
    yield from _room(examined)
    size, free, pages = (
        examined.number("file", "bytes") or 0,
        examined.number("pages", "free") or 0,
        examined.number("pages", "all") or 1,
    )
    if size >= BIG_FILE and free > pages / 2:
        yield Finding(
            Level.note,
            "file",
            f"{path} takes {spoken_size(size)}, {free / pages:.0%} of it empty",
            "in a quiet hour: vacuum",
        )
    if kind not in NETWORK:
        yield Finding(Level.ok, "file", f"{path}, {spoken_size(size)}, on {kind}")


def _room(examined: Examined) -> Iterator[Finding]:
    free, log = examined.number("disk", "free bytes"), examined.number("file", "log bytes") or 0
    if free is not None and free < LITTLE_ROOM:
        yield Finding(Level.warning, "file", f"only {spoken_size(free)} are left on its disk", "make room")
    if log >= LONG_LOG:
        yield Finding(
            Level.warning,
            "file",
            f"its log has grown to {spoken_size(log)}: somebody has been reading for too long",
            "look for a program that leaves a transaction open",
        )


NEARLY_FULL = 0.9


def memory(examined: Examined) -> Iterator[Finding]:
    used, most = examined.number("memory", "used"), examined.number("memory", "most")
    if used is None:
        return
    yield from _eviction(examined, bounded=most is not None)
    if most is None:
        yield Finding(Level.ok, "memory", f"{spoken_size(used)} are used")
        return
    full = used >= NEARLY_FULL * most
    yield Finding(
        Level.warning if full else Level.ok,
        "memory",
        f"{spoken_size(used)} of {spoken_size(most)} are used"
        + (": a server that is full refuses new jobs" if full else ""),
        "raise maxmemory, or keep finished jobs for less long (keep_for)" if full else None,
    )


def _eviction(examined: Examined, *, bounded: bool) -> Iterator[Finding]:
    policy = examined.facts.get(("setting", "maxmemory-policy"), "noeviction")
    if policy != "noeviction":
        yield Finding(
            Level.problem if bounded else Level.note,
            "memory",
            f"maxmemory-policy is {policy}: jobs are dropped "
            + ("when memory is full" if bounded else "once there is a maxmemory and it is full"),
            "config set maxmemory-policy noeviction, and the same in its redis.conf",
        )


def connections(examined: Examined) -> Iterator[Finding]:
    used, most = examined.number("connections", "used"), examined.number("connections", "most")
    if used is None or most is None:
        return
    crowded = used >= NEARLY_FULL * most
    yield Finding(
        Level.warning if crowded else Level.ok,
        "connections",
        f"{used:.0f} of {most:.0f} in use",
        "raise the server's limit, lower pool_size, or put a pooler in between" if crowded else None,
    )
