"""The machine's convoys (ADR 19): jobs of a train that were run under the lease of their head.

Between the look ahead and the settlement anything may happen. So every convoy that was ever seen may be
settled, whole or in part, once or twice, and the machine says what its jobs are then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule
from msgspec import structs

from dibs import Job, NewJob, operations
from dibs.claims import Holding, SyncClaim
from dibs.clock import SECOND, monotonic
from dibs.operations import Ride, Settled
from dibs.states import JobState
from tests.model.agreement import Agreement, Twins, outcome_of, settled_state, some
from tests.model.beside import QUEUES, Places, Seen, Side, places_in_memory
from tests.model.draws import End, ends, plain_jobs

TRAINS = ("north", "south")
DONE: End = ("succeed", ("done",), {})

# Whoever is given back is not told to the store; who still runs has no end.
ends_of_followers = st.none() | ends.filter(lambda end: end[0] != "release")


@dataclass(frozen=True)
class Convoy:
    """A head, and those behind it that a worker may run under its lease."""

    head: Twins
    followers: list[Twins]


@dataclass(frozen=True)
class Ridden:
    """How far a convoy came: all succeeded but the last one; how long ago the head had ended."""

    convoy: Convoy
    many: int
    end: End | None
    seconds: int
    children: list[dict[str, Any]]

    @property
    def followers(self) -> list[Twins]:
        return self.convoy.followers[: self.many]

    @property
    def jobs(self) -> list[tuple[Twins, End | None]]:
        """Those that ran, in order, and how each ended."""
        followers = [(twins, DONE) for twins in self.followers[:-1]]
        return [(self.convoy.head, DONE), *followers, *((twins, self.end) for twins in self.followers[-1:])]

    def settlements(self, side: Side) -> list[Settled]:
        ended = [(twins.on(side), end) for twins, end in self.jobs if end is not None]
        return [
            side.app._core.settlement(claim._held, outcome_of(claim, end), self._children(claim, end))
            for claim, end in ended
        ]

    def _children(self, claim: SyncClaim, end: End) -> list[NewJob]:
        is_last = self.followers and claim.job.id == self.followers[-1].id
        return [NewJob(**each) for each in self.children] if is_last and end[0] == "succeed" else []

    def rides(self, side: Side) -> list[Ride]:
        """One after another, the head first; each began when the one before it had ended."""
        head = self.convoy.head.on(side)._held
        times = [
            round(self.seconds * SECOND * left / len(self.jobs)) for left in range(len(self.jobs), -1, -1)
        ]
        spans = pairwise(times)
        return [
            (*twins.on(side)._held.key, *head.key, 60 * SECOND, began, None if end is None else ended)
            for (twins, end), (began, ended) in zip(self.jobs, spans, strict=True)
        ]


class ConvoyedAgreement(Agreement):
    """Memory and one real store, asked the same, by workers who look ahead on their trains."""

    convoys = Bundle("convoys")

    @rule(target=convoys, head=Agreement.claims, limit=st.integers(1, 3))
    def look_ahead(self, head: Twins, limit: int) -> Any:
        return some_convoy(self.convoy_of(head, limit))

    @rule(
        target=Agreement.claims,
        convoy=convoys,
        many=st.integers(1, 3),
        end=ends_of_followers,
        limit=st.sampled_from([None, 0, 2]),
    )
    def settle_convoy(self, convoy: Convoy, many: int, end: End | None, limit: int | None) -> Any:
        return self.ridden(Ridden(convoy, many, end, 0, []), limit)

    @rule(
        target=Agreement.claims,
        train=st.sampled_from([*TRAINS, TRAINS[0]]),
        many=st.integers(1, 3),
        end=ends_of_followers,
        limit=st.sampled_from([None, 0, 2]),
        seconds=st.sampled_from([48, 0]),
        before=st.sampled_from([None, "pause", "lease", None]),
        meanwhile=st.sampled_from([None, None, "cancel", "delete", "sweep", "overtake"]),
        children=st.lists(plain_jobs, max_size=1),
    )
    def ride(
        self,
        train: str,
        many: int,
        end: End | None,
        limit: int | None,
        seconds: int,
        before: str | None,
        meanwhile: str | None,
        children: list[dict[str, Any]],
    ) -> Any:
        """A head is claimed and leads a convoy, in whose way something may come."""
        heads = [twins for id in self.ready_heads(train) for twins in self.claimed_head(id)]
        self.keep_from_following(before)
        found = [convoy for head in heads for convoy in self.convoy_of(head, many) if convoy.followers]
        self.set_queues("resume")
        rest: list[Twins] = []
        for convoy in found:
            self.both_show_the_same()
            self.come_in_the_way(convoy, meanwhile)
            self.both(lambda side: side.age(seconds))
            born = [each | {"id": next(self.ids)} for each in children]
            # Whether the same exchange claims the children is open.
            rest += self.ridden(Ridden(convoy, many, end, seconds, born), None if born else limit).values
        return multiple(*heads, *rest)

    def ready_heads(self, train: str) -> list[UUID]:
        found = self.memory.face.trains.get(train)
        head = None if found is None or found.head is None else self.before.get(found.head.id)
        return [head["id"]] if head is not None and head["state"] == JobState.ready else []

    def claimed_head(self, id: UUID) -> Sequence[Twins]:
        twins: Sequence[Twins] = self.claimed(
            lambda side: some(side.face.claim_job(id, worker="pod-a", lease=600))
        ).values
        return twins

    def convoy_of(self, head: Twins, limit: int) -> list[Convoy]:
        """Nothing is written for those who follow; greater tokens are for those behind."""
        self.claims_made += 1
        number = self.claims_made

        def deed(side: Side) -> list[SyncClaim]:
            core, claim = side.app._core, head.on(side)
            jobs = side.run(lambda _: operations.followers(claim.job.id, claim.token, limit))
            assert [job.token for job in jobs] == sorted(job.token for job in jobs)
            begun = [SyncClaim(Holding(core, begun_by(claim.job, job), monotonic())) for job in jobs]
            return side.note_claims(begun, number)

        memory, real = self.both(deed)
        return [Convoy(head, [Twins(number, *pair) for pair in zip(memory, real, strict=True)])]

    def keep_from_following(self, what: str | None) -> None:
        """Nobody follows a head whose lease is over, nor out of a paused queue."""
        match what:
            case "lease":
                self.both(lambda side: side.age(601))
            case "pause":
                self.set_queues("pause")

    def set_queues(self, verb: str) -> None:
        for queue in QUEUES:
            self.both(lambda side, queue=queue: getattr(side.face, verb)(queue))

    def come_in_the_way(self, convoy: Convoy, what: str | None) -> None:
        match what:
            case "cancel":
                self.cancel_one(convoy.followers[-1].id, "no longer wanted")
            case "delete":
                self.both(lambda side: side.face.delete(convoy.followers[0].id))
            case "sweep" | "overtake":
                self.both(lambda side: side.age(601))
                self.both(lambda side: side.face.sweep())
        self.both_show_the_same()
        if what == "overtake":
            self.claimed_head(convoy.head.id)
            self.both_show_the_same()

    def ridden(self, ridden: Ridden, limit: int | None) -> Any:
        """Settled by itself, or by an exchange, which claims only where nobody is given back."""
        places = places_in_memory(self.memory.app)
        expected = self.expected_of(ridden, places)
        most = self.at_most(limit or 0) if ridden.end is None or ridden.end[0] == "succeed" else 0
        told: list[list[UUID]] = []

        def deed(side: Side) -> list[SyncClaim]:
            core = side.app._core
            given = ridden.settlements(side), ridden.rides(side)
            lost, taken = side.run(lambda _: settle_or_exchange(*given, wish(side)))
            told.append(sorted(one.id for one in lost))
            return [SyncClaim(Holding(core, job, monotonic())) for job in taken]

        def wish(side: Side) -> operations.Wish | None:
            return None if limit is None else side.app._core._wish("pod-a", 60, limit=most)

        claims = self.claimed(deed).values
        assert told[0] == told[1]
        self.both(lambda side: side.run(lambda _: running_among(ridden.followers, side)))
        taken = {twins.id for twins in claims}
        for id, state in expected.items():
            if id not in taken:
                self.is_now(id, state)
        for twins, end in ridden.jobs:
            twins.last = end
        return multiple(*claims, *ridden.followers)

    def expected_of(self, ridden: Ridden, places: Places) -> dict[UUID, JobState]:
        """Whoever is still blocked behind a head that is still held ran, and is what it came to."""
        head = ridden.convoy.head
        if not self.holds(head.id, head.number):
            return self.as_they_are(ridden.followers)
        first, *rest = ridden.jobs
        came_to = {first[0].id: JobState.succeeded}
        for twins, end in rest:
            job = self.before.get(twins.id)
            if job is not None and is_behind(job, self.before[head.id], places):
                came_to[twins.id] = JobState.running if end is None else settled_state(twins.memory, end)
        return came_to

    def as_they_are(self, followers: Sequence[Twins]) -> dict[UUID, JobState]:
        """Unless one of them has become a claim of its own, whose end lets the next one go."""
        if any(self.holds(twins.id, twins.number) for twins in followers):
            return {}
        return {twins.id: self.before[twins.id]["state"] for twins in followers if twins.id in self.before}


def some_convoy(found: list[Convoy]) -> Any:
    return multiple(*(convoy for convoy in found if convoy.followers))


def begun_by(head: Job, job: Job) -> Job:
    """As its worker sees it, while the store still has it blocked."""
    return structs.replace(
        job,
        state=JobState.running,
        attempts=job.attempts + 1,
        worker=head.worker,
        claimed_at=head.claimed_at,
        lease_until=head.lease_until,
    )


def is_behind(job: Seen, head: Seen, places: Places) -> bool:
    if job["state"] != JobState.blocked or job["train"] != head["train"]:
        return False
    mine, its = places[job["id"]][0], places[head["id"]][0]
    return mine is not None and its is not None and mine > its


def settle_or_exchange(settlements: list[Settled], rides: list[Ride], wish: operations.Wish | None) -> Any:
    if wish is not None:
        return (yield from operations.exchange(settlements, wish, rides))
    lost = yield from operations.settle_if_held(settlements, rides)
    return lost, []


def running_among(followers: Sequence[Twins], side: Side) -> Any:
    running = yield from operations.running_among([twins.on(side)._held.key for twins in followers])
    return sorted(running)
