"""Metrics for Prometheus: what waits in the store and in its outbox, and what this process did about it."""

import re
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from dibs.app.dibs import Dibs
from dibs.doctor.facts import HELD_TRAINS
from dibs.errors import SchemaOutdated, UnknownEngine
from dibs.events import Event
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.queries import Queue, queues
from dibs.operations.scripts import Script, Step
from dibs.outbox import Outbox, OutboxEvent, Standing

__all__ = ["CONTENT_TYPE", "AppOutbox", "JobMetrics", "OutboxSource", "RelayMetrics", "merge_processes"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds
COUNTED = ("claimed", "succeeded", "retried", "failed", "snoozed", "released", "cancelled", "lost")
RELAYED = ("claimed", "published", "failed", "abandoned", "lost")
LIVE = [state.value for state in JobState if state not in FINISHED]

Ages = dict[str, float]
Labels = tuple[tuple[str, str], ...]


class OutboxSource(Protocol):
    """An outbox, as far as the metrics need one."""

    async def standings(self) -> Sequence[Standing]: ...


class AppOutbox:
    """The outbox in the database of an app, if there is one; it is connected only while it is read."""

    def __init__(self, app: Dibs) -> None:
        self._settings = app._core.settings

    async def standings(self) -> Sequence[Standing]:
        try:
            outbox = Outbox(self._settings.url, table=f"{self._settings.prefix}_outbox")
        except UnknownEngine:  # not a database, or SQLAlchemy is not installed
            return []
        outbox._database.create_nothing()
        try:
            return await outbox.standings()
        except SchemaOutdated:
            return []
        finally:
            await outbox.close()


class JobMetrics:
    """Counters of what this process claims and settles from now on; `text` adds the backlog of the store."""

    def __init__(self, app: Dibs, outbox: OutboxSource | None = None) -> None:
        self._app = app
        self._outbox = outbox
        self._lock = threading.Lock()
        self._claims: Counter[Labels] = Counter()
        self._settles: Counter[Labels] = Counter()
        self._lost: Counter[Labels] = Counter()
        self._durations = DurationHistogram("job_duration_seconds", "From claim to settle.")
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
                        if (seconds := event.about["seconds"]) is not None:
                            self._durations.add(labels, seconds)

    async def text(self) -> str:
        depths, ages, held = await self._app._core.store.run_async(lambda _: _waiting())
        standings = [] if self._outbox is None else await self._outbox.standings()
        with self._lock:
            lines = [*_store_lines(depths, ages, held), *_outbox_lines(standings), *self._process_lines()]
        return "\n".join(lines) + "\n"

    def _process_lines(self) -> Iterator[str]:
        yield from _series("claims_total", "counter", "Jobs that this process claimed.", self._claims)
        yield from _series("settles_total", "counter", "Attempts that ended here, by outcome.", self._settles)
        yield from _series("lost_leases_total", "counter", "Claims that were no longer held.", self._lost)
        yield from self._durations.lines()
        watchers: dict[Labels, int] = {(): self._app._core.watching.watchers}
        yield from _series("watchers", "gauge", "Clients that watch jobs through this process.", watchers)


class RelayMetrics:
    """Counters of what the relays of this process do from now on; `text` adds what waits in the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in RELAYED}
        self._durations = DurationHistogram(
            "relay_duration_seconds", "How long brokers took to accept a message."
        )
        outbox.events.subscribe(self._count)

    def _count(self, event: OutboxEvent) -> None:
        if event.name not in RELAYED:
            return
        with self._lock:
            for message in event.messages:
                self._counts[event.name][(("broker", message.broker), ("topic", message.topic))] += 1
            for message, seconds in zip(event.messages, event.about.get("took", ()), strict=False):
                self._durations.add((("broker", message.broker),), seconds)

    async def text(self) -> str:
        standings = await self._outbox.standings()
        with self._lock:
            lines = [*_outbox_lines(standings), *self._process_lines()]
        return "\n".join(lines) + "\n"

    def _process_lines(self) -> Iterator[str]:
        for name, counts in self._counts.items():
            yield from _series(f"relay_{name}_total", "counter", f"Messages {name} by this process.", counts)
        yield from self._durations.lines()


def _waiting() -> Script[tuple[list[Queue], Ages, int]]:
    found = yield from queues()
    backlog = yield Step("backlog", {})
    held = len((yield Step("gates", HELD_TRAINS)))
    [clock] = yield Step("now", {})
    return (
        found,
        {row["queue"]: (clock["now"] - row["since"]) / timedelta(seconds=1) for row in backlog},
        held,
    )


def _store_lines(depths: Iterable[Queue], ages: Ages, held: int) -> Iterator[str]:
    jobs: dict[Labels, int] = {
        (("queue", queue.name), ("state", state)): queue.counts.get(state, 0)
        for queue in depths
        for state in LIVE
    }
    paused: dict[Labels, int] = {(("queue", queue.name),): int(queue.paused) for queue in depths}
    stopped = {queue.name for queue in depths if queue.paused}  # an alert must not tell what was asked for
    oldest: dict[Labels, float] = {
        (("queue", queue),): max(age, 0.0) for queue, age in ages.items() if queue not in stopped
    }
    yield from _series("jobs", "gauge", "Live jobs.", jobs)
    yield from _series("queue_paused", "gauge", "1 if its jobs can not be claimed.", paused)
    about = "How long the oldest ready job has waited, unless its queue is paused."
    yield from _series("oldest_ready_seconds", "gauge", about, oldest)
    trains: dict[Labels, int] = {(): held}
    yield from _series("trains_held", "gauge", "Trains that wait for an operator.", trains)


def _outbox_lines(standings: Iterable[Standing]) -> Iterator[str]:
    messages: dict[Labels, int] = {}
    lag: dict[Labels, float] = {}
    for standing in standings:
        broker = ("broker", standing.broker)
        messages |= {(broker, ("status", name)): number for name, number in standing.counts.items()}
        lag[(broker,)] = standing.lag
    yield from _series("outbox_messages", "gauge", "Messages of the outbox.", messages)
    yield from _series(
        "outbox_lag_seconds", "gauge", "How long the oldest unpublished message has waited.", lag
    )


# -- the text format -----------------------------------------------------------------------------


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def _series(name: str, sort: str, help: str, values: Mapping[Labels, Any]) -> Iterator[str]:
    yield from _head(f"dibs_{name}", sort, help)
    for labels, value in sorted(values.items()):
        yield f"dibs_{name}{_labels(labels)} {value}"


class DurationHistogram:
    """A histogram of durations."""

    def __init__(self, name: str, help: str) -> None:
        self._name = f"dibs_{name}"
        self._help = help
        self._buckets: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: Counter[Labels] = Counter()

    def add(self, labels: Labels, seconds: float) -> None:
        self._buckets[labels][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[labels] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        yield from _head(self._name, "histogram", self._help)
        for labels, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, number in zip([*map(str, BOUNDS), "+Inf"], buckets, strict=True):
                total += number
                yield f"{self._name}_bucket{_labels((*labels, ('le', bound)))} {total}"
            yield f"{self._name}_sum{_labels(labels)} {self._seconds[labels]:.6f}"
            yield f"{self._name}_count{_labels(labels)} {total}"


def merge_processes(texts: Sequence[str | None]) -> str:
    """Return the metrics of several processes of one store as one text; None is a process without response.

    Counters get the number of their process as a label: a sum would fall when a process is replaced. Gauges
    describe the store, are the same for all processes, and appear once.
    """
    found: dict[str, dict[str, str]] = {}
    heads: dict[str, list[str]] = {}
    for number, text in enumerate(texts, 1):
        _merge_one(found, heads, str(number), text or "")
    return "".join(
        f"{line}\n" for name, head in heads.items() for line in (*head, *found.get(name, {}).values())
    )


def _merge_one(
    found: dict[str, dict[str, str]], heads: dict[str, list[str]], process: str, text: str
) -> None:
    family, sort = "", ""
    for line in text.split("\n"):  # not splitlines(): names of queues may hold other ends of lines
        if line.startswith("# "):
            _, word, family, rest = line.split(" ", 3)
            sort = rest if word == "TYPE" else sort
            if line not in (head := heads.setdefault(family, [])):
                head.append(line)
        elif sample := _SAMPLE.match(line):
            name, labels, value = sample["name"], sample["labels"], sample["value"]
            if sort != "gauge":
                labels = ",".join(filter(None, (f'process="{process}"', labels)))
            shown = name if not labels else f"{name}{{{labels}}}"
            found.setdefault(family, {}).setdefault(shown, f"{shown} {value}")


def _head(name: str, sort: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {sort}"


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""
