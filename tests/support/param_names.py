"""Names for parametrised tests that are the same in every test process."""

from __future__ import annotations

import re

_CHANGING = re.compile(r" at 0x[0-9a-f]+|UUID\('[^']*'\)|datetime\.datetime\([^)]*\)+")


def named(value: object) -> str:
    """What a value looks like, without its address, its id and its time."""
    return _CHANGING.sub("…", repr(value))[:80]
