"""Publish one claimed batch: keys side by side, the messages of a key one after the other.

Meanwhile the locks are renewed, and once a second the published messages are marked. If the locks can't be
renewed in time, nothing more is published: another relay may hold the messages by then.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from dibs.clock import SECOND, monotonic
from dibs.errors import StoreUnavailable
from dibs.outbox import operations
from dibs.outbox.brokers import Broker, BrokerUnavailable
from dibs.outbox.database import Operation
from dibs.outbox.messages import Message, Status, after_failure, error_text
from dibs.outbox.outbox import Outbox
from dibs.settings import lease_micros
from dibs.text import spoken

FLUSH_EVERY = 1.0  # seconds between two updates that mark published messages
TRY_AGAIN = 0.5  # seconds between two tries to reach the database
MARGIN = 0.1  # the last part of the lock, in which nothing more is sent


@dataclass(slots=True, eq=False)
class BatchPublisher:
    """The messages that one relay holds for one broker, and what became of each."""

    outbox: Outbox
    broker: Broker
    messages: Sequence[Message]
    held_since: float
    lock: float
    timeout: float
    pause: Callable[[], float]
    is_over: Callable[[], bool]
    outage: BrokerUnavailable | None = None
    due: list[float] = field(default_factory=list)
    _published: list[Message] = field(default_factory=list)
    _took: dict[int, float] = field(default_factory=dict)
    _settled: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _deadlines: "set[PublishDeadline]" = field(default_factory=set)

    async def publish(self) -> None:
        """Publish as many as possible until `is_over`, and mark or release them all."""
        try:
            await self._publish_all()
        except asyncio.CancelledError:
            await self._end()
            raise
        await self._end()

    async def _publish_all(self) -> None:
        heartbeat = asyncio.get_running_loop().create_task(self._keep_locks())
        try:
            async with asyncio.TaskGroup() as tasks:
                for messages in _by_key(self.messages):
                    tasks.create_task(self._publish_in_order(messages))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            heartbeat.cancel()
            with suppress(asyncio.CancelledError):
                await heartbeat

    async def _end(self) -> None:
        await self._flush()
        await self._give_back()

    # -- publishing -----------------------------------------------------------------------------

    async def _publish_in_order(self, messages: Sequence[Message]) -> None:
        """Publish one after the other; stop at a failure, so that no later message overtakes it."""
        for message in messages:
            if not self._may_publish(message) or not await self._publish_one(message):
                return

    def _may_publish(self, message: Message) -> bool:
        gone = message.position in self._lost
        return not gone and self.outage is None and not self.is_over() and self._time_left() > 0

    async def _publish_one(self, message: Message) -> bool:
        began = monotonic()
        deadline = PublishDeadline(began + self.timeout)
        try:
            async with deadline.timeout:
                with self._within_lock(deadline):
                    await self.broker.publish(message)
        except BrokerUnavailable as error:
            self.outage = error
            return False
        except Exception as error:
            if self._time_left() > 0:  # otherwise another relay may hold it already
                await self._fail(message, deadline.error() or error_text(error))
            return False
        self._took[message.position] = monotonic() - began
        self._published.append(message)
        return True

    @contextmanager
    def _within_lock(self, deadline: "PublishDeadline") -> Iterator[None]:
        """End the call to the broker when the lock ends; each renewal moves the deadline."""
        self._deadlines.add(deadline)
        deadline.reschedule(self._time_left())
        try:
            yield
        finally:
            self._deadlines.remove(deadline)

    def _time_left(self) -> float:
        return self.held_since + self.lock * (1 - MARGIN) - monotonic()

    # -- renewing and marking --------------------------------------------------------------------

    async def _keep_locks(self) -> None:
        while True:
            await asyncio.sleep(min(FLUSH_EVERY, self.lock / 3))
            with suppress(StoreUnavailable):  # tried again until `_time_left` is 0
                await self._flush()
                if monotonic() - self.held_since > self.lock / 3:
                    await self._renew()

    async def _renew(self) -> None:
        asked_at, held = monotonic(), self._held()
        lost = await self._run(partial(operations.renew, held, lease_micros(self.lock)))
        self.held_since = asked_at
        for deadline in self._deadlines:
            deadline.reschedule(self._time_left())
        self._lose(lost)

    async def _flush(self) -> None:
        """Mark the messages that were published so far."""
        done, self._published = self._published, []
        if not done:
            return
        try:
            lost = await self._run(partial(operations.mark_published, done))
        except BaseException:
            self._published = [*done, *self._published]
            raise
        self._settle(done)
        self._lose(lost)
        gone = {one.position for one in lost}
        ours = [one for one in done if one.position not in gone]
        self.outbox.events.published(ours, [self._took[one.position] for one in ours])

    async def _fail(self, message: Message, error: str) -> None:
        status, delay = after_failure(message, self.outbox._retry, random.random())  # noqa: S311
        failed = partial(operations.mark_failed, [message], status=status, delay=delay, error=error)
        lost = await self._run(failed)
        self._settle([message])
        self._lose(lost)
        if lost:
            return
        if status == Status.abandoned:
            self.outbox.events.abandoned([message], error)
        else:
            self.due.append(monotonic() + delay / SECOND)
            self.outbox.events.failed([message], error, delay / SECOND)

    async def _give_back(self) -> None:
        """Release what was not published, with its attempt; note the error if the broker is away."""
        left = self._held()
        if not left:
            return
        if self.outage is None:
            self._lose(await self._run(partial(operations.release, left)))
            return
        pause = self.pause()
        delay, error = round(pause * SECOND), str(self.outage)
        refund = partial(
            operations.mark_failed, left, status=Status.failed, delay=delay, error=error, refund=True
        )
        self._lose(await self._run(refund))
        self.due.append(monotonic() + pause)

    def _held(self) -> list[Message]:
        done = self._settled | self._lost
        return [one for one in self.messages if one.position not in done]

    def _settle(self, messages: Iterable[Message]) -> None:
        self._settled |= {one.position for one in messages}

    def _lose(self, lost: Sequence[Message]) -> None:
        self._lost |= {one.position for one in lost}
        self.outbox.events.lost(lost)

    async def _run(self, operation: Operation[list[Message]]) -> list[Message]:
        """Run an operation; while the locks hold, try again if the database is away."""
        while True:
            try:
                return await self.outbox._database.run_async(operation)
            except StoreUnavailable:
                if self._time_left() <= 0:
                    raise
            await asyncio.sleep(TRY_AGAIN)  # a server that refuses does so at once


class PublishDeadline:
    """The time at which a call to a broker is given up: after its timeout, or when the lock ends."""

    def __init__(self, deadline: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._deadline = deadline
        self._began = monotonic()

    def reschedule(self, time_left: float) -> None:
        left = min(time_left, self._deadline - monotonic())
        self.timeout.reschedule(asyncio.get_running_loop().time() + left)

    def error(self) -> str | None:
        """Return the error to store if the deadline has passed."""
        took = spoken(self._deadline - self._began)
        return f"the broker did not answer within {took}" if self.timeout.expired() else None


def _by_key(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages of each key in their order; each one without a key by itself."""
    groups: dict[object, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.position if message.key is None else message.key, []).append(message)
    return list(groups.values())
