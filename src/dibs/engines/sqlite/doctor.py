"""Facts about the file of a SQLite store, for the doctor."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dibs.operations.scripts import Row

MOUNTS = Path("/proc/self/mounts")


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
