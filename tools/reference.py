"""Draw the reference from the code: `python -m tools.reference FOLDER`.

A page per part of the Python API, and one each for HTTP and for metrics and log lines. A class shows its
signature, docstring, fields and public methods; what a field means is the comment behind it, or the string
below it. A docstring's example stands behind `Example:`.
"""

import ast
import asyncio
import dataclasses
import enum
import inspect
import logging
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_overloads

import msgspec
from fastapi import FastAPI

import dibs
import dibs.dashboard
import dibs.integrations.fastapi
import dibs.outbox
import dibs.tables
import dibs.testing
from dibs.app.collections import Pipelines, Schedules, Slots, Trains
from dibs.integrations.prometheus import JobMetrics, RelayMetrics
from dibs.jobs.options import Options, Using
from dibs.log_format import LEVELS, SIGNS
from dibs.settings import Settings

COLLECTED = ("Train", "Pipeline", "Branch", "NewPipeline", "SyncNewPipeline", "ScheduleInfo")

METRICS = (
    "`GET /metrics` of `dibs serve`, and of a worker or a relay with `--health-port`, has these metrics."
)
LOG_LINES = """\
Each event of a job is a line of the logger `dibs`; with `--log-json` an object with `event`, `job`,
`kind`, `queue`, `attempt`, `worker`, `duration_ms`, `retry_in_s` and `error`, as far as they apply. Lines of
the level DONE are shown on a terminal or with `--log-jobs`, lines of DEBUG with `-v`."""


class Page(NamedTuple):
    """A page of the reference: its file, its heading, and what it shows by name."""

    file: str
    heading: str
    shown: dict[str, Any]


def pages() -> list[Page]:
    """Return the pages; every public name of dibs is on one of them."""
    public = {name: getattr(dibs, name) for name in dibs.__all__}

    def of(*names: str) -> dict[str, Any]:
        return {name: public[name] for name in names if name in public}

    errors = {
        name: one for name, one in public.items() if isinstance(one, type) and issubclass(one, Exception)
    }
    options = {"Options of @app.job": Options, "Options of using(…)": Using}
    outcomes = of("Snooze", "Cancel", "Fail")
    collections = {
        "app.trains": Trains,
        "app.slots": Slots,
        "app.pipelines": Pipelines,
        "app.schedules": Schedules,
    }
    return [
        Page("app.md", "Dibs, the app", of("Dibs", "SyncDibs") | {"Settings": Settings}),
        Page("tasks.md", "Tasks and new jobs", of("Task", "SyncTask", "NewJob", "Retry") | options),
        Page("jobs.md", "Jobs", of("Job", "JobState", "JobError", "JobEvent", "Change", "Refusal")),
        Page("handlers.md", "Handlers", of("Context", "SyncContext") | outcomes),
        Page("claims.md", "Claims", of("Claim", "SyncClaim")),
        Page("worker.md", "Worker", of("Worker", "WorkerInfo")),
        Page("collections.md", "Trains, slots, pipelines, schedules", collections | of(*COLLECTED)),
        Page("errors.md", "Errors", {name: one for name, one in errors.items() if name not in outcomes}),
        Page("tables.md", "dibs.tables", _public(dibs.tables)),
        Page("outbox.md", "dibs.outbox", _public(dibs.outbox)),
        Page("testing.md", "dibs.testing", _public(dibs.testing)),
        Page("web.md", "FastAPI and the page", _public(dibs.integrations.fastapi) | _public(dibs.dashboard)),
    ]  # fmt: skip


def all_pages() -> list[Page]:
    """Return the pages, and one with the public names that none of them has."""
    made = pages()
    placed = {name for page in made for name in page.shown}
    rest = {name: getattr(dibs, name) for name in dibs.__all__ if name not in placed}
    return [*made, Page("values.md", "Other values", rest)]


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def write_pages(folder: Path) -> list[Path]:
    """Write the pages into a folder; return their paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    texts = {page.file: drawn(page) for page in all_pages()}
    for file, text in {**texts, "http.md": http_page(), "signals.md": signals_page()}.items():
        paths.append(folder / file)
        paths[-1].write_text(text)
    return paths


def drawn(page: Page) -> str:
    """Return the text of a page."""
    sections = [section(name, one) for name, one in page.shown.items()]
    return "\n\n".join([f"# {page.heading}", *sections, ""])


# -- Sections -----------------------------------------------------------------------------------


def section(name: str, shown: Any) -> str:
    """Return the section of a class or function: signature, docstring, fields, methods."""
    parts = [f"## `{name}`", prose(shown)]
    if isinstance(shown, FunctionType):
        parts.insert(1, signature(name, shown))
    elif isinstance(shown, enum.EnumType):
        parts.append(_table(("value", ""), [(f"`{one.value}`", comment(shown, one.name)) for one in shown]))
    elif shown is Settings:
        parts.append(_settings())
    elif not issubclass(shown, Exception) or name in ("Snooze", "Cancel", "Fail"):
        parts += _class(name, shown)
    return "\n\n".join(part for part in parts if part)


def _class(name: str, shown: Any) -> Iterator[str]:
    fields = list(_fields(shown))
    if fields:
        yield _table(("field", "type", "default", ""), fields)
    elif "__init__" in vars(shown) and not name.startswith(("app.", "Sync", "Claim", "Context", "Task")):
        yield signature(name, shown)
    if name.startswith("Sync"):
        yield f"It has the methods of `{name.removeprefix('Sync')}`, and they block."
        return
    for method, function in _methods(shown):
        yield "\n\n".join([f"### `{method}`", _called(shown, method, function), prose(function)])


def _called(shown: Any, name: str, function: Any) -> str:
    if inspect.isfunction(inspect.getattr_static(shown, name)):
        return signature(name, function)
    return f"```python\n{name}: {_type(inspect.signature(function).return_annotation)}\n```"


def _methods(shown: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that have a docstring, in the order of the code."""
    seen: set[str] = set()
    for owner in shown.__mro__:
        if owner.__module__.partition(".")[0] != "dibs":
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            own = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(shown, name)
            if callable(own) and not isinstance(own, type) and own.__doc__:
                yield name, own


def _fields(shown: Any) -> Iterator[tuple[str, str, str, str]]:
    if isinstance(shown, type) and issubclass(shown, msgspec.Struct):
        for one in msgspec.structs.fields(shown):
            yield _field(shown, one.name, one.type, one.default, required=one.required)
    elif dataclasses.is_dataclass(shown):
        for field in dataclasses.fields(shown):
            if not field.name.startswith("_"):
                required = field.default is field.default_factory is dataclasses.MISSING
                yield _field(shown, field.name, field.type, field.default, required=required)
    elif hasattr(shown, "__total__") or hasattr(shown, "_fields"):
        for name, kind in inspect.get_annotations(shown, eval_str=True).items():
            yield _field(shown, name, kind, None, required=True)


def _field(shown: Any, name: str, kind: Any, default: Any, *, required: bool) -> tuple[str, str, str, str]:
    plain = default is None or isinstance(default, str | int | float | bool)
    told = f"`{default!r}`" if not required and plain else ""
    return f"`{name}`", f"`{_type(kind)}`", told, comment(shown, name)


def _settings() -> str:
    rows = []
    for one in dataclasses.fields(Settings):
        code = (one.name, f"$DIBS_{one.name.upper()}", _type(one.type), one.default)
        rows.append((*(f"`{part}`" for part in code), comment(Settings, one.name)))
    return _table(("setting", "variable", "type", "default", ""), rows)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in [" | ".join(head), "|".join("-" * len(head)), *lines])


# -- HTTP, metrics, log lines -------------------------------------------------------------------


def http_page() -> str:
    """Return the routes, what they take and what they return, from their OpenAPI document."""
    web = FastAPI()
    web.include_router(dibs.integrations.fastapi.router(dibs.Dibs("memory://"), insecure=True))
    told = web.openapi()
    found = [
        (f"{method.upper()} {path}", one)
        for path, every in told["paths"].items()
        for method, one in every.items()
    ]
    common = set.intersection(*({code for code in one["responses"] if code > "3"} for _, one in found))
    refusals = _table(
        ("code", "of every route"),
        [(code, found[0][1]["responses"][code]["description"]) for code in sorted(common)],
    )
    routes = (_route(name, one, common) for name, one in found)
    models = (_model(name, one) for name, one in told["components"]["schemas"].items())
    opening = (
        "The routes of `dibs serve`, and of `router(app, …)` in your app; for machines at `/openapi.json`."
    )
    return "\n\n".join(["# HTTP", opening, refusals, *routes, "## What they take and return", *models, ""])


def _route(name: str, one: dict[str, Any], common: set[str]) -> str:
    rows = [
        (f"`{given['name']}`", given["in"], _json_type(given["schema"]), given.get("description", ""))
        for given in one.get("parameters", ())
        if given["in"] != "path"
    ]
    parts = [f"## `{name}`", f"{one['summary']}.", one.get("description", "")]
    if rows:
        parts.append(_table(("parameter", "in", "type", ""), rows))
    if body := _content(one.get("requestBody", {})):
        parts.append(f"Takes {_json_type(body)}.")
    for code, answer in one["responses"].items():
        if code.startswith("2"):
            body = _content(answer)
            parts.append(f"Returns {code}{f': {_json_type(body)}' if body else ''}.")
        elif code not in common:
            parts.append(f"{code}: {answer['description']}.")
    return "\n\n".join(part for part in parts if part)


def _content(told: dict[str, Any]) -> dict[str, Any]:
    for kind, one in told.get("content", {}).items():
        return one.get("schema") or {"type": kind}
    return {}


def _model(name: str, one: dict[str, Any]) -> str:
    rows = [
        (f"`{field}`", _json_type(kind), kind.get("description", ""))
        for field, kind in one.get("properties", {}).items()
    ]
    values = ", ".join(f"`{value}`" for value in one.get("enum", ()))
    parts = [f"### {name}", one.get("description", ""), values]
    return "\n\n".join(part for part in [*parts, _table(("field", "type", ""), rows) if rows else ""] if part)


def _json_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if many := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_json_type(one) for one in many)
    if schema.get("type") == "array":
        return f"list of {_json_type(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return f"`{schema.get('format') or schema.get('type') or schema.get('const', 'any JSON')}`"


def signals_page() -> str:
    """Return the metrics for Prometheus, and the events of the log, with their levels."""
    jobs = asyncio.run(JobMetrics(dibs.Dibs("memory://")).text())
    relay = "\n".join(RelayMetrics(dibs.outbox.Outbox("sqlite:///none.db"))._process_lines())
    found = re.findall(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\w+)$", f"{jobs}{relay}", re.MULTILINE)
    metrics = [(f"`{name}`", kind, told) for name, told, kind in found]
    events = [(f"`{name}`", SIGNS[name], logging.getLevelName(level)) for name, level in LEVELS.items()]
    parts = ["# Metrics and log lines", METRICS, _table(("metric", "type", ""), metrics), LOG_LINES]
    return "\n\n".join([*parts, _table(("event", "sign", "level"), events), ""])


# -- What stands in the code --------------------------------------------------------------------


def signature(name: str, function: Any) -> str:
    """Return a signature as code, one argument to a line when it is long; the fullest of several."""
    every = [inspect.signature(one) for one in (*get_overloads(function), function)]
    told = max(every, key=lambda one: len(one.parameters))
    given = [_parameter(one) for one in told.parameters.values() if one.name != "self"]
    kinds = [one.kind for one in told.parameters.values() if one.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    word = (
        "" if inspect.isclass(function) else "async def " if inspect.iscoroutinefunction(function) else "def "
    )
    result = "" if inspect.isclass(function) else f" -> {_type(told.return_annotation)}"
    line = f"{word}{name}({', '.join(given)}){result}"
    if len(line) > 90:
        line = f"{word}{name}(\n    {f',{chr(10)}    '.join(given)},\n){result}"
    return f"```python\n{line}\n```"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {_type(one.annotation)}"
    default = "" if one.default is one.empty else f" = {one.default!r}" if kind else f"={one.default!r}"
    return f"{stars}{one.name}{kind}{default}"


def prose(shown: Any) -> str:
    """Return the docstring as Markdown; what is behind `Example:` as code."""
    told, code = _told(shown)
    return f"{told}\n\n```python\n{code}\n```" if code else told


def example(shown: Any) -> str | None:
    """Return the code of the example in a docstring, if there is one."""
    return _told(shown)[1]


def _told(shown: Any) -> tuple[str, str | None]:
    told, _, code = (inspect.getdoc(shown) or "").partition("Example: `")
    return told.strip(), code.rstrip().removesuffix("`") or None


def comment(shown: Any, name: str) -> str:
    """Return what the code says of a field: the comment behind it, or the string below it."""
    return _comments(shown).get(name, "")


@cache
def _comments(shown: Any) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(shown))
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in pairwise([*definition.body, ast.Pass()]):
        target = getattr(statement, "target", None) or (getattr(statement, "targets", None) or [None])[0]
        if isinstance(target, ast.Name):
            line = source.splitlines()[(statement.end_lineno or 1) - 1]
            found[target.id] = _string(after) or line[statement.end_col_offset :].partition("#")[2].strip()
    return found


def _string(statement: ast.stmt) -> str | None:
    value = getattr(statement, "value", None)
    is_text = isinstance(statement, ast.Expr) and isinstance(value, ast.Constant)
    return " ".join(inspect.cleandoc(str(value.value)).split()) if is_text else None


_SPELT = {
    "NoneType": "None",
    "int | float | timedelta": "Duration",
    "~": "",
    "*<class 'Using'>": "Unpack[Using]",
}


def _type(kind: Any) -> str:
    """Return an annotation as it is written, without the modules of its names."""
    told = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    told = re.sub(r"\b(?:[a-z_]\w*\.)+([A-Za-z])", r"\1", told)
    told = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", told)
    told = re.sub(r"Optional\[(Literal\[.*?\])\]", r"\1 | None", told)
    for long, short in _SPELT.items():
        told = told.replace(long, short)
    return told


if __name__ == "__main__":
    print(*write_pages(Path(sys.argv[1])), sep="\n")
