"""Who may go at the gate of the model, by the rules of `dibs.jobs.states`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dibs.jobs.gates import fits
from dibs.jobs.states import FINISHED, JobState
from tests.model.gates_words import Job, Kind, Look, Mutant, World
from tests.model.protocol import replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The jobs at one gate, and which guard is missing, if any."""

    kinds: tuple[Kind, ...]
    mutant: Mutant | None = None

    def _members(self, world: World) -> list[int]:
        return [
            id
            for id, job in enumerate(world.jobs)
            if job.place is not None and job.state is not None and job.state not in FINISHED
        ]

    def _running(self, world: World) -> list[int]:
        running = [id for id in self._members(world) if world.jobs[id].state == JobState.running]
        return sorted(running, key=lambda id: world.jobs[id].token)

    def _head(self, world: World) -> int | None:
        return min(self._members(world), key=lambda id: (world.jobs[id].place, id), default=None)

    def _opened(self, world: World) -> World:
        members = self._members(world)
        if not members:
            return world
        return (
            self._opened_slot(world) if self.kinds[members[0]].gate == "slot" else self._opened_train(world)
        )

    def _opened_train(self, world: World) -> World:
        head = self._head(world)
        held = world.gate.held_by is not None and self.mutant != Mutant.held_goes_on
        if head is None or held or world.jobs[head].state != JobState.blocked:
            return world
        return with_job(world, head, world.jobs[head]._replace(state=JobState.ready))

    def _opened_slot(self, world: World) -> World:
        running = [] if self.mutant == Mutant.nobody_counts else self._running(world)
        line = [
            id for id in self._members(world) if world.jobs[id].state in (JobState.blocked, JobState.ready)
        ]
        line.sort(key=lambda id: (world.jobs[id].place, id))
        chosen: list[int] = []
        while len(chosen) < len(line) and self._may_go(world, line[len(chosen)], [*running, *chosen]):
            chosen.append(line[len(chosen)])
        for id in line:
            state = JobState.ready if id in chosen else JobState.blocked
            world = with_job(world, id, world.jobs[id]._replace(state=state))
        return self._preempted(world, chosen, line[len(chosen) :])

    def _may_go(self, world: World, id: int, going: Sequence[int]) -> bool:
        limit = self.kinds[id].limit
        if self.mutant == Mutant.own_limit_only:
            return len(going) < limit
        if self.mutant == Mutant.preempt_takes_away and self.kinds[id].policy == "preempt":
            return True
        return fits(limit, [self.kinds[other].limit for other in going])

    def _preempted(self, world: World, chosen: Sequence[int], waiting: Sequence[int]) -> World:
        if not waiting or (world.jobs[waiting[0]].place or 0) >= 0:
            return world
        running = self._running(world)
        jobs = world.jobs
        stand = [(self.kinds[id].limit, jobs[id].place or 0, jobs[id].asked) for id in running]
        place = -len(jobs) if self.mutant == Mutant.older_preempts else jobs[waiting[0]].place or 0
        ready = [self.kinds[id].limit for id in chosen if self.mutant != Mutant.ready_uncounted]
        for at in _in_the_way(self.kinds[waiting[0]].limit, place, stand, ready):
            world = with_job(world, running[at], world.jobs[running[at]]._replace(asked=True))
        return world

    def _opened_as_if_gone(self, world: World, id: int) -> World:
        """What a mutant lets through that does not see this one."""
        job = world.jobs[id]
        others = self._opened(with_job(world, id, job._replace(state=None)))
        return with_job(others, id, job)


def finished(job: Job, state: JobState) -> Job:
    return job._replace(state=state, expired=False, asked=False)


def with_job(world: World, id: int, job: Job) -> World:
    return world._replace(jobs=replaced(world.jobs, id, job))


def with_look(world: World, look: Look) -> World:
    return world._replace(looks=tuple(sorted((*world.looks, look))))


def without_look(world: World, look: Look) -> World:
    return world._replace(looks=tuple(one for one in world.looks if one != look))


def _in_the_way(
    limit: int, position: int, running: Sequence[tuple[int, int, bool]], ready: Sequence[int]
) -> list[int]:
    """Choose which running jobs (limit, position, asked), oldest first, a pre-empting one asks to stop."""
    staying = [at for at, (_, _, asked) in enumerate(running) if not asked]
    behind = [at for at in staying if running[at][1] > position]
    asked: list[int] = []
    while behind and not fits(limit, [*ready, *(running[at][0] for at in staying)]):
        asked.append(behind.pop(0))
        staying.remove(asked[-1])
    return asked
