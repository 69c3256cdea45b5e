"""Options and arguments that several commands share, and how their text is read."""

import importlib
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import typer

from dibs.cli._support.printing import complain
from dibs.errors import BadRequest, DibsError
from dibs.jobs.ids import parse_id
from dibs.jobs.options import slot_from_text
from dibs.jobs.search import parse_search
from dibs.jobs.states import JobState
from dibs.text import without_password

T = TypeVar("T")

MOST_LISTED = 1000
OURS = str(Path(__file__).parents[2])  # the folder of dibs
PAGE_LIMIT = 50


def bad_usage(line: str) -> NoReturn:
    """Print what is wrong with the command as typed, and end with exit code 2."""
    complain(line)
    raise typer.Exit(2)


UsageError: Any = typer.BadParameter.__base__  # of click, or of typer's own copy of it
_PLAIN_WORDS = (
    (re.compile(r"is not a valid int(eger)?( range)?\.?$"), "is not a whole number"),
    (re.compile(r"is not a valid float( range)?\.?$"), "is not a number"),
    (re.compile(r"Input should be a valid integer.*"), "it must be a whole number"),
    (re.compile(r"Input should be "), "it must be "),
    (re.compile(r"Value error, "), ""),
    (re.compile(r"\.$"), ""),
)


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Print a mistake in what was typed as every other error, with the command that shows how to type it."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it is the help
            raise
        text = error.format_message()
        for pattern, words in _PLAIN_WORDS:
            text = pattern.sub(words, text)
        where = "dibs" if error.ctx is None else error.ctx.command_path
        bad_usage(f"{text[:1].lower()}{text[1:]}; see {where} --help")


@contextmanager
def bad_request_is_bad_usage() -> Iterator[None]:
    """Treat what no store could take, like a queue without a name, as a mistake in the command as typed."""
    try:
        yield
    except BadRequest as error:
        bad_usage(str(error))


# -- reading text -------------------------------------------------------------------------------


_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def duration(text: str) -> float:
    """Return seconds, from `30`, `30s`, `10m`, `2h` or `7d`."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 30, 30s, 10m, 2h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def time_with_zone(text: str) -> datetime:
    """Return the time that ISO 8601 text names, which must have a time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write 2030-01-31T12:00:00Z") from None
    if at.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone: add Z for UTC, or an offset like +02:00")
    return at


def as_typed(check: Callable[[str, str], T], what: str) -> Callable[[str], T]:
    """Return a parser of an id or a name; invalid text never reaches a store."""

    def read(text: str) -> T:
        try:
            return check(text, what)
        except BadRequest as error:
            bad_usage(str(error))

    read.__name__ = what  # shown by the help
    return read


class ShortId(str):
    """The last characters of an id, as typed."""


_TAIL = re.compile(r"[0-9a-f-]{8,35}")


def _whole_or_short(text: str, what: str) -> UUID | ShortId:
    short = text.strip().lower()
    try:
        return parse_id(text, what)
    except BadRequest as error:
        if _TAIL.fullmatch(short) is None:
            raise BadRequest(f"{error}, or its last 8 characters") from None
    return ShortId(short)


job_id, pipeline_id = as_typed(_whole_or_short, "job"), as_typed(_whole_or_short, "pipeline")


def json_object(text: str | bytes | None, what: str) -> dict[str, Any]:
    """Return the JSON object in this text; `what` names it in messages."""
    if text is None:
        return {}
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        bad_usage(f"{what} can't be read as JSON: {error}")
    if not isinstance(value, dict):
        bad_usage(f'{what} must be a JSON object of names and values, like {{"order_id": 42}}')
    return value


def _checked_search(text: str, _: str) -> str:
    parse_search(text)
    return text


def slot_key(text: str) -> str | tuple[Any, ...]:
    """Return a slot's key: a name, or its parts from a JSON array."""
    try:
        return slot_from_text(text)
    except BadRequest as error:
        raise typer.BadParameter(str(error)) from None


def load(target: str, what: str, shape: str) -> Any:
    """Import what `MODULE:NAME` names, from the current folder first. The user's code may fail in any way."""
    module, _, name = target.partition(":")
    if module.endswith(".py"):
        bad_usage(f"{target!r} names a file: write {module[:-3].replace('/', '.')}:{name or 'app'}")
    if not module or not name:
        bad_usage(f"{target!r} does not name {what}: write {shape}")
    sys.path.insert(0, str(Path.cwd()))
    with _users_code(f"can't load {target!r}"):
        return getattr(importlib.import_module(module), name)


def import_modules(names: Iterable[str]) -> None:
    """Import modules by their names."""
    for name in names:
        with _users_code(f"can't import {name!r}"):
            importlib.import_module(name)


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, DibsError) as error:
        raise BadRequest(f"{what}: {error}{_line_of(error)}") from None
    except Exception as error:  # a typo, a missing setting: a mistake of the user's code, not of dibs
        raise BadRequest(f"{what}: {type(error).__name__}: {error}{_line_of(error)}") from None


def _line_of(error: Exception) -> str:
    """Return the line of the user's code that raised; nothing, if the module was not found."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""


def _is_theirs(file: str) -> bool:
    return not file.startswith((OURS, "<frozen ")) and file != importlib.__file__


# -- shared options -----------------------------------------------------------------------------


def not_empty(url: str | None) -> str | None:
    """Refuse `--url "$SHOP_URL"` with an unset variable; it must not become the file dibs.db here."""
    if url is not None and not url.strip():
        raise typer.BadParameter("it is empty: name a store, or leave it out to use $DIBS_URL")
    return url


Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=not_empty,
        help="The store; before or after the command. Default: $DIBS_URL.",
    ),
]
UntilIdle = Annotated[
    bool, typer.Option("--until-idle", help="End when nothing can be claimed; what is due later stays.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HealthPort = Annotated[
    int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Serve GET /healthz and /metrics here.")
]
HealthHost = Annotated[str, typer.Option(metavar="HOST", help="The address to serve on; 0.0.0.0 for all.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only what needs attention.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="The log as JSON, one object per line.")]
Limit = Annotated[int, typer.Option(min=1, max=MOST_LISTED, metavar="N", help="How many at most.")]
Id = Annotated[
    UUID, typer.Argument(parser=job_id, metavar="ID", help="The job's id, or its last 8 characters.")
]
_Ids = typer.Argument(
    parser=job_id, metavar="ID", help="The ids of one or more jobs, or their last 8 characters."
)
Ids = Annotated[list[UUID], _Ids]
SomeIds = Annotated[list[UUID] | None, _Ids]

States = Annotated[
    list[JobState] | None,
    typer.Option(
        "--state", metavar="STATE", help=f"Only in this state; may be given again: {', '.join(JobState)}."
    ),
]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only of this queue.")]
OfKind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only of this kind.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only with this tag; may be given again, then with all."),
]
OfTrain = Annotated[str | None, typer.Option("--train", metavar="NAME", help="Only of this train.")]
OfSlot = Annotated[
    Any,
    typer.Option("--slot", parser=slot_key, metavar="KEY", help="Only of this slot: a name or a JSON array."),
]
OfPipeline = Annotated[
    UUID | None,
    typer.Option("--pipeline-id", parser=pipeline_id, metavar="ID", help="Only of this pipeline."),
]

Searched = Annotated[
    str | None,
    typer.Option(
        "--search",
        parser=as_typed(_checked_search, "search"),
        metavar="TEXT",
        help="Only what a search finds: 'kind:send_* args.order_id:42 error:Timeout since:2h words'.",
    ),
]
Since = Annotated[
    float | None, typer.Option(parser=duration, metavar="TIME", help="Only enqueued since then: 30m, 2h, 7d.")
]
OfWorker = Annotated[str | None, typer.Option("--worker", metavar="NAME", help="Only of this worker.")]


def hand_on(context: typer.Context, url: str | None, json: bool) -> None:
    """Pass --url and --json of a group to its command, as in `dibs queues --json pause mail`."""
    context.obj = url or context.obj
    if context.invoked_subcommand is not None:
        _refuse_options_not_for(context.invoked_subcommand, context)
        context.default_map = {context.invoked_subcommand: {"json": True}} if json else None


def _refuse_options_not_for(word: str, context: typer.Context) -> None:
    group: Any = context.command
    typed = {one.name: one.opts[0] for one in group.params if _was_typed(context, one.name)}
    if own := [text for name, text in typed.items() if name not in ("url", "json")]:
        bad_usage(f"{own[0]} is for `{context.command_path}` alone: leave it out before {word}")
    if "json" in typed and all(one.name != "json" for one in group.commands[word].params):
        bad_usage(f"`{context.command_path} {word}` has no --json: leave it out")


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


All = Annotated[bool, typer.Option("--all", help="All jobs that match the options, instead of ids.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --all: don't ask first.")]


def next_page(words: list[str], url: str | None, limit: int, last: object) -> str:
    """Return the command that lists the next page, after the last entry of this one."""
    more = [] if limit == PAGE_LIMIT else ["--limit", str(limit)]
    return shlex.join([*words, *url_again(url), *more, "--after", str(last)])


def url_again(url: str | None) -> list[str]:
    """Return --url as given, for a command to be typed next; the reader has to add a password again."""
    if url is None:
        return []
    secret = urlsplit(url).password is not None or "password" in url
    return ["--url", without_password(url) if secret else url]


def filter_of(**given: Any) -> dict[str, Any]:
    """Return the filters that were given, as `find` and the `_many` verbs take them."""
    return {name: value for name, value in given.items() if value is not None and value != []}
