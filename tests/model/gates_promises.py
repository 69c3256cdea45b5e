"""Which promise of the gates a step broke."""

from __future__ import annotations

from dibs.jobs.gates import fits
from dibs.jobs.states import FINISHED, JobState
from tests.model.explorer import Explored, Rule, explore_all
from tests.model.gates_protocol import Gates
from tests.model.gates_words import Deed, Promise, World


def _running_at(gates: Gates, world: World, sort: str) -> list[int]:
    jobs = enumerate(world.jobs)
    return [id for id, job in jobs if gates.kinds[id].gate == sort and job.state == JobState.running]


def _one_at_a_time(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    return len(_running_at(gates, after, "train")) <= 1


def _in_order(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    if deed.verb == "commit" and gates.kinds[deed.job].gate == "train":
        orders = [job.order for job in after.jobs if job.token]
        return after.jobs[deed.job].order > max(orders, default=0) or after.jobs[deed.job].state is None
    if deed.verb != "claim" or gates.kinds[deed.job].gate != "train":
        return True
    waiting = [before.jobs[id].order for id in gates._members(before) if id != deed.job]
    return before.jobs[deed.job].order < min(waiting, default=before.jobs[deed.job].order + 1)


def _within_limit(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    limits = [gates.kinds[id].limit for id in _running_at(gates, after, "slot")]
    return len(limits) <= min(limits, default=0)


def _somebody_goes(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    members = gates._members(after)
    waits = any(after.jobs[id].state == JobState.blocked for id in members)
    goes = any(after.jobs[id].state != JobState.blocked for id in members if _counts(gates, after, id))
    return not waits or goes or after.gate.held_by is not None or after.torn


def _counts(gates: Gates, world: World, id: int) -> bool:
    """A train waits for a head that is not due, a slot for nobody who is not."""
    return gates.kinds[id].gate == "train" or world.jobs[id].state != JobState.scheduled


def _held_holds(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    if before.gate.held_by is None or after.gate.held_by is None:
        return True
    went = (JobState.ready, JobState.running)
    pairs = zip(before.jobs, after.jobs, strict=True)
    moved = [id for id, (was, job) in enumerate(pairs) if job.state in went and was.state not in went]
    return not any(gates.kinds[id].gate == "train" for id in moved)


def _heads_hold(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    holder = after.gate.held_by
    if holder in (None, before.gate.held_by):
        return True
    places = [after.jobs[id].place or 0 for id in gates._members(after)]
    return all(place > (after.jobs[holder].place or 0) for place in places)


def _ended_stays(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    pairs = zip(before.jobs, after.jobs, strict=True)
    return deed.verb in gates.by_a_person or all(
        job.state == was.state for was, job in pairs if was.state in FINISHED
    )


def _running_is_spared(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    for id, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True)):
        left = was.state == JobState.running and (job.state, job.token) != (was.state, was.token)
        if left and not (
            id == deed.job and (deed.verb == "settle" or (deed.verb == "sweep" and was.expired))
        ):
            return False
    return True


def _newer_stays(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    pairs = enumerate(zip(before.jobs, after.jobs, strict=True))
    asked = [id for id, (was, job) in pairs if job.asked and not was.asked]
    waiting = [after.jobs[id].place or 0 for id in gates._members(after) if id not in asked]
    return deed.verb in gates.by_a_person or all(
        min(waiting, default=0) < (after.jobs[id].place or 0) for id in asked
    )


def _urgent_asks(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    jobs, members = after.jobs, gates._members(after)
    waiting = [id for id in members if jobs[id].state == JobState.blocked]
    first = min(waiting, key=lambda id: (jobs[id].place, id), default=None)
    if first is None or (jobs[first].place or 0) >= 0 or after.torn:
        return True
    running = [id for id in members if jobs[id].state == JobState.running and not jobs[id].asked]
    ready = [id for id in members if jobs[id].state == JobState.ready]
    behind = [id for id in running if (jobs[id].place or 0) > (jobs[first].place or 0)]
    return not behind or fits(gates.kinds[first].limit, [gates.kinds[id].limit for id in [*running, *ready]])


def _parents_first(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    starts = deed.verb in ("claim", "overtake")
    return not starts or gates._is_met(before, deed.job)


def _children_go(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    waiting = [id for id, job in enumerate(after.jobs) if (job.state, job.place) == (JobState.blocked, None)]
    return not any(gates._is_met(after, id) for id in waiting)


def _doomed_end(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    ended = (JobState.failed, JobState.cancelled)
    for id, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True)):
        if was.state not in ended and job.state in ended and gates.kinds[id].dooms:
            after_it = [after.jobs[child] for child in gates._children(id)]
            if any((child.state, child.place) == (JobState.blocked, None) for child in after_it):
                return False
    return True


def _drop_keeps_room(gates: Gates, before: World, deed: Deed, after: World) -> bool:
    stored = deed.verb == "commit" and after.jobs[deed.job].state is not None
    return not (stored and gates.kinds[deed.job].policy == "drop") or gates._has_room(before, deed.job)


RULES: dict[Promise, Rule[World, Deed]] = {
    Promise.one_at_a_time: _one_at_a_time,
    Promise.in_order: _in_order,
    Promise.within_limit: _within_limit,
    Promise.somebody_goes: _somebody_goes,
    Promise.held_holds: _held_holds,
    Promise.heads_hold: _heads_hold,
    Promise.ended_stays: _ended_stays,
    Promise.running_is_spared: _running_is_spared,
    Promise.newer_stays: _newer_stays,
    Promise.urgent_asks: _urgent_asks,
    Promise.parents_first: _parents_first,
    Promise.children_go: _children_go,
    Promise.doomed_end: _doomed_end,
    Promise.drop_keeps_room: _drop_keeps_room,
}


def explore(gates: Gates, promises: frozenset[Promise] = frozenset(Promise)) -> Explored[Deed]:
    """Every world that can be reached, until one of these promises is broken."""
    rules = {promise: RULES[promise] for promise in promises & RULES.keys()}
    return explore_all(gates, rules, Promise.can_finish if Promise.can_finish in promises else None)
