"""Numbers for Prometheus, in its text format: what waits in the store, and what this process did about it."""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

from dibs.app import Dibs
from dibs.events import Event
from dibs.operations import Queue, queues
from dibs.scripts import Script, Step
from dibs.states import FINISHED, JobState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTED = ("claimed", "succeeded", "retried", "failed", "snoozed", "released", "cancelled", "lost")
LIVE = [state.value for state in JobState if state not in FINISHED]
BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds

Labels = tuple[tuple[str, str], ...]
Ages = dict[str, float]


class Relayed(Protocol):
    """What an outbox tells of its messages."""

    async def counts(self) -> Mapping[str, int]: ...
    async def lag(self) -> float: ...


class Metrics:
    """Counts from now on what this process claims and settles; `text` also asks the stores what waits."""

    def __init__(self, app: Dibs, outbox: Relayed | None = None) -> None:
        self._app = app
        self._outbox = outbox
        self._lock = threading.Lock()
        self._claims: Counter[Labels] = Counter()
        self._settles: Counter[Labels] = Counter()
        self._lost: Counter[Labels] = Counter()
        self._durations: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: Counter[Labels] = Counter()
        app._core.events.subscribe(self._count, COUNTED)

    def _count(self, event: Event) -> None:
        with self._lock:
            for job in event.jobs:
                labels = (("queue", job.queue), ("kind", job.kind))
                match event.name:
                    case "claimed":
                        self._claims[labels] += 1
                    case "lost":
                        self._lost[labels] += 1
                    case _:
                        self._settles[(*labels, ("outcome", event.about["as"]))] += 1
                        self._time(labels, event.about["seconds"])

    def _time(self, labels: Labels, seconds: float | None) -> None:
        if seconds is not None:
            self._durations[labels][bisect_left(BOUNDS, seconds)] += 1
            self._seconds[labels] += seconds  # type: ignore[assignment]

    async def text(self) -> str:
        depths, ages = await self._app._core.store.run_async(lambda _: _waiting())
        messages = [] if self._outbox is None else [line async for line in _about_outbox(self._outbox)]
        with self._lock:
            lines = [*_about_store(depths, ages), *messages, *self._about_process()]
        return "\n".join(lines) + "\n"

    def _about_process(self) -> Iterator[str]:
        yield from _series("claims_total", "counter", "Jobs that this process claimed.", self._claims)
        yield from _series("settles_total", "counter", "Attempts that ended here, by outcome.", self._settles)
        yield from _series("lost_leases_total", "counter", "Claims that were lost to others.", self._lost)
        yield from self._histogram()
        watchers: dict[Labels, int] = {(): self._app._core.watching.watchers}
        yield from _series("watchers", "gauge", "Clients that follow jobs through this process.", watchers)

    def _histogram(self) -> Iterator[str]:
        name = "dibs_job_duration_seconds"
        yield from _head(name, "histogram", "From claim to settle.")
        for labels, buckets in sorted(self._durations.items()):
            total = 0
            for bound, jobs in zip([*map(str, BOUNDS), "+Inf"], buckets, strict=True):
                total += jobs
                yield f"{name}_bucket{_labels((*labels, ('le', bound)))} {total}"
            yield f"{name}_sum{_labels(labels)} {self._seconds[labels]:.6f}"
            yield f"{name}_count{_labels(labels)} {total}"


def _waiting() -> Script[tuple[list[Queue], Ages]]:
    found = yield from queues()
    backlog = yield Step("backlog", {})
    [clock] = yield Step("now", {})
    return found, {row["queue"]: (clock["now"] - row["since"]) / timedelta(seconds=1) for row in backlog}


def _about_store(depths: Iterable[Queue], ages: Ages) -> Iterator[str]:
    jobs: dict[Labels, int] = {
        (("queue", queue.name), ("state", state)): queue.counts.get(state, 0)
        for queue in depths
        for state in LIVE
    }
    paused: dict[Labels, int] = {(("queue", queue.name),): int(queue.paused) for queue in depths}
    oldest: dict[Labels, float] = {(("queue", queue),): max(age, 0.0) for queue, age in ages.items()}
    yield from _series("jobs", "gauge", "Live jobs.", jobs)
    yield from _series("queue_paused", "gauge", "1 if nobody may claim from it.", paused)
    yield from _series("oldest_ready_seconds", "gauge", "How long the oldest ready job has waited.", oldest)


async def _about_outbox(outbox: Relayed) -> AsyncIterator[str]:
    messages: dict[Labels, int] = {(("state", state),): n for state, n in (await outbox.counts()).items()}
    lag: dict[Labels, float] = {(): await outbox.lag()}
    for line in _series("outbox_messages", "gauge", "Messages of the outbox.", messages):
        yield line
    for line in _series("outbox_lag_seconds", "gauge", "How long the oldest unsent message has waited.", lag):
        yield line


def _series(name: str, sort: str, help: str, values: Mapping[Labels, Any]) -> Iterator[str]:
    yield from _head(f"dibs_{name}", sort, help)
    for labels, value in sorted(values.items()):
        yield f"dibs_{name}{_labels(labels)} {value}"


def _head(name: str, sort: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {sort}"


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
