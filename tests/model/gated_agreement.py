"""The same machine with trains, slots, lasting keys and pipelines.

Beside what a user sees it compares the places at the gates, and holds both stores against what ADR 12 and
18 promise. At the end of each run the machine works everything off: whoever is still there then is stuck.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, multiple, precondition, rule

from dibs import NewJob
from dibs.clock import to_micros
from dibs.jobs.ids import new_pipeline_id
from dibs.jobs.states import FINISHED, WAITING, JobState
from dibs.operations import upkeep
from dibs.operations.scripts import Script, Step
from dibs.operations.settle import exchange
from tests.model.agreement import TICK, Agreement, Twins, some
from tests.model.beside import QUEUES, Places, Seen, Side, places_in_memory
from tests.model.draws import End, ends, plain_jobs, states
from tests.model.moved_agreement import MovedAgreement
from tests.support.internals import begin_schedule, core_of, engine_of, request_of

TRAINS = ("north", "south")
SLOTS = ("desk", "door")

ends_of_heads = st.sampled_from(["advance", "hold"])
on_trains = st.fixed_dictionaries(
    {
        "train": st.sampled_from([*TRAINS, TRAINS[0]]),
        "on_cancelled": ends_of_heads,
        "on_failed": ends_of_heads,
    }
)


def in_slots(*policies: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "slot": st.sampled_from([*SLOTS, SLOTS[0]]),
            "slot_policy": st.sampled_from(policies),
            "slot_limit": st.sampled_from([1, 1, 2, 3]),
        }
    )


no_key: st.SearchStrategy[dict[str, Any]] = st.just({"unique": None})
keys = st.fixed_dictionaries(
    {
        "unique": st.sampled_from(["one", "two"]),
        "unique_for": st.sampled_from([None, 60, 600]),
        "on_conflict": st.sampled_from([None, "keep"]),
    }
)
no_gate: st.SearchStrategy[dict[str, Any]] = st.just({})


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


policies = in_slots("wait", "wait", "replace", "preempt", "drop")

gated_jobs = st.builds(
    joined,
    plain_jobs,
    st.one_of(on_trains, policies, no_gate),
    st.one_of(no_key, no_key, no_key, keys),
)

keyed_jobs = st.builds(joined, gated_jobs, keys, st.just({"unique": "one"}))


def several(gates: st.SearchStrategy[dict[str, Any]], name: dict[str, str]) -> st.SearchStrategy[Any]:
    return st.lists(st.builds(joined, plain_jobs, no_key, gates, st.just(name)), min_size=2, max_size=4)


on_one_train = several(on_trains, {"train": TRAINS[0]})
in_one_slot = several(policies, {"slot": SLOTS[0]})
filters_at_gates = st.builds(
    joined,
    st.one_of(
        st.fixed_dictionaries({"train": st.sampled_from(TRAINS)}),
        st.fixed_dictionaries({"slot": st.sampled_from(SLOTS)}),
    ),
    st.one_of(st.just({}), st.fixed_dictionaries({"state": states})),
)
steps = st.builds(
    joined, plain_jobs, no_key, st.one_of(no_gate, on_trains, in_slots("wait", "replace", "preempt"))
)

# Who waits for whom among up to four jobs: a bit for each pair.
PAIRS = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
ways = st.integers(1, 2 ** len(PAIRS) - 1)


@dataclass(frozen=True)
class Drawn:
    """A pipeline as the machine drew it: (parent, child) of each that waits."""

    id: UUID
    on_failed: str
    jobs: list[dict[str, Any]]
    edges: list[tuple[UUID, UUID]]
    gone: set[UUID] = field(default_factory=set)
    """Who was deleted, pruned or departed: another job may come under its id."""

    def on(self, side: Side) -> Any:
        pipeline = side.face.pipeline("nightly", on_failed=self.on_failed)
        pipeline._draft.id = self.id
        for options in self.jobs:
            parents = [parent for parent, child in self.edges if child == options["id"]]
            pipeline.add(NewJob(**options), after=parents)
        return pipeline


class GatedAgreement(MovedAgreement):
    """Memory and one real store, asked the same, with jobs that wait for each other."""

    new_jobs = gated_jobs
    more_moves = 2  # behind a gate, and through it
    first_states = frozenset({*WAITING, JobState.cancelled})  # superseded by a later one of the same call

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Drawn] = []
        self.ticks = 0
        self.agrees = True

    # -- what is new ----------------------------------------------------------------------------------

    @initialize(target=Agreement.jobs, train=on_one_train, slot=in_one_slot)
    def start_at_gates(self, train: list[dict[str, Any]], slot: list[dict[str, Any]]) -> Any:
        self.both(lambda side: side.age(TICK))  # nobody looks between two beginnings
        jobs = self.enqueue_many([*train, *slot], backwards=False, fresh=True)
        self.both(lambda side: side.age(TICK))
        return jobs

    @initialize(
        target=Agreement.jobs,
        options=st.one_of(st.just([]), st.lists(steps, min_size=2, max_size=3)),
        way=ways,
        on_failed=st.sampled_from(["cancel", "hold"]),
    )
    def start_with_steps(self, options: list[dict[str, Any]], way: int, on_failed: str) -> Any:
        if not options:
            return multiple()
        jobs = self.enqueue_steps(options, way, on_failed)
        self.both(lambda side: side.age(TICK))
        return jobs

    @rule(target=Agreement.jobs, options=st.one_of(on_one_train, in_one_slot))
    def enqueue_at_one_gate(self, options: list[dict[str, Any]]) -> Any:
        return self.enqueue_many(options, backwards=False, fresh=True)

    @rule(options=gated_jobs, key=keys)
    def enqueue_to_replace(self, options: dict[str, Any], key: dict[str, Any]) -> None:
        """Alone: in one call with others its time and theirs may differ by microseconds, or not."""
        self.enqueue_many([options | key | {"on_conflict": "replace"}], backwards=False, fresh=True)

    @rule(target=Agreement.jobs, options=gated_jobs)
    def enqueue_tick(self, options: dict[str, Any]) -> Any:
        self.ticks += 1
        name, job = f"every {self.ticks}", options | {"id": next(self.ids)}
        self.both(lambda side: side.run(lambda _: move_schedule(side, name, NewJob(**job))))
        return NewJob(**job)

    @rule(
        target=Agreement.jobs,
        done=st.lists(Agreement.claims, min_size=1, max_size=2),
        options=st.lists(gated_jobs | keyed_jobs, min_size=1, max_size=3),
    )
    def exchange_with_children(self, done: list[Twins], options: list[dict[str, Any]]) -> Any:
        """Nothing is claimed: whether the same exchange claims the children is open."""
        parents = list({twins.id: twins for twins in done}.values())
        children = [NewJob(**each, id=next(self.ids)) for each in options]

        def deed(side: Side) -> list[UUID]:
            helds = [twins.on(side)._held for twins in parents]
            settlements = [
                held.settled_by(held.succeeded("done"), list(map(copy.copy, children[nth :: len(helds)])))
                for nth, held in enumerate(helds)
            ]
            wish = request_of(side.app, "pod-a", 60, limit=0)
            (lost, _), _ = side.run(lambda _: exchange(settlements, wish))
            return sorted(one.id for one in lost)

        self.both(deed)
        return multiple(*children)

    @rule(target=Agreement.claims, train=st.sampled_from(TRAINS), end=ends)
    def end_head(self, train: str, end: End) -> Any:
        ids = [found.head.id for found in [self.memory.face.trains.get(train)] if found and found.head]
        return self.claim_and_end(ids, end)

    @rule(target=Agreement.claims, slot=st.sampled_from(SLOTS), which=st.integers(0, 3), end=st.none() | ends)
    def start_in_slot(self, slot: str, which: int, end: End | None) -> Any:
        """The next one, or one that overtakes it."""
        waits = [id for id, job in self.before.items() if job["slot"] == slot and job["state"] in WAITING]
        return self.claim_and_end(sorted(waits)[which : which + 1], end)

    @rule(filter=filters_at_gates, verb=st.sampled_from(["cancel_many", "retry_many"]))
    def act_on_many_at_a_gate(self, filter: dict[str, Any], verb: str) -> None:
        self.both(lambda side: side.face.find(**filter))
        self.acted_on_many(filter, verb)

    @precondition(lambda self: self.drawn)
    @rule(target=Agreement.claims, nth=st.integers(0, 9), end=ends)
    def end_step(self, nth: int, end: End) -> Any:
        drawn = self.drawn[nth % len(self.drawn)]
        ids = [one["id"] for one in drawn.jobs if one["id"] in self.before]
        return self.claim_and_end([id for id in ids if self.before[id]["state"] == JobState.ready][:1], end)

    def claim_and_end(self, ids: list[UUID], end: End | None) -> Any:
        claims = [
            twins
            for id in ids
            for twins in self.claimed(
                lambda side, id=id: some(side.face.claim_job(id, worker="pod-b"))
            ).values
        ]
        if end is not None:
            self.both_show_the_same()
            for twins in claims:
                self.settled(twins, end)
        return multiple(*claims)

    @rule(train=st.sampled_from([*TRAINS, "nobody's"]))
    def release_train(self, train: str) -> None:
        self.both(lambda side: side.face.trains.release(train))

    @rule(seconds=st.sampled_from([11, 11, 61]))
    def sweep_when_offers_are_over(self, seconds: int) -> None:
        self.sweep_after(seconds)

    @precondition(lambda self: self.store.can_be_torn)
    @rule(job=Agreement.jobs)
    def delete_by_hand(self, job: NewJob) -> None:
        """What a sweep makes of it is what a proper delete would have done."""
        seen = self.before.get(job.id)
        if seen is not None and seen["state"] in WAITING and self.is_only_gated(seen):
            self.moves = 2
            self.both(
                lambda side: side.face.sweep()
            )  # a turn that is over is passed on before gates are mended
            self.store.delete_by_hand(job.id)
            self.memory.face.delete(job.id)
            self.both(lambda side: side.face.sweep())

    @rule(
        target=Agreement.jobs,
        options=st.lists(steps, min_size=2, max_size=4),
        way=ways,
        on_failed=st.sampled_from(["cancel", "cancel", "hold"]),
    )
    def enqueue_pipeline(self, **given: Any) -> Any:
        return self.enqueue_steps(**given)

    def enqueue_steps(self, options: list[dict[str, Any]], way: int, on_failed: str) -> Any:
        jobs = [each | {"id": next(self.ids)} for each in options]
        pairs = [pair for nth, pair in enumerate(PAIRS) if way & 1 << nth and pair[1] < len(jobs)]
        edges = [(jobs[parent]["id"], jobs[child]["id"]) for parent, child in pairs]
        drawn = Drawn(new_pipeline_id(), on_failed, jobs, edges)
        self.both(lambda side: drawn.on(side).enqueue())
        self.drawn.append(drawn)
        return multiple(*(NewJob(**each) for each in jobs))

    def left(self, ids: set[UUID]) -> None:
        """Whom they waited for stays behind."""
        for drawn in self.drawn:
            drawn.edges[:] = [edge for edge in drawn.edges if edge[1] not in ids]

    @precondition(lambda self: self.drawn)
    @rule(nth=st.integers(0, 9), verb=st.sampled_from(["get", "cancel", "retry", "retry", "enqueue", "open"]))
    def act_on_pipeline(self, nth: int, verb: str) -> None:
        drawn = self.drawn[nth % len(self.drawn)]
        self.by_a_person = verb == "retry"
        if verb == "enqueue":
            self.both(lambda side: drawn.on(side).enqueue())
        elif verb == "open":
            self.both(lambda side: side.run(lambda _: open_pipelines()))
        elif verb == "get":
            self.both(lambda side: pipeline_as_seen(side.face.pipelines.get(drawn.id)))
        else:
            self.both(lambda side: getattr(side.face.pipelines, verb)(drawn.id))

    # -- after every operation ----------------------------------------------------------------------------

    def follows_the_rules(self, now: dict[UUID, Seen]) -> None:
        super().follows_the_rules(now)
        places = places_in_memory(self.memory.app)
        self.compare(in_line(now, places), in_line(now, self.store.places()))
        held, _ = self.both(lambda side: [train_as_seen(train) for train in side.face.trains.list()])
        self.both(lambda side: side.run(lambda _: look_at_slots()))
        for side in (self.memory, self.real):
            check_upcoming(now, side.run(lambda _: upkeep.upcoming()))
        for slot in SLOTS:
            self.both(lambda side, slot=slot: side.face.slots.current(slot))
        check_trains(now, places, {name for name, *_, is_held in held if is_held})
        check_slots(now, places)
        for drawn in self.drawn:
            check_pipeline(now, drawn)

        if self.by_a_person:
            self.take_over_ties()

    def take_over_ties(self) -> None:
        """Retried at once, some stores read the clock for one after the other: then that order counts."""
        live, real = engine_of(self.memory.app)._live, self.real.everything()
        times = defaultdict(set)
        for id, job in live.items():
            times[job["run_at"]].add(real[id]["run_at"].at)
        for id, job in live.items():
            if len(times[job["run_at"]]) > 1:
                job["run_at"] = to_micros(real[id]["run_at"].at)

    def teardown(self) -> None:
        try:
            if self.agrees:
                self.work_everything_off()
        finally:
            super().teardown()

    def work_everything_off(self) -> None:
        for queue in QUEUES:
            self.both(lambda side, queue=queue: side.face.resume(queue))
            self.both(lambda side, queue=queue: side.face.limit(queue, None))
        while self.work_off() or self.release_all():
            pass
        left = {id: job for id, job in self.memory.everything().items() if job["state"] not in FINISHED}
        self.compare(self.memory.everything(), self.real.everything())
        assert set(left) <= set(self.behind_who_failed()), left

    def work_off(self) -> bool:
        self.both(lambda side: side.age(601))
        self.both(lambda side: side.face.sweep())
        most = self.at_most(10)
        claimed = self.claimed(lambda side: side.face.claim(limit=most, worker="pod-a")).values
        for twins in claimed:
            self.both(lambda side, twins=twins: twins.on(side).succeed())
        return bool(claimed)

    def release_all(self) -> bool:
        held = [train.name for train in self.memory.face.trains.held()]
        for name in held:
            self.both(lambda side, name=name: side.face.trains.release(name))
        return bool(held)

    def behind_who_failed(self) -> Iterator[UUID]:
        """Those whom a pipeline keeps waiting for a person, or a person who retried only them."""
        now = self.memory.everything()
        for drawn in self.drawn:
            reached = {id for id, job in now.items() if job["state"] in (JobState.failed, JobState.cancelled)}
            for parent, child in drawn.edges:  # parents come before their children
                if parent in reached:
                    reached.add(child)
            yield from reached

    # -- what the machine knows by itself -------------------------------------------------------------------

    def both(self, deed: Callable[[Side], Any]) -> tuple[Any, Any]:
        self.agrees = False
        answers = super().both(deed)
        self.agrees = True
        return answers

    def compare(self, memory: Any, real: Any) -> None:
        agreed, self.agrees = self.agrees, False
        super().compare(memory, real)
        self.agrees = agreed

    def at_most(self, limit: int) -> int:
        """Of two of one slot that one claim takes, either may be called the later one."""
        wide = [job["slot"] for job in engine_of(self.memory.app)._live.values() if is_wide(job)]
        return limit if len(set(wide)) == len(wide) else min(limit, 1)

    def is_asked(self, id: UUID) -> bool:
        """By a person, or by a job that pre-empts it."""
        job = engine_of(self.memory.app)._live.get(id)
        return job is not None and job["cancel_reason"] is not None

    def is_only_gated(self, job: Seen) -> bool:
        return job["pipeline_id"] is None and (job["train"] is not None or job["slot"] is not None)

    def is_now(self, id: UUID, state: JobState) -> None:
        """Whoever waits again at a gate may have to wait for it, too."""
        now = self.memory.face.get(id)
        is_gated = now.train is not None or now.slot is not None
        assert now.state == state or (is_gated and {now.state, state} <= WAITING)

    def was_swept(self, id: UUID, state: JobState) -> None:
        """A sweep begins with those who are due: one of them may have asked this one to stop."""
        now = self.memory.face.get(id)
        if now.slot is None or now.state != JobState.cancelled:
            self.is_now(id, state)


def is_wide(job: Any) -> bool:
    return job["slot"] is not None and job["slot_limit"] > 1


def look_at_slots() -> Script[list[Any]]:
    which = {"names": None, "held": False, "after": None, "limit": 100}
    rows = yield Step("gates", {"sort": "slot", **which})
    return [(row["name"], row["head"], row["length"], bool(row["held"])) for row in rows]


def open_pipelines() -> Script[list[UUID]]:
    rows = yield Step("pipelines", {"ids": None})
    return sorted(row["id"] for row in rows)


def move_schedule(side: Side, name: str, new: NewJob) -> Script[list[Any]]:
    job = core_of(side.app).registry.prepare(new)
    now = datetime.now(UTC)
    yield from begin_schedule(name, now)
    move = {"schedule": name, "since": now, "revision": 0, "tick": now, "jobs": [job]}
    _, row = yield Step("enqueue_tick", move)
    return [True, str(row["state"])] if row["is_new"] else [False, row["holder"]]


def train_as_seen(train: Any) -> tuple[str, UUID | None, int, bool]:
    return train.name, None if train.head is None else train.head.id, train.length, train.held


def pipeline_as_seen(pipeline: Any) -> Any:
    if pipeline is None:
        return None
    after = sorted((child, sorted(parents)) for child, parents in pipeline.after.items())
    return pipeline.name, pipeline.on_failed, pipeline.counts, pipeline.progress, after, pipeline.jobs


# -- what ADR 12 and 18 promise ---------------------------------------------------------------------------


def at_gates(now: dict[UUID, Seen], places: Places, sort: str) -> Iterable[tuple[str, list[Any]]]:
    """Of each gate its jobs that have a place: (place, limit, job), by place."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for id, (position, limit, _) in places.items():
        if now[id][sort] is not None and position is not None:
            found[now[id][sort]].append((position, limit, now[id]))
    return [(name, sorted(members, key=lambda one: one[0])) for name, members in found.items()]


def in_line(now: dict[UUID, Seen], places: Places) -> Any:
    """Numbers may have gaps, other ones in another store: what counts is their order, and the side of 0."""
    numbers: defaultdict[Any, set[int]] = defaultdict(set)
    for id, (position, _, _) in places.items():
        if position:
            numbers[_gate(now[id]), position > 0].add(abs(position))
    return {id: (_rank(position, numbers, _gate(now[id])), *rest) for id, (position, *rest) in places.items()}


def _rank(position: int | None, numbers: dict[Any, set[int]], gate: Any) -> int | None:
    if not position:
        return position
    rank = sum(number <= abs(position) for number in numbers[gate, position > 0])
    return rank if position > 0 else -rank


def _gate(job: Seen) -> Any:
    return job["train"], job["slot"]


def check_trains(now: dict[UUID, Seen], places: Places, held: set[str]) -> None:
    for name, members in at_gates(now, places, "train"):
        positions = [position for position, _, _ in members]
        states = [job["state"] for _, _, job in members]
        assert len(set(positions)) == len(positions), f"two places are one on train {name}"
        assert set(states[1:]) <= {JobState.blocked}, f"not only the head of train {name} goes"
        assert (states[0] == JobState.blocked) == (name in held), f"train {name} stands, or does not hold"


def check_slots(now: dict[UUID, Seen], places: Places) -> None:
    for name, members in at_gates(now, places, "slot"):
        going = [limit for _, limit, job in members if job["state"] in (JobState.ready, JobState.running)]
        waits = any(job["state"] == JobState.blocked for _, _, job in members)
        assert len(going) <= min(going, default=0), f"too many go in slot {name}"
        assert going or not waits, f"nobody goes in slot {name}"


def check_upcoming(now: dict[UUID, Seen], due: upkeep.Upcoming) -> None:
    """Whoever is ready or due is seen. (An offer that was taken may be looked at once more.)"""
    past = due.now - timedelta(seconds=1)
    times = [job["run_at"].at for job in now.values() if job["state"] == JobState.scheduled]
    times += [job["lease_until"].at for job in now.values() if job["lease_until"] is not None]
    assert due.ready == any(job["state"] == JobState.ready for job in now.values())
    assert due.overdue or not any(at < past for at in times)


def check_pipeline(now: dict[UUID, Seen], drawn: Drawn) -> None:
    drawn.gone.update(job["id"] for job in drawn.jobs if job["id"] not in now)
    for parent, child in drawn.edges:
        both = [now.get(id) for id in (parent, child)]
        stayed = parent not in drawn.gone
        if stayed and all(job is not None and job["pipeline_id"] == drawn.id for job in both):
            before, after = both
            waited = after["state"] in (JobState.blocked, JobState.cancelled) and not after["attempts"]
            assert waited or before["state"] == JobState.succeeded, f"{child} did not wait for {parent}"
