"""Numbers for Prometheus: what waits in the store and in its outbox, and what this process did about it."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol

from dibs.app.dibs import Dibs
from dibs.errors import SchemaOutdated, UnknownEngine
from dibs.events import Event
from dibs.integrations.exposition import CONTENT_TYPE, Durations, Labels, series
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.queries import Queue, queues
from dibs.operations.scripts import Script, Step
from dibs.outbox import Outbox, OutboxEvent, Standing

__all__ = ["CONTENT_TYPE", "Metrics", "OwnOutbox", "RelayMetrics", "Relayed"]

COUNTED = ("claimed", "succeeded", "retried", "failed", "snoozed", "released", "cancelled", "lost")
RELAYED = ("claimed", "published", "failed", "abandoned", "lost")
LIVE = [state.value for state in JobState if state not in FINISHED]

Ages = dict[str, float]


class Relayed(Protocol):
    """What an outbox tells of its messages."""

    async def standings(self) -> Sequence[Standing]: ...


class OwnOutbox:
    """The outbox beside the jobs of an app, if there is one; no connection is held between two looks."""

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


class Metrics:
    """Counts from now on what this process claims and settles; `text` also asks the stores what waits."""

    def __init__(self, app: Dibs, outbox: Relayed | None = None) -> None:
        self._app = app
        self._outbox = outbox
        self._lock = threading.Lock()
        self._claims: Counter[Labels] = Counter()
        self._settles: Counter[Labels] = Counter()
        self._lost: Counter[Labels] = Counter()
        self._durations = Durations("job_duration_seconds", "From claim to settle.")
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
        depths, ages = await self._app._core.store.run_async(lambda _: _waiting())
        standings = [] if self._outbox is None else await self._outbox.standings()
        with self._lock:
            lines = [*_about_store(depths, ages), *_about_outbox(standings), *self._about_process()]
        return "\n".join(lines) + "\n"

    def _about_process(self) -> Iterator[str]:
        yield from series("claims_total", "counter", "Jobs that this process claimed.", self._claims)
        yield from series("settles_total", "counter", "Attempts that ended here, by outcome.", self._settles)
        yield from series("lost_leases_total", "counter", "Claims that were lost to others.", self._lost)
        yield from self._durations.lines()
        watchers: dict[Labels, int] = {(): self._app._core.watching.watchers}
        yield from series("watchers", "gauge", "Clients that follow jobs through this process.", watchers)


class RelayMetrics:
    """Counts from now on what the relays of this process do; `text` also asks the outbox what waits."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in RELAYED}
        self._durations = Durations("relay_duration_seconds", "How long brokers took to accept a message.")
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
            lines = [*_about_outbox(standings), *self._about_process()]
        return "\n".join(lines) + "\n"

    def _about_process(self) -> Iterator[str]:
        for name, counts in self._counts.items():
            yield from series(f"relay_{name}_total", "counter", f"Messages {name} by this process.", counts)
        yield from self._durations.lines()


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
    yield from series("jobs", "gauge", "Live jobs.", jobs)
    yield from series("queue_paused", "gauge", "1 if nobody may claim from it.", paused)
    yield from series("oldest_ready_seconds", "gauge", "How long the oldest ready job has waited.", oldest)


def _about_outbox(standings: Iterable[Standing]) -> Iterator[str]:
    messages: dict[Labels, int] = {}
    lag: dict[Labels, float] = {}
    for standing in standings:
        broker = ("broker", standing.broker)
        messages |= {(broker, ("status", name)): number for name, number in standing.counts.items()}
        lag[(broker,)] = standing.lag
    yield from series("outbox_messages", "gauge", "Messages of the outbox.", messages)
    yield from series("outbox_lag_seconds", "gauge", "How long the oldest unpublished one has waited.", lag)
