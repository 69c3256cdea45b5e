"""What `dibs work` was told: flags, then `$DIBS_WORK_…`, then `[tool.dibs.work]`, then the default."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from dibs.cli.config import table_in
from dibs.cli.options import bad_usage
from dibs.errors import BadRequest


class ToolDibsWork(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
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
            concurrency=_at_least_one(said, "concurrency", 10),
            processes=_at_least_one(said, "processes", 1),
            grace=said.get("grace", 10.0),
        )


def _given(**said: Any) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _at_least_one(said: Mapping[str, Any], name: str, default: int) -> int:
    value: int = said.get(name, default)
    if value < 1:
        raise BadRequest(f"{name}={value} must be at least 1")
    return value


def _from_pyproject(folder: Path) -> dict[str, Any]:
    file, table = table_in(folder)
    return _read(table.get("work", {}), f"tool.dibs.work in {file}", strict=True)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {
        name: text
        for name in ToolDibsWork.__struct_fields__
        if (text := environ.get(f"DIBS_WORK_{name.upper()}"))
    }
    if "queues" in said:
        said["queues"] = _names(said["queues"])
    return _read(said, "$DIBS_WORK_…", strict=False)


def _read(said: Any, where: str, *, strict: bool) -> dict[str, Any]:
    try:
        read: dict[str, Any] = msgspec.to_builtins(msgspec.convert(said, ToolDibsWork, strict=strict))
    except ValueError as error:
        raise BadRequest(f"can't use {where}: {error}") from None
    return read
