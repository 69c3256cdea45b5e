"""The search language of `q`: its words become a filter of `find`, and conditions on texts of a job.

`state:failed kind:send_* queue:mail tag:x train:t slot:s worker:w id:… pipeline:… since:2h`,
`args.order_id:42`, `error:Timeout`, and words that are in the kind, the message or an error. Every word must
hold. A value in quotes may have spaces, and is taken as it is; without, `*` means any characters.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from dibs.errors import BadRequest
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job
from dibs.jobs.options import slot_from_text
from dibs.jobs.payload import decode, json_text

LONGEST_SEARCH, MOST_WORDS = 2_000, 50
POSSIBLE = "state, kind, queue, tag, train, slot, worker, id, pipeline, since, args.NAME, error"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])")
_WORD = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]+(?:\.(?:"(?:[^"\\]|\\.)*"|[^\s":.]+))*):)?"""
    r"""(?:(?P<quoted>"(?:[^"\\]|\\.)*")(?=\s|$)|(?P<bare>\S*))"""
)
_KEY = re.compile(r'\."((?:[^"\\]|\\.)*)"|\.([^.]+)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MOST_EXACT = 10**15  # up to here a float has the digits of its whole number


class Value(NamedTuple):
    """The value of a word: text that is meant as it stands, or a pattern with `*`."""

    text: str
    exact: bool = False

    @property
    def is_pattern(self) -> bool:
        return "*" in self.text and not self.exact


class ArgTerm(NamedTuple):
    """`args.a.b:value`: what a job must have at this path of its arguments."""

    path: tuple[str, ...]
    value: Value

    def contained(self) -> tuple[str, str] | None:
        """Return two JSON texts, one of which the arguments of every match contain; None where that can't be.

        They differ where the word may mean a number or a text.
        """
        is_storable = all(map(_is_storable, (self.value.text, *self.path)))
        if self.value.is_pattern or not is_storable or any(key.isdecimal() for key in self.path):
            return None
        literal = _literal(self.value)
        texts = (self.value.text, self.value.text if literal is self.value else literal)
        as_text, as_json = (self._at_path(value) for value in texts)
        return as_text, as_json

    def _at_path(self, value: Any) -> str:
        for key in reversed(self.path):
            value = {key: value}
        return json_text(value)

    def runs(self) -> list[str]:
        """Return texts that the arguments of every match hold, in lower case; of the value if it has any."""
        literal = _literal(self.value)
        if literal is self.value:
            own = list(_runs(self.value))
        else:
            as_json = json_text(literal)
            own = [as_json] if as_json in self.value.text else []
        keys = (Value(key, exact=True) for key in self.path if not key.isdecimal())
        return own or [run for key in keys for run in _runs(key)]


class TextTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on texts that no index serves: arguments, errors, and words."""

    args: tuple[ArgTerm, ...] = ()
    errors: tuple[Value, ...] = ()
    words: tuple[Value, ...] = ()
    hides_errors: bool = False
    """Words are not looked for in errors."""

    def within(self, fields: Collection[str]) -> "TextTerms":
        """Return the same for a caller that sees only these parts of jobs; refuse to search by others."""
        for name, terms in (("args", self.args), ("errors", self.errors)):
            if terms and name not in fields:
                raise BadRequest(f"you can't search by {name}: they are not shown to you")
        return msgspec.structs.replace(self, hides_errors="errors" not in fields)

    def __bool__(self) -> bool:
        return bool(self.args or self.errors or self.words)

    @property
    def needles(self) -> dict[str, str | None]:
        """Return what stores look for first, in lower case: the stored texts of every match hold it."""
        in_args = [run for term in self.args for run in term.runs()]
        in_errors = [run for value in self.errors for run in _pieces(value)]
        in_text = [run for value in self.words for run in _pieces(value)]
        named = {"in_args": in_args, "in_errors": in_errors, "in_text": in_text}
        return {name: max(runs, key=len, default=None) for name, runs in named.items()}

    @property
    def contained(self) -> tuple[str, str] | None:
        """Return what the arguments of every match contain, one of two, for stores with an index of them."""
        return next((both for term in self.args if (both := term.contained())), None)

    def match(self, job: Job) -> bool:
        errors = [f"{error.type}: {error.message}" for error in job.errors]
        texts = [job.kind, job.message or "", *([] if self.hides_errors else errors)]
        return (
            all(_is_at(job.args, term.path, _is_value(term.value)) for term in self.args)
            and all(any(map(_holds(value), errors)) for value in self.errors)
            and all(any(map(_holds(value), texts)) for value in self.words)
        )


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A search as it was read: filters of `find`, and what remains to be compared with each job."""

    filter: dict[str, Any] = {}
    patterns: dict[str, str] = {}
    """Names with `*`: of kind, queue, worker or train."""
    text: TextTerms = TextTerms()


def parse_search(text: object) -> Search:
    """Read a search; a word that means nothing is refused, with what is possible."""
    if not isinstance(text, str) or len(text) > LONGEST_SEARCH:
        raise BadRequest(f"q must be text of at most {LONGEST_SEARCH:,} characters")
    words = list(_words(text))
    if len(words) > MOST_WORDS:
        raise BadRequest(f"q has {len(words)} words, and at most {MOST_WORDS} are allowed")
    found = _Reader()
    for name, value in words:
        found.read(name, value)
    terms = TextTerms(args=tuple(found.args), errors=tuple(found.errors), words=tuple(found.free))
    return Search(filter=found.filter, patterns=found.patterns, text=terms)


def _words(text: str) -> Iterator[tuple[str, Value]]:
    start = 0
    text = text.rstrip()
    while start < len(text) and (match := _WORD.match(text, start)) is not None:
        start = match.end()
        name, quoted, bare = match["name"], match["quoted"], match["bare"]
        if quoted is None and bare.startswith('"'):
            raise BadRequest(f"q has a quote that is not closed, or not followed by a space: {bare}")
        value = Value(bare) if quoted is None else Value(_ESCAPE.sub(r"\1", quoted[1:-1]), exact=True)
        if not value.text:
            raise BadRequest(f"q has no value after {name}: …" if name else "q has an empty word")
        yield name or "", value


class _Reader:
    """The words of a search, sorted by what they mean."""

    def __init__(self) -> None:
        self.filter: dict[str, Any] = {}
        self.patterns: dict[str, str] = {}
        self.args: list[ArgTerm] = []
        self.errors: list[Value] = []
        self.free: list[Value] = []

    def read(self, name: str, value: Value) -> None:
        match name:
            case "" if is_id(value.text):
                self._once(self.filter, "id", parse_id(value.text))
            case "":
                self.free.append(value)
            case "error":
                self.errors.append(value)
            case "state":
                self.filter["state"] = [*self.filter.get("state", ()), *value.text.split(",")]
            case "tag":
                self.filter["tags"] = [*self.filter.get("tags", ()), value.text]
            case "kind" | "queue" | "worker" | "train" if value.is_pattern:
                self._once(self.patterns, name, value.text)
            case "kind" | "queue" | "worker" | "train":
                self._once(self.filter, name, value.text)
            case "slot":
                self._once(self.filter, "slot", slot_from_text(value.text))
            case "id":
                self._once(self.filter, "id", parse_id(value.text))
            case "pipeline":
                self._once(self.filter, "pipeline_id", parse_id(value.text, "pipeline"))
            case "since":
                self._once(self.filter, "since", parse_span(value.text))
            case _ if name.startswith("args."):
                self.args.append(ArgTerm(_path(name.removeprefix("args")), value))
            case _:
                raise BadRequest(
                    f"the search can't filter by {name}; known are {POSSIBLE}; for the text put it in "
                    f'quotes: "{name}:{value.text}"'
                )

    def _once(self, into: dict[str, Any], name: str, value: Any) -> None:
        if name in self.filter or name in self.patterns:
            raise BadRequest(f"q names {name} twice; a job has only one")
        into[name] = value


def parse_span(text: str) -> float:
    """Return the seconds of `30s`, `10m`, `2h`, `7d` or `1w`."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise BadRequest(f"since:{text} is no span of time: write 30s, 10m, 2h, 7d or 1w")
    return float(match[1]) * _SECONDS[match[2]]


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(bare or _ESCAPE.sub(r"\1", quoted) for quoted, bare in _KEY.findall(dotted))


# -- does a job match ---------------------------------------------------------------------------


def _is_at(value: Any, path: tuple[str, ...], is_wanted: Callable[[Any], bool]) -> bool:
    """Return whether the value at the path is wanted; a whole number is a place in a list."""
    for key in path:
        match value:
            case dict() if key in value:
                value = value[key]
            case list() if key.isascii() and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            case _:
                return False
    return is_wanted(value)


def _is_value(value: Value) -> Callable[[Any], bool]:
    """Return a test for a value of JSON: the text itself, or without quotes the number, truth or null."""
    if value.is_pattern:
        return lambda given: isinstance(given, str) and is_like(given, value.text)
    literal = _literal(value)
    return lambda given: given == value.text if isinstance(given, str) else _is_same(given, literal)


def _is_storable(text: str) -> bool:
    """Return whether any stored text may have it: no store keeps U+0000 or lone surrogates."""
    return not any(one == "\x00" or "\ud800" <= one <= "\udfff" for one in text)


def _is_same(given: Any, literal: Any) -> bool:
    """Compare as JSON does: true is not 1, and only a number that a float keeps exactly is equal to one."""
    if isinstance(given, float) and isinstance(literal, int) and not isinstance(literal, bool):
        return abs(literal) < MOST_EXACT and given == literal
    return type(given) is type(literal) and bool(given == literal)


def _literal(value: Value) -> Any:
    """Return the number, truth or null that the text is in JSON; otherwise the value itself."""
    if value.exact or value.is_pattern:
        return value
    try:
        read = decode(value.text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return value
    if isinstance(read, float) and read.is_integer() and abs(read) < MOST_EXACT:
        return int(read)
    return value if isinstance(read, str | list | dict) else read


def _holds(value: Value) -> Callable[[str], bool]:
    """Return a test whether a text has this in it, in upper or lower case."""
    lower = value.text.lower()
    if value.is_pattern:
        return lambda text: is_like(text.lower(), f"*{lower}*")
    return lambda text: lower in text.lower()


def is_like(text: str, pattern: str) -> bool:
    """Return whether all of the text fits a pattern with `*`, in time that grows with its length alone."""
    first, *middle, last = pattern.split("*")
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        if (found := text.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return True


# -- what stores look for -----------------------------------------------------------------------

# ASCII that JSON does not escape, in no encoder: every store finds it in its stored text as it is.
_RUN = re.compile(r"[ !#-.0-\[\]-~]+")


def _runs(value: Value) -> Iterator[str]:
    for part in value.text.split("*") if value.is_pattern else [value.text]:
        yield from (run.lower() for run in _RUN.findall(part))


def _pieces(value: Value) -> Iterator[str]:
    """Yield runs without the colon between the type and the message of an error, which are stored apart."""
    for run in _runs(value):
        yield from (piece for part in run.split(":") if (piece := part.strip()))
