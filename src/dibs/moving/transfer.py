"""The move itself: batch by batch until nothing is left that can be moved; its checks and its report."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from shlex import quote
from typing import Any, Literal, Self
from uuid import UUID, uuid4

from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest, Refused
from dibs.faces import Calls, sleep
from dibs.jobs.job import Job, read_stored
from dibs.jobs.states import WAITING, JobState
from dibs.moving.stores import MOST_AT_ONCE, Stores
from dibs.operations import manage, queries, upkeep
from dibs.operations.queries import Queue
from dibs.operations.schedules import copy_schedule, stored_schedules
from dibs.operations.scripts import Rows, Script, Step
from dibs.settings import Duration, span
from dibs.text import numbered

Running = Literal["wait", "leave"]
Told = Callable[[int, int], None]  # how many jobs were moved, of how many

FIRST_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmovedJob:
    """A job that stayed where it was: a job of the target has its unique key."""

    id: UUID
    unique: str
    holder: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """The result of a move."""

    jobs: dict[str, int]
    """How many jobs were stored in the target, by state."""
    known: int
    """How many the target had already, by their ids."""
    refused: list[UnmovedJob]
    queues: int
    """How many queues have a setting that was copied."""
    schedules: int
    """How many schedules have a last tick that was copied."""
    source: dict[str, int]
    """What the source holds now, by state."""
    target: dict[str, int]
    paused: list[str]
    """Which queues of the target are paused now."""
    problems: list[str]
    """What does not add up, a sentence each; empty when everything is in the target."""

    def without_lock(self) -> Self:
        """Return the report without the job of the target that was the lock of this move."""
        return replace(self, target={**self.target, "running": self.target["running"] - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePreview:
    """What a move would do."""

    jobs: dict[str, int]
    """How many jobs would be moved, by state; jobs that are on their way already are `departed`."""
    running: int
    staying: dict[str, int]
    """How many would stay, by queue: they wait in trains or for slots, and their queue is not paused."""
    held: list[str]
    """What would stay on held trains, and what to do about it, a sentence for each train."""
    queues: int
    schedules: int
    target: dict[str, int]


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """What to do about running jobs, and the function that is called with the progress."""

    running: Running
    timeout: Duration | None
    told: Told | None

    def __post_init__(self) -> None:
        if self.running not in ("wait", "leave"):
            raise BadRequest(f"running={self.running!r} is unknown: use 'wait' or 'leave'")
        if self.timeout is not None:
            span(self.timeout, what="timeout")

    def deadline(self) -> float:
        if self.timeout is None:
            return float("inf")
        return monotonic() + span(self.timeout, what="timeout") / SECOND


@dataclass(slots=True)
class MoveProgress:
    """What a move has done so far."""

    source: UUID
    target: UUID
    total: int
    told: Told | None
    limit: int = FIRST_BATCH
    jobs: Counter[str] = field(default_factory=Counter)
    known: int = 0
    refused: dict[UUID, UnmovedJob] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return self.jobs.total() + self.known

    def report(self) -> None:
        if self.told is not None:
            self.told(self.done, max(self.total, self.done))


# -- All of it ----------------------------------------------------------------------------------

TEXT_AT_ONCE = 4 * 1024 * 1024  # characters; a batch is cut to about this much
POLL = 0.2  # seconds between two checks of the jobs that still run


def transfer_all(stores: Stores, options: MoveOptions) -> Calls[MoveReport]:
    source, target = yield from identify(stores)
    before = yield from stores.counts("target")
    left = yield from stores.counts("source")
    progress = MoveProgress(source, target, sum(left.values()), options.told)
    queues = yield from _copy_settings(stores)
    yield from _copy_schedules(stores)
    yield from _transfer(stores, progress, options)
    schedules = yield from _copy_schedules(stores)
    return (yield from _compare(stores, progress, options, before, queues, schedules))


# -- Before -------------------------------------------------------------------------------------


def identify(stores: Stores) -> Calls[tuple[UUID, UUID]]:
    """Return the ids of both stores; `Refused` if one of them is part of another move."""
    [source] = yield from stores.question("source", "identify", new=uuid4())
    [target] = yield from stores.question("target", "identify", new=uuid4())
    _refuse_same(source["id"], target["id"])
    elsewhere = [row for row in (yield from stores.departed("source")) if row["store"] != target["id"]]
    if elsewhere:
        raise Refused(
            f"{numbered(len(elsewhere), 'job')} of the source {_on_the_way(len(elsewhere))} elsewhere; "
            "run that move again first or, if that store is gone for good, `dibs move --from … --give-back`"
        )
    if leaving := (yield from stores.departed("target")):
        raise Refused(
            f"{numbered(len(leaving), 'job')} of the target {_on_the_way(len(leaving))} to another store; "
            "run that move again first"
        )
    return source["id"], target["id"]


def _refuse_same(source: object, target: object) -> None:
    if source == target:
        raise Refused("both addresses lead to the same store: there is nothing to move")


def _on_the_way(number: int) -> str:
    return "is on its way" if number == 1 else "are on their way"


def _copy_settings(stores: Stores) -> Calls[int]:
    """Pause in the target what is paused in the source, before its jobs come; keep limits that are set.

    A queue whose jobs have all come already may have been resumed there since.
    """
    theirs = {queue.name: queue for queue in (yield from stores.ask("target", queries.queues))}
    ours = yield from stores.ask("source", queries.queues)
    for queue in ours:
        there = theirs.get(queue.name)
        setting: dict[str, Any] = {}
        if queue.paused and (there is None or (queue.counts and not there.paused)):
            setting["paused"] = True
        if queue.limit is not None and (there is None or there.limit is None):
            setting |= {"max_running": queue.limit, "set_limit": True}
        if setting:
            yield from _set_queue(stores, queue.name, setting)
    return _with_setting(ours)


def _set_queue(stores: Stores, queue: str, setting: Mapping[str, Any]) -> Calls[None]:
    yield from stores.ask("target", lambda: manage.set_queue(queue, **setting))


def _with_setting(queues: Sequence[Queue]) -> int:
    return sum(queue.paused or queue.limit is not None for queue in queues)


def _copy_schedules(stores: Stores) -> Calls[int]:
    """Copy the schedules with their last ticks; one with a later tick in the target stays."""
    theirs = yield from stores.ask("target", stored_schedules)
    ours = yield from stores.ask("source", stored_schedules)
    for name, one in ours.items():
        found = theirs.get(name)
        if found is None or found.last_tick < one.last_tick:
            yield from stores.ask("target", partial(copy_schedule, name, found, one))
    return len(ours)


# -- The transfer -------------------------------------------------------------------------------


def _transfer(stores: Stores, progress: MoveProgress, options: MoveOptions) -> Calls[None]:
    """Move until nothing is left that can be moved, and no job runs that should be waited for."""
    deadline = options.deadline()
    yield from _deliver_departed(stores, progress)
    yield from stores.question("target", "landed", way="in", store=progress.source, ids=None)
    while True:
        if (yield from _pass(stores, progress)):
            continue
        running = (yield from stores.counts("source"))[JobState.running]
        if not running or options.running == "leave" or monotonic() >= deadline:
            return
        yield from sleep(POLL)
        yield from stores.ask("source", upkeep.sweep)  # a holder that died will not end its job


def _pass(stores: Stores, progress: MoveProgress) -> Calls[int]:
    """Go once through all ids and return how many were moved; jobs that came in behind are for the next."""
    done, after = progress.done, None
    while rows := (
        yield from stores.question(
            "source", "depart", store=progress.target, after=after, limit=progress.limit
        )
    ):
        after = rows[-1]["id"]
        yield from _deliver(stores, progress, rows)
    yield from _deliver_departed(stores, progress)
    return progress.done - done


def _deliver_departed(stores: Stores, progress: MoveProgress) -> Calls[None]:
    """Deliver jobs that an earlier run left on the way, or that departed with an answer that was lost."""
    seen: set[UUID] = set()
    while rows := [row for row in (yield from stores.departed("source")) if row["id"] not in seen]:
        seen |= {row["id"] for row in rows}
        yield from _deliver(stores, progress, rows)


def _deliver(stores: Stores, progress: MoveProgress, rows: Rows) -> Calls[None]:
    texts = [row["job"] for row in rows]
    answers = yield from stores.question("target", "arrive", store=progress.source, jobs=texts)
    here = [row["id"] for row in answers if row["holder"] == row["id"]]
    kept = [row["id"] for row in answers if row["holder"] != row["id"]]
    if kept:
        yield from stores.question("source", "give_back", store=progress.target, ids=kept)
    yield from stores.question("source", "landed", way="out", store=progress.target, ids=here)
    yield from stores.question("target", "landed", way="in", store=progress.source, ids=here)
    _note(progress, texts, answers)


def _note(progress: MoveProgress, texts: Sequence[str], answers: Rows) -> None:
    jobs = {job.id: job for job in map(read_stored, texts)}
    for row in answers:
        job = jobs[row["id"]]
        progress.refused.pop(job.id, None)
        if row["is_new"]:
            progress.jobs[job.state] += 1
        elif row["holder"] == job.id:
            progress.known += 1
        else:
            unmoved = UnmovedJob(id=job.id, unique=job.unique_key or "", holder=row["holder"])
            progress.refused[job.id] = unmoved
    progress.limit = _next_batch(texts)
    progress.report()


def _next_batch(texts: Sequence[str]) -> int:
    """Return how many jobs make about the same amount of text, whatever their size."""
    average = sum(map(len, texts)) / len(texts)
    return max(1, min(MOST_AT_ONCE, int(TEXT_AT_ONCE / average)))


# -- After --------------------------------------------------------------------------------------

Staying = Counter[tuple[str, str, str | None]]  # queue, state, and the train if it is held


def _compare(
    stores: Stores,
    progress: MoveProgress,
    options: MoveOptions,
    before: Mapping[str, int],
    queues: int,
    schedules: int,
) -> Calls[MoveReport]:
    source = yield from stores.counts("source")
    target = yield from stores.counts("target")
    missing = sum(before.values()) + progress.jobs.total() - sum(target.values())
    trains = yield from _held_trains(stores)
    gated = yield from _waiting_at_gates(stores, trains)
    settings = yield from stores.ask("target", queries.queues)
    return MoveReport(
        jobs={state.value: progress.jobs[state] for state in JobState if progress.jobs[state]},
        known=progress.known,
        refused=list(progress.refused.values()),
        queues=queues,
        schedules=schedules,
        source=source,
        target=target,
        paused=[queue.name for queue in settings if queue.paused],
        problems=[*_held(trains, gated), *_problems(progress, options, source, missing, gated)],
    )


def _held_trains(stores: Stores) -> Calls[dict[str, Job]]:
    """Return the ended heads of the trains that are held."""
    found = yield from stores.ask("source", partial(queries.held_trains, MOST_AT_ONCE))
    return {train.name: train.head for train in found if train.head is not None}


def _waiting_at_gates(stores: Stores, held: Mapping[str, Job]) -> Calls[Staying]:
    """Count the jobs that wait in trains or for slots, and the ended ones that hold a train."""
    wanted = {**queries.job_filter(state=sorted(WAITING)), "limit": MOST_AT_ONCE}
    gated: Staying = Counter((head.queue, head.state.value, name) for name, head in held.items())
    after: UUID | None = None
    while rows := (yield from stores.question("source", "find", **wanted, after=after)):
        at_gates = (row for row in rows if row["train"] or row["slot"])
        gated.update(
            (row["queue"], str(row["state"]), row["train"] if row["train"] in held else None)
            for row in at_gates
        )
        after = rows[-1]["id"]
    return gated


def _by_queue(gated: Staying) -> Counter[str]:
    """Count those that go while their queue is paused."""
    queues: Counter[str] = Counter()
    for (queue, _, train), number in gated.items():
        if train is None:
            queues[queue] += number
    return queues


def _held(trains: Mapping[str, Job], gated: Staying) -> Generator[str]:
    for name, head in trains.items():
        number = sum(jobs for (_, _, train), jobs in gated.items() if train == name)
        stay, them = ("stays", "it") if number == 1 else ("stay", "them")
        yield (
            f"{numbered(number, 'job')} of the train {name!r} {stay}: job {head.id} {head.state} and holds "
            f"{them}; `dibs trains release {quote(name)}` or `dibs jobs retry {head.id}`, then move again"
        )


def _problems(
    progress: MoveProgress,
    options: MoveOptions,
    source: Mapping[str, int],
    missing: int,
    gated: Staying,
) -> Generator[str]:
    for one in progress.refused.values():
        yield (
            f"job {one.id} stays: job {one.holder} of the target has its unique key {one.unique!r}; "
            "let that one finish, then run the move again"
        )
    running = source[JobState.running]
    if running and options.running == "wait":
        yield f"{numbered(running, 'job')} still ran when the time was up; run the move again later"
    for queue, number in _by_queue(gated).items():
        yield (
            f"{numbered(number, 'job')} of the queue {queue!r} stayed, in trains or for slots: none may "
            "overtake; `dibs queues pause` it, move again, then resume it in the target"
        )
    behind = sum(source.values()) - running - len(progress.refused) - gated.total()
    if behind > 0:
        yield f"{numbered(behind, 'job')} came in meanwhile; enqueue into the target, and run the move again"
    if missing > 0:
        yield (
            f"the target holds {numbered(missing, 'job')} fewer than it had and got; "
            "were some deleted or pruned there meanwhile?"
        )


# -- Instead ------------------------------------------------------------------------------------


def preview(stores: Stores) -> Calls[MovePreview]:
    [*source] = yield from stores.question("source", "identify", new=None)
    [*target] = yield from stores.question("target", "identify", new=None)
    if source:
        _refuse_same(source, target)
    jobs = yield from stores.counts("source")
    running = jobs.pop(JobState.running)
    jobs["departed"] = len((yield from stores.departed("source")))
    settings = yield from stores.ask("source", queries.queues)
    trains = yield from _held_trains(stores)
    paused = {queue.name for queue in settings if queue.paused}
    staying = yield from _staying(stores, paused, trains)
    for (_, state, _), number in staying.items():
        jobs[state] -= number
    return MovePreview(
        jobs={state: number for state, number in jobs.items() if number > 0},
        running=running,
        staying=dict(_by_queue(staying)),
        held=list(_held(trains, staying)),
        queues=_with_setting(settings),
        schedules=len((yield from stores.ask("source", stored_schedules))),
        target=(yield from stores.counts("target")),
    )


def _staying(stores: Stores, paused: set[str], held: Mapping[str, Job]) -> Calls[Staying]:
    """Count the jobs that would stay at gates; read no job where there is no gate."""
    which = {"names": None, "held": False, "after": None, "limit": 1}
    for sort in ("train", "slot"):
        if (yield from stores.question("source", "gates", sort=sort, **which)):
            gated = yield from _waiting_at_gates(stores, held)
            return Counter({one: number for one, number in gated.items() if one[2] or one[0] not in paused})
    return Counter()


def give_all_back() -> Script[int]:
    rows = yield Step("departed", {"limit": MOST_AT_ONCE})
    back = 0
    for store in {row["store"] for row in rows}:
        ids = [row["id"] for row in rows if row["store"] == store]
        answers = yield Step("give_back", {"store": store, "ids": ids})
        back += sum(row["holder"] == row["id"] for row in answers)
    return back
