"""An empty folder to run commands in, and the store they find there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs import Dibs, SyncDibs


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder without settings of the machine."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("DIBS_", "FORCE_COLOR", "NO_COLOR"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def store(empty_folder: None) -> Iterator[SyncDibs]:
    """Return the store that commands use without --url."""
    with Dibs().sync as store:
        yield store
