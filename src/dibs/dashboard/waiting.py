"""Waiting jobs by reason, and how queues fill and empty: what the overview says of the whole store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dibs.app.dibs import Dibs
from dibs.clock import wall
from dibs.doctor.facts import HELD_TRAINS
from dibs.operations.minutes import MinuteStats
from dibs.operations.queries import Queue, QueueTraffic, traffic
from dibs.operations.scripts import Script, Step
from dibs.operations.upkeep import WorkerInfo
from dibs.text import numbered

MOST_PAIRS = 10  # kinds without a worker that are counted
LATELY = 60  # seconds of new jobs
MOST_TRAFFIC = 5_000  # jobs that are counted for it
RATE_OVER = 300  # seconds: workers write their counts once a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFlow:
    """What comes into a queue and goes out of it, by the minute, and what stays."""

    enters: int = 0
    leaves: float = 0.0
    failed: int = 0
    oldest: datetime | None = None
    """Since when the oldest ready job could have been claimed."""
    capped: bool = False
    """So many jobs are new or failed that not all were counted."""


async def flows_of(app: Dibs) -> dict[str, QueueFlow]:
    """Return the flow of each queue that had any lately, or has ready or failed jobs."""
    oldest, counted = await app._core.store.run_async(lambda _: _traffic())
    leaves = rates(await app.stats(since=RATE_OVER, by="queue"), datetime.fromtimestamp(wall(), UTC))
    capped = any(
        sum(getattr(one, what) for one in counted.values()) >= MOST_TRAFFIC for what in ("enqueued", "failed")
    )
    found = {}
    for name in {*oldest, *counted, *leaves}:
        traffic = counted.get(name, QueueTraffic())
        found[name] = QueueFlow(
            enters=traffic.enqueued * 60 // LATELY,
            leaves=leaves.get(name, 0.0),
            failed=traffic.failed,
            oldest=oldest.get(name),
            capped=capped,
        )
    return found


def rates(stats: Sequence[MinuteStats], now: datetime) -> dict[str, float]:
    """Return how many attempts of each queue ended per minute, since the first of these minutes.

    The minute that has not ended yet is written later.
    """
    if not stats:
        return {}
    first = min(one.at for one in stats)
    ended: dict[str, float] = {}
    for one in stats:
        ended[one.queue or ""] = ended.get(one.queue or "", 0.0) + one.done + one.failed
    last = max(now.replace(second=0, microsecond=0), *(one.at + timedelta(seconds=60) for one in stats))
    minutes = (last - first).total_seconds() / 60
    return {queue: number / minutes for queue, number in ended.items()}


def _traffic() -> Script[tuple[dict[str, datetime], dict[str, QueueTraffic]]]:
    oldest = {row["queue"]: row["since"] for row in (yield Step("backlog", {}))}
    return oldest, (yield from traffic(LATELY, MOST_TRAFFIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """Jobs that wait for the same thing."""

    jobs: int
    says: str
    link: str
    """The page that shows them, with its search."""
    stuck: bool = False
    """They wait for an operator, not for time or for other jobs."""
    search: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlogs:
    """What the reasons are read from."""

    queues: Sequence[Queue]
    workers: Sequence[WorkerInfo]
    pairs: Sequence[tuple[str, str]]
    held: Sequence[tuple[str, int]]
    unserved: Mapping[tuple[str, str], int]
    """Ready jobs of queue-kind pairs that no live worker takes."""


async def reasons_of(app: Dibs, queues: Sequence[Queue], workers: Sequence[WorkerInfo]) -> list[WaitReason]:
    read = await app._core.store.run_async(lambda _: _read(queues, workers))
    unserved = {}
    for queue, kind in list(_unserved_pairs(read))[:MOST_PAIRS]:
        unserved[queue, kind] = (await app.count(state="ready", queue=queue, kind=kind)).number
    return list(reasons(replace(read, unserved=unserved)))


def _read(queues: Sequence[Queue], workers: Sequence[WorkerInfo]) -> Script[Backlogs]:
    pairs = yield Step("ready_lines", {"queues": None})
    held = yield Step("gates", HELD_TRAINS)
    return Backlogs(
        queues=queues,
        workers=workers,
        pairs=[(row["queue"], row["kind"]) for row in pairs],
        held=[(row["name"], row["length"]) for row in held],
        unserved={},
    )


def reasons(backlogs: Backlogs) -> Iterator[WaitReason]:
    """Yield the reasons, the ones that need an operator first."""
    yield from _held(backlogs)
    yield from _paused(backlogs)
    yield from _unserved(backlogs)
    yield from _limited(backlogs)
    yield from _next(backlogs)
    behind = sum(length - 1 for _, length in backlogs.held)
    blocked = _number(backlogs, "blocked") - behind
    if blocked > 0:
        yield WaitReason(
            jobs=blocked,
            says="behind another job of their train, slot or pipeline",
            link="jobs",
            search={"state": "blocked"},
        )
    if scheduled := _number(backlogs, "scheduled"):
        yield WaitReason(jobs=scheduled, says="due later", link="jobs", search={"state": "scheduled"})


def _number(backlogs: Backlogs, state: str) -> int:
    return sum(queue.counts.get(state, 0) for queue in backlogs.queues)


def _held(backlogs: Backlogs) -> Iterator[WaitReason]:
    behind = sum(length - 1 for _, length in backlogs.held)
    if not behind:
        return
    if len(backlogs.held) == 1:
        [(name, _)] = backlogs.held
        yield WaitReason(
            jobs=behind, says=f"behind the held train {name}", link="jobs", search={"train": name}, stuck=True
        )
    else:
        yield WaitReason(
            jobs=behind,
            says=f"behind {numbered(len(backlogs.held), 'held train')}",
            link="trains",
            stuck=True,
        )


def _ready(queue: Queue) -> int:
    return queue.counts.get("ready", 0)


def _search(queue: Queue) -> dict[str, str]:
    return {"state": "ready", "queue": queue.name}


def _paused(backlogs: Backlogs) -> Iterator[WaitReason]:
    for queue in backlogs.queues:
        if queue.paused and _ready(queue):
            yield WaitReason(
                jobs=_ready(queue),
                says=f"in the paused queue {queue.name}",
                link="jobs",
                search=_search(queue),
                stuck=True,
            )


def _unserved_pairs(backlogs: Backlogs) -> Iterator[tuple[str, str]]:
    paused = {queue.name for queue in backlogs.queues if queue.paused}
    for queue, kind in backlogs.pairs if backlogs.workers else ():
        if queue not in paused and not any(_takes(worker, queue, kind) for worker in backlogs.workers):
            yield queue, kind


def _unserved(backlogs: Backlogs) -> Iterator[WaitReason]:
    for (queue, kind), jobs in backlogs.unserved.items():
        knows = any(kind in worker.kinds for worker in backlogs.workers)
        where = f"in the queue {queue}, which no worker of that kind serves"
        says = f"of the kind {kind} " + (where if knows else "which no worker knows")
        search = {"state": "ready", "queue": queue, "kind": kind}
        yield WaitReason(jobs=jobs, says=says, link="jobs", search=search, stuck=True)


def _takes(worker: WorkerInfo, queue: str, kind: str) -> bool:
    return kind in worker.kinds and (worker.queues is None or queue in worker.queues)


def _limited(backlogs: Backlogs) -> Iterator[WaitReason]:
    for queue in backlogs.queues:
        if _at_limit(queue) and _ready(queue):
            yield WaitReason(
                jobs=_ready(queue),
                says=f"in the queue {queue.name}, which runs as many as its limit of {queue.limit} allows",
                link="jobs",
                search=_search(queue),
            )


def _at_limit(queue: Queue) -> bool:
    return not queue.paused and queue.limit is not None and queue.counts.get("running", 0) >= queue.limit


def _next(backlogs: Backlogs) -> Iterator[WaitReason]:
    free = [queue for queue in backlogs.queues if not queue.paused and not _at_limit(queue)]
    jobs = sum(map(_ready, free)) - sum(
        number for (queue, _), number in backlogs.unserved.items() if queue in {one.name for one in free}
    )
    if jobs > 0 and not backlogs.workers:
        yield WaitReason(
            jobs=jobs,
            says="for a worker: none was heard of lately",
            link="jobs",
            search={"state": "ready"},
            stuck=True,
        )
    elif jobs > 0:
        yield WaitReason(jobs=jobs, says="for a free worker", link="jobs", search={"state": "ready"})
