"""What the system knows of a SQLite file: facts for the doctor, and which process has it locked."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dibs.errors import StoreBusy
from dibs.operations.scripts import Row
from dibs.text import spoken

MOUNTS = Path("/proc/self/mounts")
LOCKS = Path("/proc/locks")  # Linux; opening the file to ask for its locks would drop our own ones
WRITER = (120, 120)  # the bytes of the `-shm` file that the writer of a WAL database locks


def about_file(file: str) -> Iterator[Row]:
    """Yield the file's path, file system and size, the size of its log, and the free space."""
    yield _fact("file", "path", file)
    with suppress(OSError):
        yield _fact("file", "bytes", Path(file).stat().st_size)
        yield _fact("disk", "free bytes", shutil.disk_usage(Path(file).parent).free)
    with suppress(OSError):
        yield _fact("file", "log bytes", Path(f"{file}-wal").stat().st_size)
    with suppress(OSError):
        yield _fact("file", "file system", file_system(file, MOUNTS.read_text(encoding="utf-8")))


def about_nothing_kept() -> Iterator[Row]:
    """Yield that the store is in memory."""
    yield _fact("kept", "jobs", "nowhere")


def file_system(file: str, mounts: str) -> str:
    """Return the kind of a file's file system, from the system's table of mounts."""
    path, best, kind = os.path.realpath(file), "", "unknown"
    for line in mounts.splitlines():
        _, place, sort, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, sort
    return kind


def _fact(fact: str, about: str, value: object) -> Row:
    return {"fact": fact, "about": about, "value": str(value)}


def locked_file(path: str, question: str | None, waited: float) -> StoreBusy:
    """Return the error for a file that another connection has written to for too long."""
    what = f"`{question}`" if question else "dibs"
    return StoreBusy(
        f"SQLite file {path} is locked: {what} has waited {spoken(waited)} for a lock that "
        f"{_holder(path)} holds, and has changed nothing; it is writing, or was stopped in the middle of a "
        f"write (state T in `ps`): end it or let it go on, then try again"
    )


def _holder(path: str) -> str:
    if (pid := writer_of(path)) is None:
        return f"another process (`fuser -v {path}` lists the ones that have it open)"
    if pid == os.getpid():
        return f"another connection of this process, {pid},"
    return f"process {pid}"


def writer_of(path: str) -> int | None:
    """Return the process that has the file locked for writing, where the system shows it."""
    with suppress(OSError, ValueError):
        inode = Path(f"{path}-shm").stat().st_ino
        for line in LOCKS.read_text().splitlines():
            words = line.split()  # 1: POSIX ADVISORY WRITE 4711 08:01:131 120 120
            is_its = "WRITE" in words and words[-3].split(":")[-1] == str(inode)
            if is_its and (int(words[-2]), int(words[-1])) == WRITER:
                return int(words[-4])
    return None
