"""The relay: claim → publish → mark, for each broker by itself, until it is told to stop.

Any number of relays may run. A message that a relay held when it died is published by another once its lock
has run out: at least once, and under the same id.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

from dibs.app import signals
from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest, StoreRefused, StoreUnavailable
from dibs.jobs import payload
from dibs.jobs.ids import worker_name
from dibs.outbox.brokers import Broker, BrokerRefused, Brokers, BrokerUnavailable, make_broker
from dibs.outbox.core import OutboxCore, said
from dibs.outbox.events import log
from dibs.outbox.notify import listen
from dibs.outbox.outbox import Outbox
from dibs.outbox.publishing import Batch
from dibs.settings import Duration, lease_micros, span

SHORTEST_REST, LONGEST_REST = 0.02, 2.0  # seconds between two looks at an empty outbox
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries to reach a broker or the database
LONGEST_ABSENCE = 60.0  # seconds that a relay whose end somebody waits for tries it
LISTEN_AGAIN = 2.0


class Relay:
    """Publishes what is committed to the outbox, `batch` messages at a time for each of its brokers.

    `brokers` maps the names that messages are published for to a URL, a `Broker` or an async function.
    """

    def __init__(
        self,
        outbox: Outbox,
        brokers: Brokers,
        *,
        batch: int = 100,
        lock_for: Duration = 60,
        timeout: Duration = 30,
        poll: Duration = LONGEST_REST,
        worker: str | None = None,
    ) -> None:
        if not brokers or not isinstance(brokers, Mapping):
            raise BadRequest("a relay needs a broker: pass brokers={'default': 'amqp://…'}")
        self._core = outbox._core
        self.name = worker_name() if worker is None else payload.check_name(worker, "worker")
        self._batch = payload.check_whole(batch, "batch", 1, 10_000)
        self._lock = lease_micros(lock_for) / SECOND
        self._timeout = span(timeout, what="timeout") / SECOND
        self._poll = max(span(poll, what="poll") / SECOND, SHORTEST_REST)
        self._stopping = asyncio.Event()
        self._has_claimed = False
        self._routes = [
            Route(self, payload.check_name(name, "broker"), make_broker(given, name))
            for name, given in brokers.items()
        ]

    async def run(self, *, until_idle: bool = False, handle_signals: bool = True) -> None:
        """Relay until SIGTERM, SIGINT or `stop()`; with `until_idle`, until nothing can be claimed.

        A database or broker that is away is waited for, with `until_idle` for a minute. A database that does
        not let us in from the start, for a wrong password, say, is `StoreRefused` at once; if no broker does,
        that is `BrokerUnavailable`.
        Beside a server that has plans of its own for signals, leave them to it: `handle_signals=False`.
        """
        loop = asyncio.get_running_loop()
        self._begin()
        handled = signals.handle_signals(loop, self.stop) if handle_signals else []
        ears = loop.create_task(self._hear())
        try:
            async with asyncio.TaskGroup() as routes:
                for route in self._routes:
                    routes.create_task(route.run(until_idle=until_idle))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            ears.cancel()
            with suppress(asyncio.CancelledError):
                await ears
            signals.unhandle_signals(loop, handled)
            self._stopping.clear()

    def _begin(self) -> None:
        """Events belong to an event loop, and a relay may be run in one after another."""
        told = self._stopping.is_set()
        self._stopping = asyncio.Event()
        for route in self._routes:
            route.begin()
        if told:
            self.stop()

    def stop(self) -> None:
        """Take nothing more; what is under way is published and marked, the rest of it given back."""
        self._stopping.set()
        for route in self._routes:
            route.wake()

    @property
    def trouble(self) -> str | None:
        """Why this relay can't do its work just now: a broker or the database is gone; None if it can."""
        return "; ".join(route.trouble for route in self._routes if route.trouble) or None

    def _is_hopeless(self, error: BrokerUnavailable | StoreUnavailable) -> bool:
        """Nobody ever let us in: that is to be put right by a person, who should hear of it."""
        if isinstance(error, StoreRefused):
            return not self._has_claimed
        return all(route.is_refused for route in self._routes)

    async def _hear(self) -> None:
        while True:
            try:
                await listen(self._core.home, self._wake)
                return  # there is nothing to be heard here
            except Exception as error:
                log.debug("can't hear of new messages: %s", said(error))
            await asyncio.sleep(LISTEN_AGAIN)

    def _wake(self, broker: str) -> None:
        for route in self._routes:
            if route.name == broker:
                route.wake()


class Route:
    """A relay's work for one broker: a broker that is down keeps nobody else waiting."""

    def __init__(self, relay: Relay, name: str, broker: Broker) -> None:
        self.name = name
        self.trouble: str | None = None
        self.is_refused = False
        self._was_let_in = False
        self._relay = relay
        self._core: OutboxCore = relay._core
        self._broker = broker
        self._woken = asyncio.Event()
        self._rest = SHORTEST_REST
        self._troubles = 0
        self._until_idle = False
        self._missed_at = 0.0
        self._due: list[float] = []

    def begin(self) -> None:
        self._woken = asyncio.Event()
        self._rest = SHORTEST_REST

    def wake(self) -> None:
        self._woken.set()

    async def run(self, *, until_idle: bool) -> None:
        self._until_idle = until_idle
        try:
            while not self._is_stopping:
                claimed = await self._turn()
                if claimed == 0 and until_idle:
                    return
                if not claimed:
                    await self._pause(self._next_rest())
        finally:
            await self._broker.close()

    @property
    def _is_stopping(self) -> bool:
        return self._relay._stopping.is_set()

    async def _turn(self) -> int | None:
        """Publish one batch; how many messages were in it, None if something was in the way."""
        try:
            if not await self._open():
                return None
            batch = await self._claim()
            if batch is not None:
                await batch.publish(self._is_over)
                self._note(batch)
        except (BrokerUnavailable, StoreUnavailable) as error:
            await self._wait_out(error)
            return None
        if self._troubles:
            self._core.events.broker_up(self.name)
            self._troubles, self.trouble = 0, None
        return 0 if batch is None else len(batch.messages)

    async def _open(self) -> bool:
        """Be ready to publish; False if we were told to stop before that."""
        opening = asyncio.ensure_future(self._broker.open())
        told_to_stop = asyncio.ensure_future(self._relay._stopping.wait())
        try:
            await asyncio.wait((opening, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return False
            await opening
            self._was_let_in, self.is_refused = True, False
            return True
        finally:
            for one in (opening, told_to_stop):
                one.cancel()
            await asyncio.gather(opening, told_to_stop, return_exceptions=True)

    async def _claim(self) -> Batch | None:
        self._woken.clear()
        relay, asked_at = self._relay, monotonic()
        operation = self._core.claim(relay.name, relay._batch, self.name, relay._lock)
        messages = self._core.claimed(await self._core.home.run_async(operation))
        relay._has_claimed = True
        if not messages:
            return None
        self._rest = SHORTEST_REST
        return Batch(
            self._core,
            self._broker,
            messages,
            held_since=asked_at,
            lock=relay._lock,
            timeout=relay._timeout,
            pause=self._next_pause,
        )

    def _is_over(self) -> bool:
        return self._is_stopping

    def _note(self, batch: Batch) -> None:
        """Remember when what failed is due again; and that the broker is gone, if it is."""
        self._due = [*self._due, *batch.due][-1000:]
        if batch.outage is not None:
            raise batch.outage

    async def _wait_out(self, error: BrokerUnavailable | StoreUnavailable) -> None:
        self.is_refused = isinstance(error, BrokerRefused) and not self._was_let_in
        if self._relay._is_hopeless(error):
            raise error
        if not self._troubles:
            self._missed_at = monotonic()
        if self._until_idle and monotonic() - self._missed_at > LONGEST_ABSENCE:
            raise error  # somebody waits for the end of it
        self._troubles += 1
        pause = self._next_pause()
        self.trouble = f"broker {self.name}: {error}"
        if isinstance(error, BrokerUnavailable):
            self._core.events.broker_down(self.name, str(error), pause)
        else:
            self._core.events.store_down(self.name, str(error), pause)
        await self._pause(pause, deaf=True)

    def _next_pause(self) -> float:
        """Longer each time, and not the same for every relay."""
        pause = float(min(FIRST_PAUSE * 2 ** min(self._troubles, 20), LONGEST_PAUSE))
        return pause * (0.5 + random.random() / 2)  # noqa: S311

    def _next_rest(self) -> float:
        """Until the poll or until something that failed here is due, whichever comes first."""
        rest, now = self._rest, monotonic()
        self._rest = min(self._rest * 2, self._relay._poll)
        self._due = [due for due in self._due if due > now]
        return max(min([rest, *(due - now for due in self._due)]), SHORTEST_REST)

    async def _pause(self, seconds: float, *, deaf: bool = False) -> None:
        """Wait until the time has passed or somebody wakes us; a hint does not bring a broker back."""
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0 and not self._is_stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left)
            if self._woken.is_set():
                self._woken.clear()
                if not deaf:
                    self._rest = SHORTEST_REST
                    return
