"""What the machine says about the file that a store lives in; facts for the doctor, no opinion."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dibs.operations.scripts import Row

MOUNTS = Path("/proc/self/mounts")


def about_file(file: str) -> Iterator[Row]:
    """Where it is, on which kind of file system, how big it and its log are, and what room is left."""
    yield _fact("file", "path", file)
    with suppress(OSError):
        yield _fact("file", "bytes", Path(file).stat().st_size)
        yield _fact("disk", "free bytes", shutil.disk_usage(Path(file).parent).free)
    with suppress(OSError):
        yield _fact("file", "log bytes", Path(f"{file}-wal").stat().st_size)
    with suppress(OSError):
        yield _fact("file", "file system", file_system(file, MOUNTS.read_text(encoding="utf-8")))


def about_nothing_kept() -> Iterator[Row]:
    """The store is in memory, whatever its engine is."""
    yield _fact("kept", "jobs", "nowhere")


def file_system(file: str, mounts: str) -> str:
    """The kind of the file system that a file is on, from the system's table of mounts."""
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
