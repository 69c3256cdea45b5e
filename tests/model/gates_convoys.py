"""Convoys (ADR 19) of the model: a worker runs those behind its head, and settles all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from dibs.states import JobState
from tests.model.gates_opening import Opening, with_job
from tests.model.gates_words import Convoy, Deed, Hold, Mutant, Steps, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Convoying(Opening):
    """How often a worker may look ahead on the train."""

    convoys: int = 0

    def _moved(self, world: World, id: int, state: JobState, lets_go: bool = True) -> World:
        raise NotImplementedError

    def _in_convoys(self, world: World) -> Steps:
        for hold in world.holds:
            if self._may_lead(world, hold):
                yield from self._looks_ahead(world, hold)
        for convoy in world.convoys:
            yield from self._goes_on(world, convoy)
            if world.gate.locked_by is None:
                yield from self._settles_convoy(world, convoy)

    # -- who runs behind the head

    def _may_lead(self, world: World, hold: Hold) -> bool:
        if world.ahead == self.convoys or self.kinds[hold.job].gate != "train":
            return False
        leads = any(convoy.worker == hold.worker for convoy in world.convoys)
        return not leads and self._leads(world, hold) and world.jobs[hold.job].attempts == 1

    def _leads(self, world: World, hold: Hold) -> bool:
        """A worker stops by its own clock before its lease is over."""
        return self._is_held(world, hold) and not world.jobs[hold.job].expired

    def _is_held(self, world: World, hold: Hold) -> bool:
        job = world.jobs[hold.job]
        return (job.state, job.token) == (JobState.running, hold.token)

    def _looks_ahead(self, world: World, hold: Hold) -> Steps:
        line = sorted(self._members(world), key=lambda id: world.jobs[id].place or 0)
        if self.mutant == Mutant.convoy_out_of_order:
            line.reverse()
        behind = [id for id in line if self._is_behind(world, id, hold.job)]
        fresh = list(takewhile(lambda id: not world.jobs[id].attempts, behind))
        if fresh:
            claims = tuple((id, world.newest_token + nth) for nth, id in enumerate(fresh, 1))
            after = world._replace(ahead=world.ahead + 1, newest_token=world.newest_token + len(fresh))
            convoy = Convoy(hold.worker, hold, claims)
            yield Deed("look ahead", hold.job, hold.worker), with_convoys(after, [*world.convoys, convoy])

    def _is_behind(self, world: World, id: int, head: int) -> bool:
        job = world.jobs[id]
        revives = self.mutant == Mutant.convoy_revives and job.state == JobState.cancelled
        return (job.state == JobState.blocked or revives) and (job.place or 0) > (world.jobs[head].place or 0)

    def _goes_on(self, world: World, convoy: Convoy) -> Steps:
        if convoy.runs:
            yield Deed("ran", convoy.last, convoy.worker), with_instead(world, convoy, runs=False)
        elif convoy.ran < len(convoy.behind) and self._leads(world, convoy.head):
            after = with_instead(world, convoy, ran=convoy.ran + 1, runs=True)
            yield Deed("follow", convoy.behind[convoy.ran][0], convoy.worker), after

    def _without_lease(self, world: World, id: int) -> World:
        """Who runs behind this head is stopped, and comes to nothing."""
        if self.mutant == Mutant.convoy_outlives_lease:
            return world
        for convoy in world.convoys:
            if convoy.runs and convoy.head.job == id and self._is_held(world, convoy.head):
                world = with_instead(world, convoy, ran=convoy.ran - 1, runs=False)
        return world

    # -- settled together

    def _settles_convoy(self, world: World, convoy: Convoy) -> Steps:
        held = self._is_held(world, convoy.head)
        deed = Deed("settle" if held else "lost", convoy.head.job, convoy.worker)
        if held and convoy.runs and self.mutant == Mutant.head_settled_first:
            yield deed, self._moved(self._let_go_of(world, convoy.head), convoy.head.job, JobState.succeeded)
            return
        for end in ("goes on",) if convoy.runs else ("succeed", "fail"):
            yield deed._replace(end=end), self._together(world, convoy, end, held)

    def _together(self, world: World, convoy: Convoy, end: str, held: bool) -> World:
        world = self._let_go_of(world, convoy.head)
        world = with_convoys(world, [one for one in world.convoys if one != convoy])
        started = []
        for id, token in convoy.behind[: convoy.ran]:
            fenced = held or self.mutant == Mutant.convoy_unfenced
            if fenced and self._is_behind(world, id, convoy.head.job):
                running = world.jobs[id]._replace(state=JobState.running, token=token, attempts=1)
                world = with_job(world, id, running)
                started.append(Hold(convoy.worker, id, token))
        if held:
            world = self._moved(world, convoy.head.job, JobState.succeeded)
        return self._ended_in_turn(world, started, convoy.last, end)

    def _ended_in_turn(self, world: World, started: Sequence[Hold], last: int, end: str) -> World:
        for hold in started:
            if hold.job == last and end == "goes on":
                world = world._replace(holds=tuple(sorted((*world.holds, hold))))
            else:
                failed = hold.job == last and end == "fail"
                world = self._moved(world, hold.job, JobState.failed if failed else JobState.succeeded)
        return world

    def _let_go_of(self, world: World, hold: Hold) -> World:
        return world._replace(holds=tuple(one for one in world.holds if one != hold))


def with_convoys(world: World, convoys: Sequence[Convoy]) -> World:
    return world._replace(convoys=tuple(sorted(convoys)))


def with_instead(world: World, convoy: Convoy, **new: object) -> World:
    others = [one for one in world.convoys if one != convoy]
    return with_convoys(world, [*others, convoy._replace(**new)])
