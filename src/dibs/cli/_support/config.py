"""Which store a command means: flags, then `$DIBS_…`, then the nearest pyproject.toml, then the default."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import typer

from dibs.app.dibs import Dibs
from dibs.app.sync import SyncDibs
from dibs.cli._support.options import blaming_who_typed
from dibs.cli._support.printing import without_password
from dibs.cli._support.values import read
from dibs.errors import BadRequest
from dibs.settings import Settings, read_settings


class ToolDibs(msgspec.Struct, kw_only=True):
    """What `[tool.dibs]` may say; sub-tables are left to those who know them."""

    url: str | None = None
    prefix: str | None = None
    pool_size: int | None = None
    poll: float | None = None
    stale_after: float | None = None
    keep: str | None = None
    keep_for: float | None = None
    max_payload: int | None = None
    listen_url: str | None = None
    pooled: bool | None = None


@contextmanager
def open_store(context: typer.Context, url: str | None) -> Iterator[SyncDibs]:
    """The store that is meant, open; `url` is what was said after the command."""
    store = Dibs(**given(context, url)).sync
    try:  # not `with store`: an opening that fails for want of tables leaves its connection open
        store.open()
        with blaming_who_typed():
            yield store
    finally:
        store.close()


def store_name(context: typer.Context, url: str | None) -> str:
    """The store that is meant, for people: who finds nothing there may have meant another one."""
    return without_password(settings_of(context, url).url)


def settings_of(context: typer.Context, url: str | None) -> Settings:
    return read_settings(given(context, url))


def given(context: typer.Context, url: str | None) -> dict[str, Any]:
    """What `Dibs` is to be told; what the environment says is left for it to read."""
    said = {name: value for name, value in from_pyproject(Path.cwd()).items() if not _in_environment(name)}
    flag = url or context.obj
    return {**said, "url": flag} if flag else said


def from_pyproject(folder: Path) -> dict[str, Any]:
    """`[tool.dibs]` of the nearest pyproject.toml, from this folder upwards."""
    file, table = table_in(folder)
    if file is None:
        return {}
    values = {name: value for name, value in table.items() if not isinstance(value, dict)}
    said = read(values, ToolDibs, lambda name: f"{file}: tool.dibs.{name}")
    return {**said, "url": _anchored(said["url"], file.parent)} if "url" in said else said


def table_in(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The nearest pyproject.toml, from this folder upwards, and what it says under `[tool.dibs]`."""
    file = next((file for up in (folder, *folder.parents) if (file := up / "pyproject.toml").is_file()), None)
    if file is None:
        return None, {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("dibs", {})
        return file, dict(table)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _unusable(file, error) from None


def _unusable(file: Path, error: Exception) -> BadRequest:
    return BadRequest(f"can't use tool.dibs in {file}: {error}")


def _anchored(url: str, folder: Path) -> str:
    """A relative SQLite file lies beside the pyproject.toml, wherever in the project we are."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not path or path.startswith("/"):
        return url
    return f"{scheme}:///{quote(str(folder))}/{path}"


def _in_environment(name: str) -> bool:
    return bool(os.environ.get(f"DIBS_{name.upper()}"))
