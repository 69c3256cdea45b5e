"""Where jobs are stored: room in files, memory and connections, and what makes tables slow."""

from collections.abc import Iterator

from dibs.doctor.facts import Finding, Level, StoreFacts, note, ok, problem, warning
from dibs.text import numbered, spoken, spoken_size

NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"),
)
LITTLE_ROOM = 100_000_000  # bytes
BIG_FILE = 200_000_000  # bytes
LONG_LOG = 200_000_000  # bytes
NEARLY_FULL = 0.9
A_MINUTE, TEN_MINUTES = 60, 600
OLD_SLOT = 1_000_000  # transactions
MANY_DEAD = 100_000  # rows
BIG_TABLE = 200_000_000  # bytes
MUCH_PER_ROW = 20_000  # bytes


def file(examined: StoreFacts) -> Iterator[Finding]:
    path = examined.facts.get(("file", "path"))
    if path is None:
        return
    kind = examined.facts.get(("file", "file system")) or "unknown"
    if kind in NETWORK:
        yield problem(
            "file",
            f"{path} is on a network file system ({kind}): its locks can't be trusted and jobs may be lost",
            "move it to a local disk, or use a server",
        )
    if (room := examined.number("disk", "free bytes")) is not None and room < LITTLE_ROOM:
        yield warning("file", f"only {spoken_size(room)} are left on its disk", "make room")
    if (log := examined.number("file", "log bytes") or 0) >= LONG_LOG:
        sentence = f"its log has grown to {spoken_size(log)}: a transaction has been open for too long"
        yield warning("file", sentence, "find the program that leaves a transaction open")
    size = examined.number("file", "bytes") or 0
    free, pages = examined.number("pages", "free") or 0, examined.number("pages", "all") or 1
    if size >= BIG_FILE and free > pages / 2:
        yield note(
            "file",
            f"{path} takes {spoken_size(size)}, {free / pages:.0%} of it empty",
            "in a quiet hour: vacuum",
        )
    if kind not in NETWORK:
        yield ok("file", f"{path}, {spoken_size(size)}, on {kind}")


def memory(examined: StoreFacts) -> Iterator[Finding]:
    used, most = examined.number("memory", "used"), examined.number("memory", "most")
    if used is None:
        return
    yield from _eviction(examined, bounded=most is not None)
    if most is None:
        yield ok("memory", f"{spoken_size(used)} are used")
        return
    full = used >= NEARLY_FULL * most
    yield Finding(
        Level.warning if full else Level.ok,
        "memory",
        f"{spoken_size(used)} of {spoken_size(most)} are used"
        + (": a server that is full refuses new jobs" if full else ""),
        "raise maxmemory, or keep finished jobs for less long (keep_for)" if full else None,
    )


def _eviction(examined: StoreFacts, *, bounded: bool) -> Iterator[Finding]:
    policy = examined.facts.get(("setting", "maxmemory-policy"), "noeviction")
    if policy != "noeviction":
        yield Finding(
            Level.problem if bounded else Level.note,
            "memory",
            f"maxmemory-policy is {policy}: jobs are dropped "
            + ("when memory is full" if bounded else "once there is a maxmemory and it is full"),
            "config set maxmemory-policy noeviction, and the same in its redis.conf",
        )


def connections(examined: StoreFacts) -> Iterator[Finding]:
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


# -- What makes claims slow: transactions that are open for long, dead rows ----------------------


def held_back(examined: StoreFacts) -> Iterator[Finding]:
    """Yield what keeps dead rows from being removed."""
    found = [*_open_for_long(examined)]
    for name, value in examined.about("slot"):
        if (behind := float(value or 0)) >= OLD_SLOT:
            sentence = f"the replication slot {name} holds back dead rows of {behind:,.0f} transactions"
            found.append(warning("transactions", sentence, "let its standby catch up, or drop the slot"))
    if privilege := examined.facts.get(("unseen", "transactions")):
        sentence = f"transactions of others can't be seen without {privilege}"
        found.append(note("transactions", sentence, "grant it to the user of `dibs doctor`"))
    yield from found
    if examined.about("bytes") and not found:
        yield ok("transactions", "none is open for long")


def _open_for_long(examined: StoreFacts) -> Iterator[Finding]:
    ends = {
        "transaction": "end it: select pg_terminate_backend(pid)",
        "prepared": "commit prepared or rollback prepared it",
        "thread": "end it: kill, and its number",
    }
    for fact, advice in ends.items():
        for name, value in examined.about(fact):
            seconds = float(value or 0)
            if seconds >= A_MINUTE:
                yield Finding(
                    Level.warning if seconds >= TEN_MINUTES else Level.note,
                    "transactions",
                    f"{'prepared ' if fact == 'prepared' else ''}{name} has been open for {spoken(seconds)}: "
                    "dead rows can't be removed, which slows claims down",
                    advice,
                )


def tables(examined: StoreFacts) -> Iterator[Finding]:
    tables = [table for table, _ in examined.about("bytes")]
    found = [finding for table in tables for finding in _table(examined, table)]
    if examined.facts.get(("setting", "autovacuum")) == "off":
        sentence = "autovacuum is off: dead rows are never removed"
        found.append(warning("tables", sentence, "set autovacuum = on"))
    yield from found
    if tables and not found:
        size = sum(examined.number("bytes", table) or 0 for table in tables)
        dead = sum(float(value or 0) for _, value in examined.about("dead rows"))
        counted = f", {numbered(round(dead), 'dead row')}" if examined.about("dead rows") else ""
        yield ok("tables", f"{spoken_size(size)}{counted}")


def _table(examined: StoreFacts, table: str) -> Iterator[Finding]:
    live = examined.number("live rows", table) or 0
    dead = examined.number("dead rows", table) or 0
    size = examined.number("bytes", table) or 0
    vacuumed = examined.number("vacuumed", table)
    last = "never" if vacuumed is None else f"{spoken(vacuumed)} ago"
    if dead >= MANY_DEAD and dead > live:
        yield warning(
            "tables",
            f"{table} has {dead:,.0f} dead rows beside {live:,.0f} live, vacuumed {last}",
            f"end long transactions, then: vacuum {table}",
        )
    elif size >= BIG_TABLE and size > MUCH_PER_ROW * (live + dead + 1):
        yield note(
            "tables",
            f"{table} takes {spoken_size(size)} for {numbered(round(live), 'row')}",
            f"in a quiet hour: {'vacuum full' if examined.about('vacuumed') else 'optimize table'} {table}",
        )
