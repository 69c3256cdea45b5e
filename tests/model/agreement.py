"""A machine that asks memory and one real store the same, at random, and compares what a user sees.

After every operation it compares the answers, all jobs, the counts and the queues, and holds both stores
against the rules of `dibs.jobs.states`. Time passes only by `upkeep.age`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import getmembers
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from dibs import NewJob
from dibs.app.claims import ClaimState, SyncClaim
from dibs.clock import monotonic
from dibs.jobs.states import (
    FINISHED,
    TRANSITIONS,
    CancelledBy,
    JobState,
    Outcome,
    Released,
    put_back,
    settle,
    swept,
)
from dibs.operations.settle import exchange
from tests.model.beside import Moment, RealStore, Seen, Side, make_app, old_ids
from tests.model.draws import (
    End,
    beats,
    ends,
    filters,
    leases,
    plain_jobs,
    queue_settings,
    queues,
    reasons,
    some_kinds,
    some_queues,
    workers,
)
from tests.support.internals import core_of, request_of

# Between two operations, so that the millisecond of SQLite's clock orders jobs as memory's does.
TICK = 0.01


@dataclass(slots=True)
class Twins:
    """The same claim on both sides, and the settlement that was last tried with it."""

    number: int
    memory: SyncClaim
    real: SyncClaim
    last: End | None = None

    def on(self, side: Side) -> SyncClaim:
        return self.memory if core_of(side.app) is self.memory._held.core else self.real

    @property
    def id(self) -> UUID:
        return self.memory.job.id


class Agreement(RuleBasedStateMachine):
    """Memory and one real store, asked the same."""

    store: RealStore
    new_jobs = plain_jobs
    more_moves = 0
    first_states = frozenset({JobState.scheduled, JobState.ready})
    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.store.empty()
        self.memory = Side(make_app("memory://"))
        self.real = Side(self.store.app)
        self.ids, self.smaller_ids = old_ids(), old_ids(step=-1)
        self.claims_made = 0
        self.asked: dict[UUID, int] = {}  # running jobs asked to cancel, and their claim
        self.before: dict[UUID, Seen] = {}
        self.came: set[UUID] = set()  # from another store, in whatever state they left it
        self._next_look()

    # -- enqueue ------------------------------------------------------------------------------------

    @initialize(target=jobs, options=st.lists(new_jobs, min_size=2, max_size=6))
    def start(self, options: list[dict[str, Any]]) -> Any:
        return self.enqueue_many(options, backwards=False, fresh=True)

    @rule(
        target=jobs,
        options=st.lists(new_jobs, min_size=1, max_size=4),
        backwards=st.booleans(),
        fresh=st.booleans(),
    )
    def enqueue(self, **given: Any) -> Any:
        return self.enqueue_many(**given)

    def enqueue_many(self, options: list[dict[str, Any]], backwards: bool, fresh: bool) -> Any:
        ids = self.smaller_ids if backwards else self.ids
        given = [each | {"id": next(ids)} for each in options]
        self.both(lambda side: side.face.enqueue(*(NewJob(**each, _fresh=fresh) for each in given)))
        return multiple(*(NewJob(**each) for each in given))

    @rule(known=st.lists(jobs, min_size=1, max_size=3))
    def enqueue_again(self, known: list[NewJob]) -> None:
        self.both(lambda side: side.face.enqueue(*map(copy.copy, known)))

    @rule(target=jobs, known=jobs, options=new_jobs)
    def enqueue_again_beside_a_new_one(self, known: NewJob, options: dict[str, Any]) -> NewJob:
        new = NewJob(**options, id=next(self.ids))
        self.both(lambda side: side.face.enqueue(copy.copy(known), copy.copy(new)))
        return new

    # -- claim --------------------------------------------------------------------------------------

    @rule(
        target=claims,
        queues=some_queues,
        kinds=some_kinds,
        limit=st.integers(0, 3),
        worker=workers,
        lease=leases,
    )
    def claim(self, limit: int, **wish: Any) -> Any:
        limit = self.at_most(limit)
        return self.claimed(lambda side: side.face.claim(limit=limit, **wish))

    @rule(target=claims, limit=st.integers(1, 3))
    def claim_anything(self, limit: int) -> Any:
        limit = self.at_most(limit)
        return self.claimed(lambda side: side.face.claim(limit=limit, worker="pod-a"))

    @rule(target=claims, limit=st.integers(1, 3))
    def claim_too_late(self, limit: int) -> Any:
        """The leases of some are over, and somebody else finds out."""
        self.both(lambda side: side.age(61))
        limit = self.at_most(limit)
        return self.claimed(lambda side: side.face.claim(limit=limit, worker="pod-b", lease=60))

    @rule(target=claims, new=jobs, worker=workers, lease=leases)
    def claim_job(self, new: NewJob, **wish: Any) -> Any:
        return self.claimed(lambda side: some(side.face.claim_job(new.id, **wish)))

    # -- settle, renew, progress: with any claim that was ever made -------------------------------------

    @rule(twins=claims, end=ends, asked=st.booleans())
    def settle(self, twins: Twins, end: End, asked: bool) -> None:
        if asked:
            self.cancel_one(twins.id, "no longer wanted")
            self.both_show_the_same()
        self.settled(twins, end)

    @rule(twins=claims)
    def settle_again(self, twins: Twins) -> None:
        self.settled(twins, twins.last or ("release", (), {}))

    @rule(target=jobs, twins=claims, options=st.lists(new_jobs, min_size=1, max_size=2))
    def succeed_with_children(self, twins: Twins, options: list[dict[str, Any]]) -> Any:
        children = [NewJob(**each, id=next(self.ids)) for each in options]
        self.settled(twins, ("succeed", ("done",), {"then": children}))
        return multiple(*children)

    @rule(target=jobs, twins=claims, known=jobs, options=new_jobs)
    def succeed_with_a_known_child(self, twins: Twins, known: NewJob, options: dict[str, Any]) -> NewJob:
        new = NewJob(**options, id=next(self.ids))
        self.settled(twins, ("succeed", ("done",), {"then": [known, new]}))
        return new

    @rule(twins=claims, beat=beats)
    def beat(self, twins: Twins, beat: tuple[Any, ...]) -> None:
        self.beaten(twins, beat)

    @rule(target=claims, twins=claims, beat=beats, end=ends)
    def overtake(self, twins: Twins, beat: tuple[Any, ...], end: End) -> Any:
        """A lease is over, somebody else takes the job, and the old holder goes on as if it were its own."""
        self.both(lambda side: side.age(601))
        newer = self.claimed(lambda side: some(side.face.claim_job(twins.id, worker="pod-b")))
        self.both_show_the_same()
        self.beaten(twins, beat)
        self.settled(twins, end)
        return newer

    @rule(target=claims, done=st.lists(claims, max_size=2), queues=some_queues, limit=st.integers(0, 3))
    def exchange(self, done: list[Twins], queues: list[str] | None, limit: int) -> Any:
        """A job is only given back where nothing is claimed: whether the same exchange claims it is open."""

        def deed(side: Side) -> list[SyncClaim]:
            core = core_of(side.app)
            settlements = [
                held.settled_by(held.succeeded("done") if limit else Released())
                for held in {twins.id: twins.on(side)._held for twins in done}.values()
            ]
            wish = request_of(side.app, "pod-a", 60, limit=most, queues=queues)
            (lost, _), taken = side.run(lambda _: exchange(settlements, wish))
            told.append(sorted(one.id for one in lost))
            return [SyncClaim(ClaimState(core, job, monotonic())) for job in taken]

        most = self.at_most(limit)
        told: list[list[UUID]] = []
        claims = self.claimed(deed)
        assert told[0] == told[1]
        return claims

    # -- look ---------------------------------------------------------------------------------------

    @rule(filter=filters, limit=st.sampled_from([1, 3, 50]), new=jobs)
    def look(self, filter: dict[str, Any], limit: int, new: NewJob) -> None:
        self.both(lambda side: side.face.find(**filter, limit=limit))
        self.both(lambda side: side.face.find(**filter, limit=limit, after=new.id))
        self.both(lambda side: side.face.find(pipeline_id=new.id))
        self.both(lambda side: side.face.counts(queue=new.queue))
        self.both(lambda side: side.face.get(new.id))
        self.both(lambda side: side.face.why(new.id).code)

    # -- act ----------------------------------------------------------------------------------------

    @rule(job=st.one_of(jobs, claims), reason=reasons)
    def cancel(self, job: NewJob | Twins, reason: str | None) -> None:
        self.cancel_one(job.id, reason)

    @rule(job=st.one_of(jobs, claims))
    def retry(self, job: NewJob | Twins) -> None:
        self.by_a_person = True
        self.both(lambda side: side.face.retry(job.id))

    @rule(filter=filters, verb=st.sampled_from(["cancel_many", "retry_many"]))
    def act_on_many(self, filter: dict[str, Any], verb: str) -> None:
        self.acted_on_many(filter, verb)

    def acted_on_many(self, filter: dict[str, Any], verb: str) -> None:
        self.by_a_person = verb == "retry_many"
        if verb == "cancel_many":
            self.note_asked([job.id for job in self.memory.face.find(**filter, limit=1000)])
        self.both(lambda side: getattr(side.face, verb)(**filter))

    @rule(
        job=st.one_of(jobs, claims),
        seconds=st.sampled_from([0, 61, 601]),
        stale_after=st.sampled_from([0, 100]),
        asked=st.booleans(),
    )
    def recover(self, job: NewJob | Twins, seconds: int, stale_after: int, asked: bool) -> None:
        self.by_a_person, self.moves = True, 2
        self.both(lambda side: side.age(seconds))
        if asked:
            self.cancel_one(job.id, "no longer wanted")
        self.both(lambda side: side.face.recover(job.id, stale_after=stale_after))

    @rule(job=st.one_of(jobs, claims))
    def delete(self, job: NewJob | Twins) -> None:
        self.both(lambda side: side.face.delete(job.id))

    @rule(target=claims, queue=queues, setting=queue_settings, limit=st.integers(1, 3))
    def set_queue_and_claim(self, queue: str, setting: tuple[Any, ...], limit: int) -> Any:
        verb, *value = setting
        self.both(lambda side: getattr(side.face, verb)(queue, *value))
        limit = self.at_most(limit)
        return self.claimed(lambda side: side.face.claim(limit=limit, worker="pod-a"))

    @rule(target=claims, new=jobs, setting=queue_settings)
    def set_queue_and_claim_job(self, new: NewJob, setting: tuple[Any, ...]) -> Any:
        verb, *value = setting
        self.both(lambda side: getattr(side.face, verb)(new.queue, *value))
        return self.claimed(lambda side: some(side.face.claim_job(new.id, worker="pod-b")))

    # -- upkeep and time ------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0, 61, 601]))
    def sweep(self, seconds: int) -> None:
        self.sweep_after(seconds)

    def sweep_after(self, seconds: int) -> None:
        self.both(lambda side: side.age(seconds))
        jobs = self.memory.everything()
        expected = {id: self.swept_state(job) for id, job in jobs.items() if is_expired(job)}

        told, _ = self.both(lambda side: side.face.sweep())

        for id, state in expected.items():
            self.was_swept(id, state)
        assert told.returned + told.failed + told.cancelled == len(expected)

    @rule(older_than=st.sampled_from([10, 100, 1000]))
    def prune(self, older_than: int) -> None:
        self.both(lambda side: side.face.prune(older_than))

    @rule(seconds=st.sampled_from([30, 61, 61, 601]))
    def age(self, seconds: int) -> None:
        self.both(lambda side: side.age(seconds))

    # -- after every one of them ------------------------------------------------------------------------

    @invariant()
    def both_show_the_same(self) -> None:
        memory = self.memory.everything()
        self.compare(memory, self.real.everything())
        self.both(lambda side: side.face.counts())
        self.both(lambda side: side.face.queues())
        assert self.store.never_rows() == []
        self.follows_the_rules(memory)
        self._next_look(memory)
        for side in (self.memory, self.real):
            side.age(TICK)

    def follows_the_rules(self, now: dict[UUID, Seen]) -> None:
        for id, job in now.items():
            assert 0 <= job["attempts"] <= job["max_attempts"]
            assert (job["state"] == JobState.running) == (job["lease_until"] is not None)
            assert (job["finished_at"] is not None) == (job["state"] in FINISHED)
            if (was := self.before.get(id)) is None:
                assert job["state"] in self.first_states or id in self.came
            else:
                self.moved_as_it_may(was, job)
        if self.nothing_may_change:
            assert now == self.before

    def moved_as_it_may(self, was: Seen, job: Seen) -> None:
        assert job["state"] in reachable(was["state"], self.moves + self.more_moves)
        if was["state"] in FINISHED and not self.by_a_person:
            assert what_stays(job) == what_stays(was)
        if was["token"] is not None:
            assert job["token"] >= was["token"]

    def _next_look(self, seen: dict[UUID, Seen] | None = None) -> None:
        """Forget what the last operation was allowed to do."""
        self.before = {} if seen is None else seen
        self.moves = 1
        self.came = set()
        self.by_a_person = False
        self.nothing_may_change = False
        self.asked = {id: claim for id, claim in self.asked.items() if self.holds(id, claim)}

    def teardown(self) -> None:
        self.memory.face.close()

    def at_most(self, limit: int) -> int:
        """How many may be claimed at once."""
        return limit

    # -- asking both ----------------------------------------------------------------------------------

    def both(self, deed: Callable[[Side], Any]) -> tuple[Any, Any]:
        memory, seen = self.memory.answer(deed)
        real, also_seen = self.real.answer(deed)
        self.compare(seen, also_seen)
        return memory, real

    def compare(self, memory: Any, real: Any) -> None:
        assert real == memory, f"(memory, real) of what differs: {differences(memory, real)}"

    def claimed(self, deed: Callable[[Side], list[SyncClaim]]) -> Any:
        """A claim may first do the upkeep that nobody else did."""
        self.moves = 2
        self.claims_made += 1
        number = self.claims_made
        memory, real = self.both(lambda side: side.note_claims(deed(side), number))
        return multiple(*(Twins(number, *pair) for pair in zip(memory, real, strict=True)))

    def beaten(self, twins: Twins, beat: tuple[Any, ...]) -> None:
        verb, *arguments = beat

        told, _ = self.both(lambda side: getattr(twins.on(side), verb)(*arguments))

        held = self.holds(twins.id, twins.number)
        assert held == (not isinstance(told, Exception))
        assert twins.memory.cancel_reason == twins.real.cancel_reason
        self.nothing_may_change = not held

    def cancel_one(self, id: UUID, reason: str | None) -> None:
        self.note_asked([id])
        self.both(lambda side: side.face.cancel(id, reason))

    def settled(self, twins: Twins, end: End) -> None:
        twins.last = end
        held, asked = self.holds(twins.id, twins.number), self.is_asked(twins.id)
        expected = settled_state(twins.memory, end)
        name, arguments, options = end

        told, _ = self.both(lambda side: getattr(twins.on(side), name)(*arguments, **options))

        if held:
            assert told is None
            self.is_now(twins.id, put_back(expected, cancel_asked=asked))
        elif told is not None:
            self.nothing_may_change = True

    # -- what the machine knows by itself -----------------------------------------------------------------

    def holds(self, id: UUID, claim: int) -> bool:
        job = self.before.get(id)
        return job is not None and (job["state"], job["token"]) == (JobState.running, claim)

    def note_asked(self, ids: list[UUID]) -> None:
        for id in ids:
            if id in self.before and self.before[id]["state"] == JobState.running:
                self.asked[id] = self.before[id]["token"]

    def is_asked(self, id: UUID) -> bool:
        return id in self.asked

    def is_now(self, id: UUID, state: JobState) -> None:
        assert self.memory.face.get(id).state == state

    def was_swept(self, id: UUID, state: JobState) -> None:
        self.is_now(id, state)

    def swept_state(self, job: Seen) -> JobState:
        return swept(job["attempts"], job["max_attempts"], cancel_asked=self.is_asked(job["id"]))


def differences(memory: Any, real: Any) -> Any:
    """What is not the same, without all that is."""
    match memory, real:
        case dict(), dict():
            names = [name for name in memory.keys() | real.keys() if memory.get(name) != real.get(name)]
            return {name: differences(memory.get(name), real.get(name)) for name in names}
        case list(), list() if len(memory) == len(real):
            pairs = zip(memory, real, strict=True)
            return [differences(one, other) for one, other in pairs if one != other]
        case _:
            return memory, real


def some(claim: SyncClaim | None) -> list[SyncClaim]:
    return [] if claim is None else [claim]


def is_expired(job: Seen) -> bool:
    return job["lease_until"] is not None and job["lease_until"].at <= datetime.now(UTC)


def what_stays(job: Seen) -> Seen:
    """What nobody but a person changes of a finished job; a later start of its slot makes another current."""
    return {
        name: value for name, value in job.items() if name != "is_current" and not isinstance(value, Moment)
    }


def reachable(state: JobState, moves: int) -> set[JobState]:
    found = {state}
    for _ in range(moves):
        found |= {after for before in found for after in TRANSITIONS[before]}
    return found


def settled_state(claim: SyncClaim, end: End) -> JobState:
    """What `dibs.jobs.states` says an attempt that ended like this makes of its job."""
    held, job = claim._held, claim.job
    retry = held.core.registry.options(job.kind).retry
    return settle(job.attempts, job.max_attempts, outcome_of(claim, end), retry, 0.5).state


def outcome_of(claim: SyncClaim, end: End) -> Outcome:
    name, arguments, options = end
    match name:
        case "succeed":
            return claim._held.succeeded(*arguments or (None,))
        case "fail":
            return claim._held.raised(*arguments, **options)
        case "snooze":
            return claim._held.snoozed(*arguments)
        case "release":
            return Released()
        case _:
            return CancelledBy(*arguments or (None,))


def only(machine: type[Agreement], *kept: str) -> type[Agreement]:
    """The same machine with these of its rules: what is seldom drawn among all of them is drawn often."""
    rules = [name for name, value in getmembers(machine) if hasattr(value, RULE_MARKER)]
    assert set(kept) <= set(rules)
    others = dict.fromkeys(set(rules) - set(kept))
    return type(machine.__name__, (machine,), others)


# -- a run of it --------------------------------------------------------------------------------------------

PHASES = (Phase.generate, Phase.shrink)


def check_agreement(
    store: RealStore,
    machine: type[Agreement] = Agreement,
    *,
    examples: int,
    derandomize: bool = True,
    phases: Sequence[Phase] = PHASES,
) -> None:
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"store": store}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=derandomize,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
