"""Trains, slots and pipelines (ADR 12, 18) as a small model, to be explored state by state.

There is one gate, and whoever changes who may go locks it: so a question at the gate is one step. A producer
is slow: between its first step, in which it locks the gate, and its commit others may do what needs no
lock, claim above all. A mutant leaves a lock or a guard out, mostly by looking in one step and acting on it
in a later one. Who may go is decided by `dibs.jobs.states`, as in every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dibs.jobs.gates import fits, holds
from dibs.jobs.states import FINISHED, WAITING, JobState, put_back, swept
from tests.model.gates_opening import Opening, finished, with_job, with_look, without_look
from tests.model.gates_words import (
    ENDS,
    GIFTS,
    UNLOCKED,
    Deed,
    Gate,
    Hold,
    Job,
    Kind,
    Look,
    Mutant,
    Steps,
    Unborn,
    World,
)
from tests.model.protocol import replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates(Opening):
    """What the jobs are, how much may go wrong, and which guard is missing, if any."""

    workers: int = 2
    max_attempts: int = 1
    losses: int = 1
    gifts: int = 0
    people: int = 0
    turns: int = 1  # how often a slot's turn may be passed on
    verbs: tuple[str, ...] = ("cancel", "retry", "release_train")  # what people do

    by_a_person: ClassVar[frozenset[str]] = frozenset({"cancel", "retry", "release_train", "delete_by_hand"})

    def start(self) -> World:
        """Those who wait for others, and whom they wait for, are stored at once; all others by producers."""
        steps = {id for id, kind in enumerate(self.kinds) if kind.parents}
        steps |= {parent for kind in self.kinds for parent in kind.parents}
        many = 1 + max(kind.producer for kind in self.kinds)
        todo = [
            tuple(id for id, kind in enumerate(self.kinds) if id not in steps and kind.producer == producer)
            for producer in range(many)
        ]
        return World(
            jobs=tuple(self._first(id, id in steps) for id in range(len(self.kinds))), todo=tuple(todo)
        )

    def _first(self, id: int, is_step: bool) -> Job:
        if not is_step:
            return Job()
        return Job(state=JobState.blocked if self.kinds[id].parents else JobState.ready)

    def is_done(self, world: World) -> bool:
        if any(world.todo) or world.unborn or world.looks:
            return False
        return all(self._has_ended(world, id) for id in range(len(self.kinds)))

    def _has_ended(self, world: World, id: int) -> bool:
        """Or waits for a person."""
        job, kind = world.jobs[id], self.kinds[id]
        if job.state is None or job.state in FINISHED:
            return True
        if job.state != JobState.blocked:
            return False
        if job.place is not None:
            return kind.gate == "train" and world.gate.held_by is not None
        ended = (JobState.failed, JobState.cancelled, JobState.blocked)
        return any(
            world.jobs[parent].state in ended and self._has_ended(world, parent) for parent in kind.parents
        )

    def steps(self, world: World) -> Steps:
        """Everything that can happen next."""
        for producer in range(len(world.todo)):
            yield from self._produces(world, producer)
        yield from self._claims(world)
        yield from self._overtakes(world)
        for hold in world.holds:
            yield from self._settles(world, hold)
        yield from self._time(world)
        if world.gate.locked_by is None:
            yield from self._sweeps(world)
            yield from self._turns(world)
            yield from self._mends(world)
            yield from self._people(world)
        yield from self._late(world)
        yield from self._deaths(world)

    # -- enqueue

    def _produces(self, world: World, producer: int) -> Steps:
        for unborn in world.unborn:
            if unborn.producer == producer:
                yield Deed("commit", unborn.job, producer), self._committed(world, unborn)
                yield Deed("roll back", unborn.job, producer), self._rolled_back(world, unborn)
                return
        if world.todo[producer] and (self.mutant in UNLOCKED or world.gate.locked_by is None):
            yield self._begin(world, producer)

    def _begin(self, world: World, producer: int) -> tuple[Deed, World]:
        id, *others = world.todo[producer]
        gate = world.gate
        place = self._new_place(gate, self.kinds[id])
        unborn = Unborn(producer, id, place, self._has_room(world, id))
        if self.mutant == Mutant.place_by_luck:
            gate = gate._replace(last=max(gate.last, abs(place)))
        if self.mutant not in UNLOCKED:
            gate = gate._replace(locked_by=producer)
        after = world._replace(
            gate=gate,
            todo=replaced(world.todo, producer, tuple(others)),
            unborn=tuple(sorted((*world.unborn, unborn))),
        )
        return Deed("enqueue", id, producer), after

    def _new_place(self, gate: Gate, kind: Kind) -> int:
        if kind.gate == "train":
            return gate.last + 1
        return -(gate.last + 1) if kind.policy == "preempt" else 0

    def _has_room(self, world: World, id: int) -> bool:
        going = [self.kinds[other].limit for other in self._members(world)]
        return fits(self.kinds[id].limit, going)

    def _committed(self, world: World, unborn: Unborn) -> World:
        kind, id = self.kinds[unborn.job], unborn.job
        world = self._without(world, unborn)
        if kind.policy == "drop":
            has_room = unborn.is_free if self.mutant == Mutant.drop_looks_first else self._has_room(world, id)
            if not has_room:
                return world
        if kind.policy == "replace":
            world = self._superseded(world)
        world = self._joined(world, id, unborn.place)
        if self.mutant == Mutant.gate_not_locked and unborn.is_free:
            return with_job(world, id, world.jobs[id]._replace(state=JobState.ready))
        return self._opened(world)

    def _rolled_back(self, world: World, unborn: Unborn) -> World:
        return self._without(world, unborn)

    def _without(self, world: World, unborn: Unborn) -> World:
        gate = world.gate
        if gate.locked_by == unborn.producer:
            gate = gate._replace(locked_by=None)
        return world._replace(gate=gate, unborn=tuple(one for one in world.unborn if one != unborn))

    def _joined(self, world: World, id: int, place: int | None) -> World:
        """A live job gets a place, a new one if none is given, and waits there."""
        gate = world.gate
        if place is None:
            place = self._new_place(gate, self.kinds[id])
        gate = gate._replace(last=max(gate.last, abs(place)), newest=gate.newest + 1)
        order = place if self.mutant == Mutant.place_by_luck else gate.newest
        job = world.jobs[id]._replace(state=JobState.blocked, place=place, order=order)
        return with_job(world._replace(gate=gate), id, job)

    def _superseded(self, world: World) -> World:
        ended = WAITING | {JobState.running} if self.mutant == Mutant.replace_ends_all else WAITING
        for id in self._members(world):
            if world.jobs[id].state in ended:
                world = with_job(world, id, finished(world.jobs[id], JobState.cancelled))
        return world

    # -- claim

    def _claims(self, world: World) -> Steps:
        for worker in self._idle(world):
            for id, job in enumerate(world.jobs):
                if job.state == JobState.ready:
                    yield Deed("claim", id, worker), self._leased(world, worker, id)

    def _overtakes(self, world: World) -> Steps:
        """Claimed by name: a slot's job that waits goes before those who have not started."""
        looks_first = self.mutant == Mutant.overtake_looks_first
        for worker in self._idle(world):
            for id in self._members(world):
                if self.kinds[id].gate != "slot" or world.jobs[id].state != JobState.blocked:
                    continue
                look = Look("overtake", worker, id)
                going = [self.kinds[other].limit for other in self._running(world)]
                if look in world.looks:
                    yield Deed("overtake", id, worker), self._overtaken(without_look(world, look), worker, id)
                elif world.gate.locked_by is None and fits(self.kinds[id].limit, going):
                    if looks_first:
                        yield Deed("look", id, worker), with_look(world, look)
                    else:
                        yield Deed("overtake", id, worker), self._overtaken(world, worker, id)

    def _overtaken(self, world: World, worker: int, id: int) -> World:
        return self._opened(self._leased(world, worker, id))

    def _leased(self, world: World, worker: int, id: int) -> World:
        token = world.newest_token + 1
        job = world.jobs[id]
        running = job._replace(state=JobState.running, token=token, attempts=job.attempts + 1, expired=False)
        world = with_job(world, id, running)._replace(newest_token=token)
        return world._replace(holds=tuple(sorted((*world.holds, Hold(worker, id, token)))))

    def _idle(self, world: World) -> set[int]:
        return set(range(self.workers)) - {hold.worker for hold in world.holds}

    # -- settle

    def _settles(self, world: World, hold: Hold) -> Steps:
        held = self._is_held(world, hold) or self.mutant == Mutant.settle_unfenced
        for end in ENDS if held else ("succeed",):
            if end in GIFTS and world.gifts == self.gifts:
                continue
            yield from self._settles_as(world, hold, end, held)

    def _is_held(self, world: World, hold: Hold) -> bool:
        job = world.jobs[hold.job]
        return (job.state, job.token) == (JobState.running, hold.token)

    def _settles_as(self, world: World, hold: Hold, end: str, held: bool) -> Steps:
        deed = Deed("settle", hold.job, hold.worker, end)
        if world.gate.locked_by is not None and self._needs_gate(hold.job):
            return
        after = self._let_go_of(world, hold)
        if not held:
            lets_go = self.mutant == Mutant.zombie_lets_go
            yield deed._replace(verb="lost"), self._let_go(after, hold.job) if lets_go else after
        elif self._looks_before_it_settles(hold.job, end) and not self._looked(world, hold):
            saw = all(self._is_met(world, child, but=hold.job) for child in self._children(hold.job))
            yield (
                Deed("look", hold.job, hold.worker),
                with_look(world, Look("settle", hold.worker, hold.job, saw)),
            )
        elif self.mutant == Mutant.advance_first and end == "succeed" and not self._looked(world, hold):
            opened = self._opened_as_if_gone(world, hold.job)
            yield (
                Deed("advance", hold.job, hold.worker),
                with_look(opened, Look("settle", hold.worker, hold.job)),
            )
        else:
            looked = self._looked(after, hold)
            after = after._replace(looks=tuple(one for one in after.looks if one not in looked))
            after = after._replace(gifts=after.gifts + (end in GIFTS))
            yield deed, self._settled(after, hold, end, saw=all(look.saw for look in looked))

    def _let_go_of(self, world: World, hold: Hold) -> World:
        return world._replace(holds=tuple(one for one in world.holds if one != hold))

    def _looks_before_it_settles(self, id: int, end: str) -> bool:
        return self.mutant == Mutant.parents_look_first and end == "succeed" and bool(self._children(id))

    def _looked(self, world: World, hold: Hold) -> list[Look]:
        return [
            one for one in world.looks if (one.verb, one.actor, one.job) == ("settle", hold.worker, hold.job)
        ]

    def _settled(self, world: World, hold: Hold, end: str, saw: bool) -> World:
        job = world.jobs[hold.job]
        state = put_back(self._next_state(job, end), cancel_asked=job.asked)
        if end in GIFTS:
            job = job._replace(attempts=job.attempts - 1)
        if self.mutant == Mutant.advance_later and end == "succeed" and self._needs_gate(hold.job):
            world = with_job(world, hold.job, finished(job, state))
            return with_look(world, Look("advance", hold.worker, hold.job))
        return self._moved(with_job(world, hold.job, job), hold.job, state, lets_go=saw)

    def _next_state(self, job: Job, end: str) -> JobState:
        match end:
            case "succeed":
                return JobState.succeeded
            case "fail":
                return JobState.ready if job.attempts < self.max_attempts else JobState.failed
            case "snooze":
                return JobState.scheduled
            case _:
                return JobState.ready

    def _late(self, world: World) -> Steps:
        """What a mutant does in a transaction of its own."""
        for look in world.looks:
            if look.verb == "advance" and world.gate.locked_by is None:
                yield Deed("advance", look.job, look.actor), self._opened(without_look(world, look))

    def _moved(self, world: World, id: int, state: JobState, lets_go: bool = True) -> World:
        """A job ends or waits again; then the gate is opened, and those after it are told."""
        job, kind = world.jobs[id], self.kinds[id]
        if state in FINISHED:
            was_head = kind.gate == "train" and self._head(world) == id
            if self.mutant == Mutant.follower_holds:
                was_head = kind.gate == "train"
            world = with_job(world, id, finished(job, state))
            if was_head and world.gate.held_by is None and holds(state, kind.on_failed, kind.on_failed):
                world = world._replace(gate=world.gate._replace(held_by=id))
        elif kind.gate == "slot":
            waits = JobState.scheduled if state == JobState.scheduled else JobState.blocked
            world = with_job(world, id, job._replace(state=waits, expired=False))
        elif kind.gate == "train" and self.mutant == Mutant.back_to_the_end:
            gate = world.gate._replace(last=world.gate.last + 1)
            world = with_job(world, id, job._replace(state=JobState.blocked, expired=False, place=gate.last))
            world = world._replace(gate=gate)
        else:
            world = with_job(world, id, job._replace(state=state, expired=False))
        world = self._opened(world)
        return self._went_on(world, id, lets_go) if state in FINISHED else world

    # -- those after it

    def _children(self, id: int) -> list[int]:
        return [child for child, kind in enumerate(self.kinds) if id in kind.parents]

    def _needs_gate(self, id: int) -> bool:
        return bool(self.kinds[id].gate) or any(self.kinds[child].gate for child in self._children(id))

    def _is_met(self, world: World, child: int, but: int | None = None) -> bool:
        parents = [parent for parent in self.kinds[child].parents if parent != but]
        return all(world.jobs[parent].state == JobState.succeeded for parent in parents)

    def _went_on(self, world: World, id: int, lets_go: bool) -> World:
        if world.jobs[id].state == JobState.succeeded:
            return self._let_go(world, id) if lets_go else world
        if self.kinds[id].dooms and self.mutant != Mutant.doomed_wait:
            return self._doomed(world, id)
        return world

    def _let_go(self, world: World, id: int) -> World:
        careless = self.mutant in (Mutant.any_parent, Mutant.zombie_lets_go)
        for child in self._children(id):
            waits = (world.jobs[child].state, world.jobs[child].place) == (JobState.blocked, None)
            if waits and (careless or self._is_met(world, child)):
                world = self._set_off(world, child)
        return world

    def _set_off(self, world: World, id: int) -> World:
        if self.kinds[id].gate:
            return self._opened(self._joined(world, id, None))
        return with_job(world, id, world.jobs[id]._replace(state=JobState.ready))

    def _doomed(self, world: World, id: int) -> World:
        for child in self._children(id):
            job = world.jobs[child]
            if (job.state, job.place) == (JobState.blocked, None):
                world = with_job(world, child, finished(job, JobState.cancelled)._replace(doomed=True))
                world = self._doomed(world, child)
        return world

    def _revived(self, world: World, id: int) -> World:
        for child in self._children(id):
            alive = [
                world.jobs[parent].state in WAITING | {JobState.running, JobState.succeeded}
                for parent in self.kinds[child].parents
            ]
            if world.jobs[child].doomed and all(alive):
                world = with_job(world, child, Job(state=JobState.blocked, token=world.jobs[child].token))
                world = self._revived(world, child)
        return world

    # -- time, upkeep

    def _time(self, world: World) -> Steps:
        for id, job in enumerate(world.jobs):
            if job.state == JobState.running and not job.expired:
                yield Deed("expire", id), with_job(world, id, job._replace(expired=True))
            if job.state == JobState.scheduled and self.kinds[id].gate != "slot":
                yield Deed("stage", id), with_job(world, id, job._replace(state=JobState.ready))

    def _sweeps(self, world: World) -> Steps:
        for id, job in enumerate(world.jobs):
            if job.state == JobState.running and job.expired:
                state = swept(job.attempts, self.max_attempts, cancel_asked=job.asked)
                yield Deed("sweep", id), self._moved(world, id, state)
            if job.state == JobState.scheduled and self.kinds[id].gate == "slot":
                yield (
                    Deed("stage", id),
                    self._opened(with_job(world, id, job._replace(state=JobState.blocked))),
                )

    def _turns(self, world: World) -> Steps:
        """A slot's turn that nobody took goes to the next; so often that it is seen, and not for ever."""
        waits = any(world.jobs[id].state == JobState.blocked for id in self._members(world))
        for id in self._members(world):
            if self.kinds[id].gate != "slot":
                continue
            job, look = world.jobs[id], Look("turn", -1, id)
            if look in world.looks:
                yield Deed("pass on", id), self._opened_as_if_gone(without_look(world, look), id)
            elif job.state == JobState.ready and waits and world.gate.last < self.turns:
                if self.mutant == Mutant.turn_passed_unseen:
                    yield Deed("look", id), with_look(world, look)
                else:
                    gate = world.gate._replace(last=world.gate.last + 1)
                    later = with_job(world, id, job._replace(place=gate.last))._replace(gate=gate)
                    yield Deed("pass on", id), self._opened(later)

    def _mends(self, world: World) -> Steps:
        if world.torn and self.mutant != Mutant.nobody_mends:
            gate = world.gate
            if gate.held_by is not None and world.jobs[gate.held_by].state is None:
                gate = gate._replace(held_by=None)
            yield Deed("mend"), self._opened(world._replace(gate=gate, torn=False))

    # -- people, and what happens to workers

    def _people(self, world: World) -> Steps:
        if world.people == self.people:
            return
        for deed, after in self._deeds_of_people(world):
            if deed.verb in self.verbs:
                yield deed, after._replace(people=world.people + 1)

    def _deeds_of_people(self, world: World) -> Steps:
        if world.gate.held_by is not None:
            released = world._replace(gate=world.gate._replace(held_by=None))
            yield Deed("release_train"), self._opened(released)
        for id, job in enumerate(world.jobs):
            if job.state in WAITING:
                yield Deed("cancel", id), self._moved(world, id, JobState.cancelled)
            elif job.state == JobState.running and not job.asked:
                yield Deed("cancel", id), with_job(world, id, job._replace(asked=True))
            elif job.state in (JobState.failed, JobState.cancelled):
                yield Deed("retry", id), self._retried(world, id)
            if job.place is not None and job.state in WAITING:
                yield Deed("delete_by_hand", id), with_job(world, id, Job())._replace(torn=True)

    def _retried(self, world: World, id: int) -> World:
        old, kind = world.jobs[id], self.kinds[id]
        world = with_job(world, id, Job(state=JobState.blocked, token=old.token, order=old.order))
        if not self._is_met(world, id):
            return self._revived(world, id)
        if not kind.gate:
            world = with_job(world, id, world.jobs[id]._replace(state=JobState.ready))
        elif world.gate.held_by == id:
            back = world.jobs[id]._replace(place=old.place)
            world = with_job(world, id, back)._replace(gate=world.gate._replace(held_by=None))
            world = self._opened(world)
        else:
            world = self._opened(self._joined(world, id, 0 if kind.gate == "slot" else None))
        return self._revived(world, id)

    def _deaths(self, world: World) -> Steps:
        if world.losses == self.losses:
            return
        for hold in world.holds:
            left = self._let_go_of(world, hold)._replace(
                looks=tuple(look for look in world.looks if look.actor != hold.worker),
            )
            yield Deed("die", hold.job, hold.worker), left._replace(losses=world.losses + 1)
        for look in world.looks:
            if look.verb == "advance":
                yield (
                    Deed("die", look.job, look.actor),
                    without_look(world, look)._replace(losses=world.losses + 1),
                )
