"""Answer questions in SQL: load the blocks of a dialect, fill in its spellings, spell the parameters.

A dialect's answer to a question is a *plan*: a generator that yields queries and is sent their
rows, so that one plan serves blocking and awaited connections, dibs' own and the caller's.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from dibs.jobs.job import JOB_COLUMNS, STORED_TYPES
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.scripts import Rows, Step

# What a job takes along unchanged when it moves between the live and the finished table.
KEPT_COLUMNS = (
    *("id", "kind", "queue", "args", "priority", "max_attempts", "run_at", "enqueued_at"),
    *("claimed_at", "worker", "token", "train", "slot", "on_cancelled", "on_failed"),
    *("unique_key", "unique_until", "parent_id", "progress", "tags", "meta"),
    *("position", "slot_policy", "slot_limit"),
)
RETURNED = {"worker": "null", "progress": "0"}
RETRIED = {**RETURNED, "run_at": "{now}"}

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n((?:--.*\n)*)", re.MULTILINE)
_FRAGMENT = re.compile(r"\{>(\w+)\}")
_SPELLING = re.compile(r"\{(\w+)(?::(\w+))?(?::(\w+))?\}")
_PARAM = re.compile(r"(?<!:):([a-z_]+)")


# Seconds between two looks at a job that is claimed by name and that somebody else has locked.
LOOKS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.3, 0.5)

# As the one, for states of which `succeeded` is none.
IN_STATES = {"find": "find_in_states", "find_oldest": "find_oldest_in_states"}


@dataclass(frozen=True, slots=True)
class Query:
    """One statement of a plan, by the name of its block."""

    name: str
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    many: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows for a bulk load; only connections of our own can do this."""

    table: str
    columns: tuple[str, ...]
    records: Sequence[tuple[Any, ...]]


Plan = Generator[Query | Copy, Rows, Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's words: where its files are, and the spellings that its blocks leave open."""

    name: str
    spellings: Mapping[str, str]
    prefix: str = "dibs"
    blocks: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", _load(self))

    def spell(self, text: str) -> str:
        return _SPELLING.sub(lambda match: self._word(*match.groups()), text)

    def rename(self, text: str) -> str:
        """Tables, indexes and the sequence carry the store's prefix."""
        return text if self.prefix == "dibs" else re.sub(r"\bdibs_", f"{self.prefix}_", text)

    def _word(self, name: str, first: str | None, second: str | None) -> str:
        match name:
            case "job_columns":
                return _columns(JOB_COLUMNS, first)
            case "kept_columns":
                return _columns(KEPT_COLUMNS, first)
            case "stored_columns":
                return _columns(tuple(STORED_TYPES), first)
            case "stored_values":
                return ", ".join(f":{name}" for name in STORED_TYPES)
            case "returned_columns":
                return _columns(KEPT_COLUMNS, first, RETURNED)
            case "retried_columns":
                return self.spell(_columns(KEPT_COLUMNS, first, RETRIED))
            case _:
                word = self.spellings[name]
                return word.replace("$1", first or "").replace("$2", second or "")


@lru_cache(maxsize=1024)
def placeholders(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Turn `:name` into `$1` or `%(name)s`; answer the names in order of first use."""
    order = tuple(dict.fromkeys(_PARAM.findall(sql)))
    if style == "numeric":
        return _PARAM.sub(lambda match: f"${order.index(match[1]) + 1}", sql), order
    if style == "pyformat":
        return _PARAM.sub(r"%(\1)s", sql.replace("%", "%%")), order
    return sql, order


def _load(dialect: Dialect) -> dict[str, str]:
    folder = files("dibs.engines")
    common = [folder.joinpath("sql", f"{part}.sql") for part in ("common", "gates", "pipelines")]
    own = [folder.joinpath(dialect.name, f"{part}.sql") for part in ("jobs", "gates", "pipelines")]
    texts = [file.read_text(encoding="utf-8") for file in (*common, *own) if file.is_file()]
    return {name: dialect.rename(dialect.spell(body)) for name, body in read_blocks(*texts).items()}


def read_blocks(*texts: str) -> dict[str, str]:
    """The named blocks of these files with their fragments filled in; what comes later goes before."""
    blocks: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for text in texts:
        _, *parts = _BLOCK.split(text)
        for sort, name, comment, body in zip(*[iter(parts)] * 4, strict=True):
            del comment
            (blocks if sort == "name" else fragments)[name] = body.strip()
    return {name: _include(body, fragments) for name, body in blocks.items()}


def _include(text: str, fragments: Mapping[str, str]) -> str:
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: fragments[match[1]], text)
    return text


def _columns(names: Sequence[str], table: str | None, instead: Mapping[str, str] | None = None) -> str:
    instead = instead or {}
    dot = f"{table}." if table else ""
    return ", ".join(instead.get(name, f"{dot}{name}") for name in names)


class Writers(dict[type, Callable[[Any], Any] | None]):
    """How values of a type are told to a driver; None for those that it takes as they are.

    A class that extends one of these is written like that one: asyncpg has its own for ids, and a move
    gives one driver what another has answered.
    """

    def __missing__(self, kind: type) -> Callable[[Any], Any] | None:
        self[kind] = next((self[base] for base in kind.__mro__ if base in self), None)
        return self[kind]


class SqlEngine:
    """What the SQL engines share: a step becomes a plan over the blocks of a dialect."""

    dialect: Dialect

    def answer(self, step: Step, *, own: bool = True) -> Plan:
        """A plan of its own where the engine has one, else the block of the question's name."""
        plan: Callable[..., Plan] | None = getattr(self, f"_{step.question}", None)
        return self._block(step) if plan is None else plan(**step.params)

    def needs_transaction(self, step: Step) -> bool:
        """Whether the answer takes more than one statement that must stand or fall together."""
        raise NotImplementedError

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        """A driver's rows with the values that every engine answers."""
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _counts(self, queue: str | None) -> Plan:
        return (yield Query("counts", {}) if queue is None else Query("counts_of_queue", {"queue": queue}))

    def _block(self, step: Step) -> Plan:
        return (yield Query(step.question, self.adapt(step.params)))

    def _find(self, **filter: Any) -> Plan:
        return (yield Query(*self._finding("find", filter)))

    def _find_oldest(self, **filter: Any) -> Plan:
        return (yield Query(*self._finding("find_oldest", filter)))

    def _finding(self, block: str, filter: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The block that need not look at all that succeeded, if they are not asked for."""
        states = filter["states"]
        if states is None or JobState.succeeded in states:
            return block, self.adapt(filter)
        wanted = {state.value: state in states for state in (JobState.failed, JobState.cancelled)}
        live = not FINISHED.issuperset(states)
        return IN_STATES[block], self.adapt({**filter, **wanted, "live": live})

    def _set_queue(self, **setting: Any) -> Plan:
        sets = setting["paused"] or setting["max_running"] is not None
        return (yield Query("set_queue" if sets else "lift_from_queue", self.adapt(setting)))

    def adapt(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Python values as this database's drivers take them."""
        return params
