"""The protocol of claim, lease, token and settle as a small model, to be explored state by state.

A world is what the store knows and what the workers believe. Each step is one statement of the store or
one event outside of it: a reply that is lost, a worker that dies, a lease that runs out, a person who
cancels. `explore` tries all orders of them; `judge` says which promise a step broke, if any.

A mutant is the protocol with one guard left out. It must be caught by the promise it was made for, which
is the proof that the promise is being checked at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeVar

from dibs.jobs.states import FINISHED, TRANSITIONS, WAITING, JobState, put_back, swept
from tests.model.explorer import Explored, explore_all

# -- what there is ------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A job as the store has it; the last two are what only an all-seeing judge knows."""

    state: JobState = JobState.ready
    token: int = 0
    attempts: int = 0
    expired: bool = False
    asked: bool = False  # to cancel
    settled: tuple[int, str] = (0, "")  # token and end of the settlement that was applied last
    finishes: int = 0  # since a person last retried it
    runs: int = 0  # claims since then that were not given back


class Hold(NamedTuple):
    """A claim as its worker remembers it; with an end, a settlement whose reply it still waits for."""

    worker: int
    job: int
    token: int
    end: str = ""


class Look(NamedTuple):
    """What a mutant saw before it acts on it."""

    verb: str
    worker: int
    job: int


class World(NamedTuple):
    jobs: tuple[Job, ...]
    sink: tuple[int, ...]  # per job, the newest token that the fenced side effect has seen
    holds: tuple[Hold, ...] = ()
    looks: tuple[Look, ...] = ()
    newest_token: int = 0
    losses: int = 0  # workers that died, claims whose reply never came
    gifts: int = 0  # attempts given back by snooze and release
    retries: int = 0  # by a person


class Deed(NamedTuple):
    """What happened in a step, and what its worker was told."""

    verb: str
    job: int
    worker: int = -1
    token: int = 0
    end: str = ""
    answer: str = "ok"  # ok | lost: it is no longer the holder | unknown: no reply came
    applied: bool = False  # a settlement, and the store changed the job


T = TypeVar("T")
Steps = Iterator[tuple[Deed, World]]

ENDS = ("succeed", "fail", "snooze", "release", "cancel")


# -- what is promised ---------------------------------------------------------------------------------


class Promise(StrEnum):
    one_holder = "a job has at most one holder of a live lease"
    lease_holds = "a lease is kept until it has run out or its holder has settled"
    one_finish = "a job finishes once"
    finished_is_final = "a finished job changes only by a person's retry"
    legal = "a job moves only along the transitions of dibs.jobs.states"
    latest_settles = "only the token of the latest claim settles"
    holder_renews = "only the holder renews"
    asked_never_waits = "a job that was asked to cancel never waits again"
    attempts_count = "a job runs at most max_attempts times, those given back apart"
    truth_is_told = "nobody is told a false outcome"
    sink_in_order = "the fenced sink never takes an older token after a newer one"
    can_finish = "from everywhere all jobs can still finish, without a person's help"


class Mutant(StrEnum):
    claim_looks_first = "claim looks for a ready job and then takes it unguarded"
    token_not_raised = "a second claim has the token of the first"
    token_starts_anew = "tokens count per job and start anew with a retry"
    settle_by_id = "settle asks for neither token nor state"
    settle_by_state = "settle asks for the state and not for the token"
    settle_by_token = "settle asks for the token and not for the state"
    winner_forgotten = "settle does not remember who won"
    everybody_told_yes = "a settlement that was not applied is answered as if it had been"
    renew_by_state = "renew asks for the state and not for the token"
    sweep_looks_first = "sweep looks for expired leases and then takes them unguarded"
    sweep_at_any_time = "sweep does not ask whether the lease has run out"
    sweep_gives_back = "sweep gives the attempt back"
    sweep_needs_the_worker = "sweep only finds jobs whose worker still lives"
    asked_goes_back = "a job that was asked to cancel goes back when it is released"
    cancel_takes_away = "cancel ends a running job under its holder"
    sink_unfenced = "the side effect does not look at tokens"


CAUGHT_BY = {
    Mutant.claim_looks_first: Promise.one_holder,
    Mutant.token_not_raised: Promise.one_holder,
    Mutant.token_starts_anew: Promise.one_holder,
    Mutant.settle_by_id: Promise.latest_settles,
    Mutant.settle_by_state: Promise.latest_settles,
    Mutant.settle_by_token: Promise.one_finish,
    Mutant.winner_forgotten: Promise.truth_is_told,
    Mutant.everybody_told_yes: Promise.truth_is_told,
    Mutant.renew_by_state: Promise.holder_renews,
    Mutant.sweep_looks_first: Promise.finished_is_final,
    Mutant.sweep_at_any_time: Promise.lease_holds,
    Mutant.sweep_gives_back: Promise.attempts_count,
    Mutant.sweep_needs_the_worker: Promise.can_finish,
    Mutant.asked_goes_back: Promise.asked_never_waits,
    Mutant.cancel_takes_away: Promise.lease_holds,
    Mutant.sink_unfenced: Promise.sink_in_order,
}


# -- what can happen ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How many of everything there are, and which guard is missing, if any."""

    jobs: int = 1
    workers: int = 2
    max_attempts: int = 2
    losses: int = 1
    gifts: int = 1
    retries: int = 1
    cancels: bool = True
    mutant: Mutant | None = None

    by_a_person: ClassVar[frozenset[str]] = frozenset({"cancel", "retry"})

    def is_done(self, world: World) -> bool:
        return all(job.state in FINISHED for job in world.jobs)

    def start(self) -> World:
        return World(jobs=(Job(),) * self.jobs, sink=(0,) * self.jobs)

    def steps(self, world: World) -> Steps:
        """Everything that can happen next."""
        yield from self._claims(world)
        yield from self._time(world)
        yield from self._sweeps(world)
        if self.cancels:
            yield from self._cancels(world)
        yield from self._retries(world)
        for hold in world.holds:
            if hold.end:
                yield from self._settles(world, hold, hold.end)
            else:
                yield from self._renews(world, hold)
                yield from self._effects(world, hold)
                for end in self._possible_ends(world):
                    yield from self._settles(world, hold, end)
        yield from self._deaths(world)

    # -- claim

    def _claims(self, world: World) -> Steps:
        busy = {hold.worker for hold in world.holds}
        for worker in set(range(self.workers)) - busy:
            for id, job in enumerate(world.jobs):
                if self.mutant == Mutant.claim_looks_first:
                    yield from self._claim_by_looking(world, Look("claim", worker, id))
                elif job.state == JobState.ready:
                    yield from self._claim(world, worker, id)

    def _claim(self, world: World, worker: int, id: int) -> Steps:
        job = world.jobs[id]
        token = self._next_token(world, job)
        leased = job._replace(
            state=JobState.running,
            token=token,
            attempts=job.attempts + 1,
            runs=job.runs + 1,
            expired=False,
        )
        after = with_job(world, id, leased)._replace(newest_token=max(token, world.newest_token))
        deed = Deed("claim", id, worker, token)
        yield deed, with_hold(after, Hold(worker, id, token))
        if world.losses < self.losses:
            yield deed._replace(answer="unknown"), after._replace(losses=world.losses + 1)

    def _claim_by_looking(self, world: World, look: Look) -> Steps:
        if look in world.looks:
            yield from self._claim(without_look(world, look), look.worker, look.job)
        elif world.jobs[look.job].state == JobState.ready:
            yield Deed("look", look.job, look.worker), with_look(world, look)

    def _next_token(self, world: World, job: Job) -> int:
        match self.mutant:
            case Mutant.token_not_raised if job.token:
                return job.token
            case Mutant.token_starts_anew:
                return job.token + 1
            case _:
                return world.newest_token + 1

    # -- settle, renew, the side effect

    def _possible_ends(self, world: World) -> Iterator[str]:
        for end in ENDS:
            if end not in GIFTS or world.gifts < self.gifts:
                yield end

    def _settles(self, world: World, hold: Hold, end: str) -> Steps:
        job = world.jobs[hold.job]
        deed = Deed("settle", hold.job, hold.worker, hold.token, end)
        if self._may_settle(job, hold):
            settled = with_job(world, hold.job, self._settled(job, hold.token, end))
            settled = settled._replace(gifts=world.gifts + (end in GIFTS))
            deed = deed._replace(applied=True)
            yield deed, without_hold(settled, hold)
            waiting = with_hold(without_hold(settled, hold), hold._replace(end=end))
            yield deed._replace(answer="unknown"), waiting
        else:
            answer = "ok" if self._is_told_yes(job, hold, end) else "lost"
            yield deed._replace(answer=answer), without_hold(world, hold)

    def _may_settle(self, job: Job, hold: Hold) -> bool:
        match self.mutant:
            case Mutant.settle_by_id:
                return job.state != JobState.succeeded
            case Mutant.settle_by_state:
                return job.state == JobState.running
            case Mutant.settle_by_token:
                return job.token == hold.token
            case _:
                return holds(job, hold)

    def _is_told_yes(self, job: Job, hold: Hold, end: str) -> bool:
        match self.mutant:
            case Mutant.winner_forgotten:
                return False
            case Mutant.everybody_told_yes:
                return True
            case _:
                return job.settled == (hold.token, end)

    def _settled(self, job: Job, token: int, end: str) -> Job:
        asked = job.asked and self.mutant != Mutant.asked_goes_back
        state = put_back(self._next_state(job, end), cancel_asked=asked)
        back = end in GIFTS
        return finished_or_waiting(
            job._replace(attempts=job.attempts - back, runs=job.runs - back, settled=(token, end)), state
        )

    def _next_state(self, job: Job, end: str) -> JobState:
        match end:
            case "succeed":
                return JobState.succeeded
            case "fail":
                return JobState.scheduled if job.attempts < self.max_attempts else JobState.failed
            case "snooze":
                return JobState.scheduled
            case "release":
                return JobState.ready
            case _:
                return JobState.cancelled

    def _renews(self, world: World, hold: Hold) -> Steps:
        job = world.jobs[hold.job]
        by_state = self.mutant == Mutant.renew_by_state and job.state == JobState.running
        deed = Deed("renew", hold.job, hold.worker, hold.token)
        if not (holds(job, hold) or by_state):
            yield deed._replace(answer="lost"), without_hold(world, hold)
        elif job.expired:
            yield deed, with_job(world, hold.job, job._replace(expired=False))

    def _effects(self, world: World, hold: Hold) -> Steps:
        newest = world.sink[hold.job]
        if hold.token > newest or (self.mutant == Mutant.sink_unfenced and hold.token < newest):
            sink = replaced(world.sink, hold.job, hold.token)
            yield Deed("effect", hold.job, hold.worker, hold.token), world._replace(sink=sink)

    # -- time, upkeep

    def _time(self, world: World) -> Steps:
        for id, job in enumerate(world.jobs):
            if job.state == JobState.running and not job.expired:
                yield Deed("expire", id), with_job(world, id, job._replace(expired=True))
            if job.state == JobState.scheduled:
                yield Deed("stage", id), with_job(world, id, job._replace(state=JobState.ready))

    def _sweeps(self, world: World) -> Steps:
        for id, job in enumerate(world.jobs):
            if self.mutant == Mutant.sweep_looks_first:
                yield from self._sweep_by_looking(world, Look("sweep", -1, id))
            elif job.state == JobState.running and self._sweep_finds(world, id):
                yield Deed("sweep", id), with_job(world, id, self._swept(job))

    def _sweep_finds(self, world: World, id: int) -> bool:
        match self.mutant:
            case Mutant.sweep_at_any_time:
                return True
            case Mutant.sweep_needs_the_worker:
                return world.jobs[id].expired and any(hold.job == id for hold in world.holds)
            case _:
                return world.jobs[id].expired

    def _sweep_by_looking(self, world: World, look: Look) -> Steps:
        job = world.jobs[look.job]
        if look in world.looks:
            yield Deed("sweep", look.job), with_job(without_look(world, look), look.job, self._swept(job))
        elif job.state == JobState.running and job.expired:
            yield Deed("look", look.job), with_look(world, look)

    def _swept(self, job: Job) -> Job:
        back = self.mutant == Mutant.sweep_gives_back
        state = swept(job.attempts - back, self.max_attempts, cancel_asked=job.asked)
        return finished_or_waiting(job._replace(attempts=job.attempts - back), state)

    # -- people, and what happens to workers

    def _cancels(self, world: World) -> Steps:
        for id, job in enumerate(world.jobs):
            if job.state in WAITING or (
                job.state == JobState.running and self.mutant == Mutant.cancel_takes_away
            ):
                yield Deed("cancel", id), with_job(world, id, finished_or_waiting(job, JobState.cancelled))
            elif job.state == JobState.running and not job.asked:
                yield Deed("cancel", id), with_job(world, id, job._replace(asked=True))

    def _retries(self, world: World) -> Steps:
        if world.retries == self.retries:
            return
        for id, job in enumerate(world.jobs):
            if job.state in (JobState.failed, JobState.cancelled):
                token = 0 if self.mutant == Mutant.token_starts_anew else job.token
                again = Job(token=token, settled=job.settled)
                yield Deed("retry", id), with_job(world, id, again)._replace(retries=world.retries + 1)

    def _deaths(self, world: World) -> Steps:
        if world.losses == self.losses:
            return
        for hold in world.holds:
            yield (
                Deed("die", hold.job, hold.worker),
                without_hold(world, hold)._replace(losses=world.losses + 1),
            )


GIFTS = ("snooze", "release")


def holds(job: Job, hold: Hold) -> bool:
    return job.state == JobState.running and job.token == hold.token


def finished_or_waiting(job: Job, state: JobState) -> Job:
    asked = job.asked and state not in FINISHED
    return job._replace(state=state, expired=False, asked=asked, finishes=job.finishes + (state in FINISHED))


def replaced(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def with_job(world: World, id: int, job: Job) -> World:
    return world._replace(jobs=replaced(world.jobs, id, job))


def with_hold(world: World, hold: Hold) -> World:
    return world._replace(holds=tuple(sorted((*world.holds, hold))))


def without_hold(world: World, hold: Hold) -> World:
    return world._replace(holds=tuple(each for each in world.holds if each != hold))


def with_look(world: World, look: Look) -> World:
    return world._replace(looks=tuple(sorted((*world.looks, look))))


def without_look(world: World, look: Look) -> World:
    return world._replace(looks=tuple(each for each in world.looks if each != look))


# -- which promise a step broke -----------------------------------------------------------------------

Rule = Callable[[Protocol, World, Deed, World], bool]


def _keeps_one_holder(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    job = after.jobs[deed.job]
    believers = [hold for hold in after.holds if hold.job == deed.job and not hold.end and holds(job, hold)]
    taken_from_a_holder = deed.verb == "claim" and before.jobs[deed.job].state == JobState.running
    return len(believers) <= 1 and not taken_from_a_holder


def _keeps_leases(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    was, job = before.jobs[deed.job], after.jobs[deed.job]
    left = was.state == JobState.running and job.state != JobState.running
    return not left or was.expired or deed.verb == "settle"


def _finishes_once(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    return after.jobs[deed.job].finishes <= 1


def _keeps_finished(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    was, job = before.jobs[deed.job], after.jobs[deed.job]
    return was.state not in FINISHED or was.state == job.state or deed.verb == "retry"


def _moves_legally(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    was, state = before.jobs[deed.job].state, after.jobs[deed.job].state
    return was == state or state in TRANSITIONS[was]


def _latest_settles(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    return not deed.applied or before.jobs[deed.job].token == deed.token


def _holder_renews(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    return deed.verb != "renew" or deed.answer == "lost" or before.jobs[deed.job].token == deed.token


def _asked_never_waits(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    job = after.jobs[deed.job]
    return not (before.jobs[deed.job].asked and job.state in WAITING)


def _counts_attempts(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    return 0 <= after.jobs[deed.job].runs <= protocol.max_attempts


def _tells_the_truth(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    if deed.verb != "settle" or deed.applied:
        return True
    return (deed.answer == "ok") == (before.jobs[deed.job].settled == (deed.token, deed.end))


def _sinks_in_order(protocol: Protocol, before: World, deed: Deed, after: World) -> bool:
    return after.sink[deed.job] >= before.sink[deed.job]


RULES: dict[Promise, Rule] = {
    Promise.one_holder: _keeps_one_holder,
    Promise.lease_holds: _keeps_leases,
    Promise.one_finish: _finishes_once,
    Promise.finished_is_final: _keeps_finished,
    Promise.legal: _moves_legally,
    Promise.latest_settles: _latest_settles,
    Promise.holder_renews: _holder_renews,
    Promise.asked_never_waits: _asked_never_waits,
    Promise.attempts_count: _counts_attempts,
    Promise.truth_is_told: _tells_the_truth,
    Promise.sink_in_order: _sinks_in_order,
}


# -- all of it ----------------------------------------------------------------------------------------


def explore(protocol: Protocol, promises: frozenset[Promise] = frozenset(Promise)) -> Explored[Deed]:
    """Every world that can be reached, until one of these promises is broken."""
    rules = {promise: RULES[promise] for promise in promises & RULES.keys()}
    return explore_all(protocol, rules, Promise.can_finish if Promise.can_finish in promises else None)
