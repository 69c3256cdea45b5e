"""One batch on its way: keys side by side, the messages of a key one after the other.

While it is under way its locks are renewed and what has been published is marked, once a second. When the
locks can't be renewed in time, nothing more is published: somebody else may have the messages by then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from dibs.clock import SECOND, monotonic
from dibs.errors import StoreUnavailable
from dibs.outbox.brokers import Broker, BrokerUnavailable
from dibs.outbox.core import OutboxCore, said
from dibs.outbox.database import Operation
from dibs.outbox.messages import Message, Status
from dibs.text import spoken

FLUSH_EVERY = 1.0  # seconds between two times that the published ones are marked
ASK_AGAIN = 0.5  # seconds between two tries to reach the database
MARGIN = 0.1  # of the lock: so long before its end nothing more is sent


class Batch:
    """Messages that one relay holds for one broker."""

    def __init__(
        self,
        core: OutboxCore,
        broker: Broker,
        messages: Sequence[Message],
        *,
        held_since: float,
        lock: float,
        timeout: float,
        pause: Callable[[], float],
    ) -> None:
        self.messages = messages
        self.outage: BrokerUnavailable | None = None
        self.due: list[float] = []
        self._core = core
        self._broker = broker
        self._lock = lock
        self._timeout = timeout
        self._pause = pause
        self._is_over: Callable[[], bool] = lambda: False
        self._renewed = held_since
        self._published: list[Message] = []
        self._took: dict[int, float] = {}
        self._settled: set[int] = set()
        self._lost: set[int] = set()
        self._limits: set[Limit] = set()

    async def publish(self, is_over: Callable[[], bool]) -> None:
        """Publish them all, or as many as can be until `is_over`; then nothing of them is held any more."""
        self._is_over = is_over
        try:
            await self._publish_all()
        except asyncio.CancelledError:
            await self._end()
            raise
        await self._end()

    async def _publish_all(self) -> None:
        keeper = asyncio.get_running_loop().create_task(self._keep())
        try:
            async with asyncio.TaskGroup() as lanes:
                for lane in _lanes(self.messages):
                    lanes.create_task(self._publish_lane(lane))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper

    async def _end(self) -> None:
        await self._flush()
        await self._give_back()

    # -- publishing -----------------------------------------------------------------------------

    async def _publish_lane(self, lane: Sequence[Message]) -> None:
        """One after the other; whoever fails keeps those behind it from being published before it."""
        for message in lane:
            if not self._may_publish(message) or not await self._publish_one(message):
                return

    def _may_publish(self, message: Message) -> bool:
        gone = message.position in self._lost
        return not gone and self.outage is None and not self._is_over() and self._time_left() > 0

    async def _publish_one(self, message: Message) -> bool:
        began = monotonic()
        limit = Limit(began + self._timeout)
        try:
            async with limit.watch, self._limited(limit):
                await self._broker.publish(message)
        except BrokerUnavailable as error:
            self.outage = error
            return False
        except Exception as error:
            if self._time_left() > 0:  # else it is not for us to say any more
                await self._fail(message, limit.words() or said(error))
            return False
        self._took[message.position] = monotonic() - began
        self._published.append(message)
        return True

    @asynccontextmanager
    async def _limited(self, limit: "Limit") -> AsyncIterator[None]:
        """Nothing is under way for longer than the locks are ours, however often they are renewed."""
        self._limits.add(limit)
        limit.set(self._time_left())
        try:
            yield
        finally:
            self._limits.remove(limit)

    def _time_left(self) -> float:
        return self._renewed + self._lock * (1 - MARGIN) - monotonic()

    # -- keeping and marking --------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(FLUSH_EVERY, self._lock / 3))
            with suppress(StoreUnavailable):  # there is time to try again, and `_time_left` knows how much
                await self._flush()
                if monotonic() - self._renewed > self._lock / 3:
                    await self._renew()

    async def _renew(self) -> None:
        asked_at, held = monotonic(), self._held()
        lost = await self._ask(self._core.renew(held, self._lock))
        self._renewed = asked_at
        for limit in self._limits:
            limit.set(self._time_left())
        self._lose(lost)

    async def _flush(self) -> None:
        """Mark what was published so far."""
        done, self._published = self._published, []
        if not done:
            return
        try:
            lost = await self._ask(self._core.mark_published(done))
        except BaseException:
            self._published = [*done, *self._published]
            raise
        self._settle(done)
        self._lose(lost)
        gone = {one.position for one in lost}
        ours = [one for one in done if one.position not in gone]
        self._core.events.published(ours, [self._took[one.position] for one in ours])

    async def _fail(self, message: Message, error: str) -> None:
        operation, status, delay = self._core.failure(message, error)
        lost = await self._ask(operation)
        self._settle([message])
        self._lose(lost)
        if lost:
            return
        if status == Status.abandoned:
            self._core.events.abandoned([message], error)
        else:
            self.due.append(monotonic() + delay / SECOND)
            self._core.events.failed([message], error, delay / SECOND)

    async def _give_back(self) -> None:
        """What was not published: untried, but with the reason if it was the broker's."""
        left = self._held()
        if not left:
            return
        if self.outage is None:
            self._lose(await self._ask(self._core.release(left)))
            return
        pause = self._pause()
        given_back = self._core.settle_failed(
            left, status=Status.failed, delay=round(pause * SECOND), error=str(self.outage), refund=True
        )
        self._lose(await self._ask(given_back))
        self.due.append(monotonic() + pause)

    def _held(self) -> list[Message]:
        done = self._settled | self._lost
        return [one for one in self.messages if one.position not in done]

    def _settle(self, messages: Iterable[Message]) -> None:
        self._settled |= {one.position for one in messages}

    def _lose(self, lost: Sequence[Message]) -> None:
        self._lost |= {one.position for one in lost}
        self._core.events.lost(lost)

    async def _ask(self, operation: Operation[list[Message]]) -> list[Message]:
        """As long as the locks are ours the database may come back; after that others will see to it."""
        while True:
            try:
                return await self._core.home.run_async(operation)
            except StoreUnavailable:
                if self._time_left() <= 0:
                    raise
            await asyncio.sleep(ASK_AGAIN)  # a refusal comes at once


class Limit:
    """Until when one message may be under way: its own time, and not a moment longer than its lock."""

    def __init__(self, deadline: float) -> None:
        self.watch = asyncio.timeout(None)
        self._deadline = deadline
        self._began = monotonic()

    def set(self, time_left: float) -> None:
        left = min(time_left, self._deadline - monotonic())
        self.watch.reschedule(asyncio.get_running_loop().time() + left)

    def words(self) -> str | None:
        """What to say if it was this that ended it."""
        took = spoken(self._deadline - self._began)
        return f"the broker did not answer within {took}" if self.watch.expired() else None


def _lanes(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages of each key in their order; each one without a key by itself."""
    lanes: dict[object, list[Message]] = {}
    for message in messages:
        lanes.setdefault(message.position if message.key is None else message.key, []).append(message)
    return list(lanes.values())
