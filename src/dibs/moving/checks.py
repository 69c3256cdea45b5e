"""Before a move, and after it: who the two stores are, what is copied, and whether everything adds up."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from dibs.errors import Refused
from dibs.jobs.states import WAITING, JobState
from dibs.moving.report import Log, Moved, Planned, Way
from dibs.moving.steps import MOST_AT_ONCE, Moving, ask, counts, departed, question
from dibs.operations import manage, queries
from dibs.operations.schedules import last_ticks
from dibs.operations.scripts import Script, Step
from dibs.text import numbered

# -- Before -------------------------------------------------------------------------------------


def introduce() -> Moving[tuple[UUID, UUID]]:
    """Who the two are, unless one of them is in the middle of something else."""
    [source] = yield from question("source", "identify", new=uuid4())
    [target] = yield from question("target", "identify", new=uuid4())
    if source["id"] == target["id"]:
        raise Refused("both addresses lead to the same store: there is nothing to move")
    elsewhere = [row for row in (yield from departed("source")) if row["store"] != target["id"]]
    if elsewhere:
        raise Refused(
            f"{numbered(len(elsewhere), 'job')} of the source {_on_the_way(len(elsewhere))} elsewhere; "
            "run that move again first or, if that store is gone for good, `dibs move --from … --give-back`"
        )
    if leaving := (yield from departed("target")):
        raise Refused(
            f"{numbered(len(leaving), 'job')} of the target {_on_the_way(len(leaving))} to another store; "
            "run that move again first"
        )
    return source["id"], target["id"]


def copy_settings() -> Moving[int]:
    """What is paused there is paused here before its jobs come; a limit that is set here stays."""
    theirs = {queue.name: queue for queue in (yield from ask("target", queries.queues))}
    copied = 0
    for queue in (yield from ask("source", queries.queues)):
        here = theirs.get(queue.name)
        setting: dict[str, Any] = {}
        if queue.paused and not (here and here.paused):
            setting["paused"] = True
        if queue.limit is not None and (here is None or here.limit is None):
            setting |= {"max_running": queue.limit, "set_limit": True}
        if setting:
            yield from ask("target", _setting(queue.name, setting))
        copied += queue.paused or queue.limit is not None
    return copied


def _setting(queue: str, setting: Mapping[str, Any]) -> Callable[[], Script[None]]:
    return lambda: manage.set_queue(queue, **setting)


def copy_ticks() -> Moving[int]:
    """Schedules go on where they were; one that is further here stays where it is."""
    theirs = yield from ask("target", last_ticks)
    ours = yield from ask("source", last_ticks)
    for name, tick in ours.items():
        since: datetime | None = theirs.get(name)
        if since is None or since < tick:
            yield from question("target", "enqueue_tick", schedule=name, since=since, tick=tick, jobs=[])
    return len(ours)


# -- After --------------------------------------------------------------------------------------


def compare(log: Log, way: Way, before: dict[str, int], queues: int, schedules: int) -> Moving[Moved]:
    source = yield from counts("source")
    target = yield from counts("target")
    missing = sum(before.values()) + log.jobs.total() - sum(target.values())
    gated = _by_queue((yield from _waiting_at_gates()))
    return Moved(
        jobs={state.value: log.jobs[state] for state in JobState if log.jobs[state]},
        known=log.known,
        refused=list(log.refused.values()),
        queues=queues,
        schedules=schedules,
        source=source,
        target=target,
        problems=list(_problems(log, way, source, missing, gated)),
    )


def without_mover(moved: Moved) -> Moved:
    """The target's counts without the job by which the mover was alone there."""
    return replace(moved, target={**moved.target, "running": moved.target["running"] - 1})


def _waiting_at_gates() -> Moving[Counter[tuple[str, str]]]:
    """How many wait in trains or for slots, by queue and state: they go only while it is paused."""
    everything = dict.fromkeys(("queue", "kind", "train", "slot", "pipeline_id"))
    wanted = {**everything, "states": sorted(WAITING), "tags": [], "limit": MOST_AT_ONCE}
    gated: Counter[tuple[str, str]] = Counter()
    after: UUID | None = None
    while rows := (yield from question("source", "find", **wanted, after=after)):
        gated.update((row["queue"], str(row["state"])) for row in rows if row["train"] or row["slot"])
        after = rows[-1]["id"]
    return gated


def _by_queue(gated: Counter[tuple[str, str]]) -> Counter[str]:
    queues: Counter[str] = Counter()
    for (queue, _), number in gated.items():
        queues[queue] += number
    return queues


def _problems(
    log: Log, way: Way, source: dict[str, int], missing: int, gated: Counter[str]
) -> Generator[str]:
    for one in log.refused.values():
        yield (
            f"job {one.id} stays: job {one.holder} of the target has its unique key {one.unique!r}; "
            "let that one finish, then run the move again"
        )
    running = source[JobState.running]
    if running and way.running == "wait":
        yield f"{numbered(running, 'job')} still ran when the time was up; run the move again later"
    for queue, number in gated.items():
        yield (
            f"{numbered(number, 'job')} of the queue {queue!r} stayed, in trains or for slots: none may "
            "overtake; release held trains, `dibs queues pause` it, move again, then resume it in the target"
        )
    behind = sum(source.values()) - running - len(log.refused) - gated.total()
    if behind > 0:
        yield f"{numbered(behind, 'job')} came in meanwhile; enqueue into the target, and run the move again"
    if missing > 0:
        yield (
            f"the target holds {numbered(missing, 'job')} fewer than it had and got; "
            "were some deleted or pruned there meanwhile?"
        )


def looking() -> Moving[Planned]:
    [*source] = yield from question("source", "identify", new=None)
    [*target] = yield from question("target", "identify", new=None)
    if source and source == target:
        raise Refused("both addresses lead to the same store: there is nothing to move")
    jobs = yield from counts("source")
    running = jobs.pop(JobState.running)
    jobs["departed"] = len((yield from departed("source")))
    settings = yield from ask("source", queries.queues)
    paused = {queue.name for queue in settings if queue.paused}
    staying = yield from _staying(paused)
    for (_, state), number in staying.items():
        jobs[state] -= number
    return Planned(
        jobs={state: number for state, number in jobs.items() if number > 0},
        running=running,
        staying=dict(_by_queue(staying)),
        queues=sum(queue.paused or queue.limit is not None for queue in settings),
        schedules=len((yield from ask("source", last_ticks))),
        target=(yield from counts("target")),
    )


def _staying(paused: set[str]) -> Moving[Counter[tuple[str, str]]]:
    """Those at gates whose queue is not paused; where nobody is at one, nobody is looked for."""
    which = {"names": None, "held": False, "after": None, "limit": 1}
    for sort in ("train", "slot"):
        if (yield from question("source", "gates", sort=sort, **which)):
            gated = yield from _waiting_at_gates()
            return Counter({key: number for key, number in gated.items() if key[0] not in paused})
    return Counter()


def give_all_back() -> Script[int]:
    rows = yield Step("departed", {"limit": MOST_AT_ONCE})
    back = 0
    for store in {row["store"] for row in rows}:
        ids = [row["id"] for row in rows if row["store"] == store]
        answers = yield Step("give_back", {"store": store, "ids": ids})
        back += sum(row["holder"] == row["id"] for row in answers)
    return back


def _on_the_way(number: int) -> str:
    return "is on its way" if number == 1 else "are on their way"
