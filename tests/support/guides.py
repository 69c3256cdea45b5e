"""A guide that shows a project file by file: write these files as its reader would."""

from __future__ import annotations

import re
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
FILE = re.compile(r"^```python\n# ([\w/]+\.py)\n((?:.*\n)*?)```", re.MULTILINE)


def write_project(guide: str, folder: Path) -> list[str]:
    """The names of the files that this guide has."""
    files = FILE.findall((GUIDES / guide).read_text())
    for name, code in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    return [name for name, _ in files]
