"""The machine's moves (ADR 17): jobs that leave a store, and that come back or come from another one.

Between the two anything may happen, to those who stayed and by those who are new.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, multiple, rule
from msgspec import structs

from dibs import NewJob
from dibs.jobs.job import StoredJob, read_stored
from dibs.operations.scripts import Rows, Script, Step
from tests.model.agreement import Agreement
from tests.model.beside import QUEUES, Moment, Side

ELSEWHERE = UUID(int=7)

# Where they wait at a gate, and as what, is for that gate to say; errors hold tokens; who has ended is no
# longer asked to stop, whatever is still written there.
NOT_COMPARED = ("position", "state", "errors", "cancel_reason")


@dataclass(frozen=True)
class Flight:
    """Jobs that departed together, as each side wrote them down."""

    memory: Rows
    real: Rows

    def on(self, side: Side, machine: Agreement) -> Rows:
        return self.memory if side is machine.memory else self.real

    def without(self, ids: set[UUID]) -> Flight:
        left = [[row for row in rows if row["id"] not in ids] for rows in (self.memory, self.real)]
        return Flight(*left)


class MovedAgreement(Agreement):
    """Memory and one real store, asked the same, while somebody moves jobs."""

    flights = Bundle("flights")

    @rule(
        target=flights,
        paused=st.booleans(),
        after=st.none() | Agreement.jobs,
        limit=st.sampled_from([1, 2, 50]),
    )
    def depart(self, paused: bool, after: NewJob | None, limit: int) -> Any:
        """Who waits at a gate goes only while its queue is paused; nobody while a pipeline is not done."""
        if self.both(lambda side: len(side.run(lambda _: asked("pipelines", ids=None))))[0]:
            return multiple()
        for queue in QUEUES if paused else ():
            self.both(lambda side, queue=queue: side.face.pause(queue))
        which = {"store": ELSEWHERE, "after": after and after.id, "limit": limit}
        rows = [side.run(lambda _: asked("depart", **which)) for side in (self.memory, self.real)]
        seen = [stored_as_seen(side, left) for side, left in zip((self.memory, self.real), rows, strict=True)]
        self.compare(*seen)
        self.left({row["id"] for row in rows[0]})
        for queue in QUEUES if paused else ():
            self.both(lambda side, queue=queue: side.face.resume(queue))
        return some_flight(Flight(*rows))

    @rule(target=flights, flight=consumes(flights))
    def give_back(self, flight: Flight) -> Any:
        ids = [row["id"] for row in flight.memory]
        answers, _ = self.both(lambda side: taken_in(side, "give_back", ids=ids))
        return some_flight(flight.without(self.note_taken_in(answers)))

    @rule(target=flights, flight=consumes(flights), again=st.booleans())
    def arrive(self, flight: Flight, again: bool) -> Any:
        """As if they had been elsewhere; a reply may get lost."""
        ids = [row["id"] for row in flight.memory]

        def deed(side: Side) -> Any:
            side.run(lambda _: asked("landed", way="out", store=ELSEWHERE, ids=ids))
            texts = [row["job"] for row in flight.on(side, self)]
            return [taken_in(side, "arrive", jobs=texts) for _ in range(1 + again)]

        (answers, *_), _ = self.both(deed)
        self.both(lambda side: side.run(lambda _: asked("landed", way="in", store=ELSEWHERE, ids=ids)))
        self.note_taken_in(answers)
        return multiple()

    def left(self, ids: set[UUID]) -> None:
        """These departed."""

    def note_taken_in(self, answers: list[tuple[UUID, UUID, bool]]) -> set[UUID]:
        """They come in the state in which they left."""
        self.came |= {id for id, _, is_new in answers if is_new}
        return {id for id, holder, _ in answers if holder == id}


def asked(question: str, **params: Any) -> Script[Rows]:
    return (yield Step(question, params))


def some_flight(flight: Flight) -> Any:
    return multiple(*([flight] if flight.memory else []))


def taken_in(side: Side, question: str, **what: Any) -> list[tuple[UUID, UUID, bool]]:
    rows = side.run(lambda _: asked(question, store=ELSEWHERE, **what))
    return sorted((row["id"], row["holder"], bool(row["is_new"])) for row in rows)


def stored_as_seen(side: Side, rows: Rows) -> list[dict[str, Any]]:
    return [_as_seen(side, read_stored(row["job"])) for row in rows]


def _as_seen(side: Side, job: StoredJob) -> dict[str, Any]:
    seen = structs.asdict(job)
    seen |= {name: side.claim_of[seen[name]] for name in ("token", "settled_token")}
    seen |= {name: Moment(value) for name, value in seen.items() if isinstance(value, datetime)}
    return {name: value for name, value in seen.items() if name not in NOT_COMPARED}
