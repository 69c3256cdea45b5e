"""Answer questions in SQL: load the blocks of a dialect, fill in its spellings, spell the parameters.

A dialect's answer to a question is a *plan*: a generator that yields queries and is sent their
rows, so that one plan serves blocking and awaited connections, dibs' own and the caller's.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dibs.engines.sql.blocks import Dialect
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.scripts import Rows, Step

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
