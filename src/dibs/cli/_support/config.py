"""The settings of a command: flags, then `$DIBS_…`, then the nearest pyproject.toml, then the default."""

import os
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args, get_origin
from urllib.parse import quote, unquote

import msgspec
import typer

from dibs.app.dibs import Dibs, SyncDibs
from dibs.cli._support.options import bad_request_is_bad_usage, bad_usage
from dibs.errors import BadRequest, Refused
from dibs.jobs.payload import check_name
from dibs.settings import Settings, read_settings
from dibs.text import split_url, without_password

TYPE_NAMES: dict[Any, str] = {
    str: 'a text, like "this"',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: 'a list of names, like ["a", "b"]',
}


# -- the store ----------------------------------------------------------------------------------


class ToolDibs(msgspec.Struct, kw_only=True):
    """The settings in `[tool.dibs]`, sub-tables apart."""

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
    """Open the store of a command; `url` is the --url after the command's name."""
    store = Dibs(**given(context, url)).sync
    try:  # not `with store`: an opening that fails for want of tables leaves its connection open
        store.open()
        with bad_request_is_bad_usage():
            yield store
    finally:
        store.close()


@contextmanager
def look_at(context: typer.Context, url: str | None) -> Iterator[SyncDibs]:
    """Open the store of a command that only looks, and so must not make a file."""
    refuse_missing_file(context, url)
    with open_store(context, url) as store:
        yield store


def refuse_missing_file(context: typer.Context, url: str | None) -> None:
    """Refuse a SQLite file that is not there: its name may be a mistake."""
    named = settings_of(context, url).url
    if (file := file_of(named)) is not None and not file.exists():
        which = (
            f"no file {file}" if _is_named(context, url) else f"no file {file} here, and no store was named"
        )
        raise Refused(
            f"there is {which}: name the store by --url or $DIBS_URL, or make its file with `dibs migrate`"
        )


def _is_named(context: typer.Context, url: str | None) -> bool:
    return bool(given(context, url).get("url")) or _in_environment("url")


def file_of(url: str) -> Path | None:
    """Return the file of a SQLite URL; None for other stores."""
    if not url.startswith("sqlite"):
        return None
    path = unquote(split_url(url).path.removeprefix("/"))
    return Path(path) if path else None


def store_name(context: typer.Context, url: str | None) -> str:
    """Return the store for messages: a reader may have meant another one."""
    return without_password(settings_of(context, url).url)


def settings_of(context: typer.Context, url: str | None) -> Settings:
    return read_settings(given(context, url))


def given(context: typer.Context, url: str | None) -> dict[str, Any]:
    """Return the arguments for `Dibs`, without what it reads from the environment by itself."""
    said = {name: value for name, value in from_pyproject(Path.cwd()).items() if not _in_environment(name)}
    flag = url or context.obj
    return {**said, "url": flag} if flag else said


def from_pyproject(folder: Path) -> dict[str, Any]:
    """Return `[tool.dibs]` of the nearest pyproject.toml, from this folder upwards."""
    file, table = _find_table(folder)
    if file is None:
        return {}
    values = {name: value for name, value in table.items() if not isinstance(value, dict)}
    said = _read(values, ToolDibs, lambda name: f"{file}: tool.dibs.{name}")
    return {**said, "url": _anchored(said["url"], file.parent)} if "url" in said else said


def _find_table(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    file = next((file for up in (folder, *folder.parents) if (file := up / "pyproject.toml").is_file()), None)
    if file is None:
        return None, {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("dibs", {})
        return file, dict(table)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BadRequest(f"can't use tool.dibs in {file}: {error}") from None


def _anchored(url: str, folder: Path) -> str:
    """Return the URL with a relative SQLite file beside the pyproject.toml, from wherever we are called."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not path or path.startswith("/"):
        return url
    return f"{scheme}:///{quote(str(folder))}/{path}"


def _in_environment(name: str) -> bool:
    return bool(os.environ.get(f"DIBS_{name.upper()}"))


# -- dibs work ----------------------------------------------------------------------------------


class ToolDibsWork(msgspec.Struct, kw_only=True):
    """The settings in `[tool.dibs.work]`, and in `$DIBS_WORK_APP`, `$DIBS_WORK_QUEUES` … as text."""

    app: str | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    processes: int | None = None
    grace: float | None = None
    imports: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """The options of `dibs work`, wherever they came from."""

    target: str
    queues: list[str] | None
    concurrency: int = 10
    processes: int = 1
    grace: float = 10.0
    imports: list[str] | None = None

    @classmethod
    def chosen(
        cls,
        target: str | None,
        queues: str | None,
        concurrency: int | None,
        processes: int | None,
        grace: float | None,
        imports: str | None = None,
    ) -> Self:
        flags: dict[str, Any] = {"app": target, "queues": _queue_names(queues), "concurrency": concurrency}
        flags |= {"processes": processes, "grace": grace}
        flags["imports"] = None if imports is None else _several(imports)
        said = {
            **_work_from_pyproject(Path.cwd()),
            **_work_from_environment(os.environ),
            **{name: value for name, value in flags.items() if value is not None},
        }
        target, queues_said = said.pop("app", None), said.pop("queues", None)
        if target is None:
            bad_usage("which app? write dibs work MODULE:APP, like jobs:app, or set tool.dibs.work.app")
        if queues_said == []:
            bad_usage("--queues names no queue: write --queues a,b, or leave it out to work on all")
        return cls(target=target, queues=queues_said, **said)


def _several(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _queue_names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    with bad_request_is_bad_usage():
        return [check_name(name, "queue") for name in _several(text)]


def _work_from_pyproject(folder: Path) -> dict[str, Any]:
    file, table = _find_table(folder)
    work = table.get("work", {})
    if not isinstance(work, dict):
        raise BadRequest(f"{file}: tool.dibs.work={work!r} is not a table: write [tool.dibs.work]")
    return _checked(work, lambda name: f"{file}: tool.dibs.work.{name}")


def _work_from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    said = {
        field.name: _from_text(text, field.type, _variable(field.name))
        for field in msgspec.structs.fields(ToolDibsWork)
        if (text := environ.get(_variable(field.name)[1:]))
    }
    return _checked(said, _variable)


def _variable(name: str) -> str:
    return f"$DIBS_WORK_{name.upper()}"


def _checked(said: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    checked = _read(said, ToolDibsWork, name)
    for each in ("concurrency", "processes"):
        if checked.get(each, 1) < 1:
            raise BadRequest(f"{name(each)}={checked[each]} must be at least 1")
    if not 0 <= checked.get("grace", 0) < float("inf"):
        raise BadRequest(f"{name('grace')}={checked['grace']} must be 0 seconds or more")
    if checked.get("queues") == []:
        raise BadRequest(f"{name('queues')} names no queue: leave it out to work on all")
    return checked


# -- values of files and variables --------------------------------------------------------------


def _read(said: Mapping[str, Any], shape: type[msgspec.Struct], name: Callable[[str], str]) -> dict[str, Any]:
    """Return each value as the type that the shape has for it; `name` is how messages call a field."""
    hints = {field.name: field.type for field in msgspec.structs.fields(shape)}
    if unknown := next((each for each in said if each not in hints), None):
        raise BadRequest(f"{name(unknown)} is unknown: the settings here are {', '.join(hints)}")
    return {each: _converted(value, hints[each], name(each)) for each, value in said.items()}


def _from_text(text: str, wanted: Any, name: str) -> Any:
    """Return the value of a variable: a number has no type there, and a list has commas."""
    if _base_type(wanted) is list:
        return _several(text)
    return _converted(text, wanted, name, strict=False)


def _converted(value: Any, wanted: Any, name: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError:
        raise BadRequest(f"{name}={value!r} is not {TYPE_NAMES[_base_type(wanted)]}") from None


def _base_type(wanted: Any) -> Any:
    """Return `list` for `list[str] | None`."""
    if isinstance(wanted, types.UnionType):
        wanted = next(each for each in get_args(wanted) if each is not type(None))
    return get_origin(wanted) or wanted
