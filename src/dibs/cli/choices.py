"""What `dibs work` was told: flags, then `$DIBS_WORK_…`, then `[tool.dibs.work]`, then the default."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from dibs.cli.config import table_in
from dibs.cli.options import bad_usage, blaming_who_typed
from dibs.cli.reading import from_text, read
from dibs.errors import BadRequest
from dibs.payload import check_name


class ToolDibsWork(msgspec.Struct, kw_only=True):
    """What `[tool.dibs.work]` may say, and `$DIBS_WORK_APP`, `$DIBS_WORK_QUEUES` … as text."""

    app: str | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    processes: int | None = None
    grace: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """One worker's options, settled."""

    target: str
    queues: list[str] | None
    concurrency: int
    processes: int
    grace: float

    @classmethod
    def made(
        cls,
        target: str | None,
        queues: str | None,
        concurrency: int | None,
        processes: int | None,
        grace: float | None,
    ) -> Self:
        said = {
            **_from_pyproject(Path.cwd()),
            **_from_environment(os.environ),
            **_given(app=target, queues=_names(queues), concurrency=concurrency),
            **_given(processes=processes, grace=grace),
        }
        if said.get("app") is None:
            bad_usage("which app? write dibs work MODULE:APP, like jobs:app, or set tool.dibs.work.app")
        if said.get("queues") == []:
            bad_usage("--queues names no queue: write --queues a,b, or leave it out to work on all")
        return cls(
            target=said["app"],
            queues=said.get("queues"),
            concurrency=said.get("concurrency", 10),
            processes=said.get("processes", 1),
            grace=said.get("grace", 10.0),
        )


def _given(**said: Any) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    with blaming_who_typed():
        return [check_name(name.strip(), "queue") for name in text.split(",") if name.strip()]


def _from_pyproject(folder: Path) -> dict[str, Any]:
    file, table = table_in(folder)
    work = table.get("work", {})
    if not isinstance(work, dict):
        raise BadRequest(f"{file}: tool.dibs.work={work!r} is not a table: write [tool.dibs.work]")
    return _checked(work, lambda name: f"{file}: tool.dibs.work.{name}")


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    said = {
        field.name: from_text(text, field.type, _variable(field.name))
        for field in msgspec.structs.fields(ToolDibsWork)
        if (text := environ.get(_variable(field.name)[1:]))
    }
    return _checked(said, _variable)


def _variable(name: str) -> str:
    return f"$DIBS_WORK_{name.upper()}"


def _checked(said: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    checked = read(said, ToolDibsWork, name)
    for each in ("concurrency", "processes"):
        if checked.get(each, 1) < 1:
            raise BadRequest(f"{name(each)}={checked[each]} must be at least 1")
    if not 0 <= checked.get("grace", 0) < float("inf"):
        raise BadRequest(f"{name('grace')}={checked['grace']} must be 0 seconds or more")
    if checked.get("queues") == []:
        raise BadRequest(f"{name('queues')} names no queue: leave it out to work on all")
    return checked
