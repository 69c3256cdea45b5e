"""The relay: claim → publish → mark, for each broker separately, until it is stopped.

Any number of relays may run. A message that a relay held when it died is published by another once its lock
has run out: at least once, and under the same id.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dibs.app import lifespan
from dibs.clock import SECOND, monotonic
from dibs.errors import BadRequest, StoreRefused, StoreUnavailable
from dibs.jobs import payload
from dibs.jobs.ids import worker_name
from dibs.outbox.brokers import Broker, BrokerRefused, Brokers, BrokerUnavailable, make_broker
from dibs.outbox.database import OutboxDatabase
from dibs.outbox.events import log
from dibs.outbox.messages import error_text
from dibs.outbox.outbox import Outbox
from dibs.outbox.publishing import BatchPublisher
from dibs.settings import Duration, lease_micros, span

SHORTEST_REST, LONGEST_REST = 0.02, 2.0  # seconds between two polls of an empty outbox
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries to reach a broker or the database
LONGEST_ABSENCE = 60.0  # seconds that a relay with `until_idle` waits for a broker or the database
LISTEN_AGAIN = 2.0
STOP_CHECK = 0.5  # seconds between two checks of a listening thread for the end of the relay

Hint = Callable[[str], None]  # called with the name of a broker


class Relay:
    """A process that publishes committed messages, `batch` at a time for each of its brokers.

    `brokers` maps the names that messages are published for to a URL, a `Broker` or an async function.
    Example: `Relay(outbox, brokers={"default": "amqp://localhost"})`"""

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
        self._outbox = outbox
        self.name = worker_name() if worker is None else payload.check_name(worker, "worker")
        self._batch = payload.check_whole(batch, "batch", 1, 10_000)
        self._lock = lease_micros(lock_for) / SECOND
        self._timeout = span(timeout, what="timeout") / SECOND
        self._poll = max(span(poll, what="poll") / SECOND, SHORTEST_REST)
        self._stopping = asyncio.Event()
        self._has_claimed = False
        self._relays = [
            BrokerRelay(self, payload.check_name(name, "broker"), make_broker(given, name))
            for name, given in brokers.items()
        ]

    async def run(self, *, until_idle: bool = False, handle_signals: bool = True) -> None:
        """Relay until SIGTERM, SIGINT or `stop()`; with `until_idle`, until nothing can be claimed.

        A database or broker that is away is waited for, with `until_idle` for a minute. If the database
        refuses the first connection, for a wrong password, say, `StoreRefused` is raised at once; if every
        broker does, `BrokerUnavailable`.
        In a server that handles signals itself, pass `handle_signals=False`.
        """
        loop = asyncio.get_running_loop()
        self._begin()
        handled = lifespan.handle_signals(loop, self.stop) if handle_signals else []
        listener = loop.create_task(self._listen())
        try:
            async with asyncio.TaskGroup() as tasks:
                for relay in self._relays:
                    tasks.create_task(relay.run(until_idle=until_idle))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener
            lifespan.unhandle_signals(loop, handled)
            self._stopping.clear()

    def _begin(self) -> None:
        """Make new events: they belong to one event loop, and a relay may be run in several in turn."""
        is_stopped = self._stopping.is_set()
        self._stopping = asyncio.Event()
        for relay in self._relays:
            relay.begin()
        if is_stopped:
            self.stop()

    def stop(self) -> None:
        """Claim nothing more; publish and mark what has been sent, release the rest."""
        self._stopping.set()
        for relay in self._relays:
            relay.wake()

    @property
    def trouble(self) -> str | None:
        """Why this relay can't publish now: a broker or the database is away; None if it can."""
        return "; ".join(relay.trouble for relay in self._relays if relay.trouble) or None

    def _is_hopeless(self, error: BrokerUnavailable | StoreUnavailable) -> bool:
        """Recognise a refusal from the start, which waiting does not mend: an operator has to."""
        if isinstance(error, StoreRefused):
            return not self._has_claimed
        return all(relay.is_refused for relay in self._relays)

    async def _listen(self) -> None:
        while True:
            try:
                await listen(self._outbox._database, self._wake)
                return  # this database or driver has no hints
            except Exception as error:
                log.debug("can't listen for new messages: %s", error_text(error))
            await asyncio.sleep(LISTEN_AGAIN)

    def _wake(self, broker: str) -> None:
        for relay in self._relays:
            if relay.name == broker:
                relay.wake()


class BrokerRelay:
    """The part of a relay that serves one broker: one that is down does not delay the others."""

    def __init__(self, relay: Relay, name: str, broker: Broker) -> None:
        self.name = name
        self.trouble: str | None = None
        self.is_refused = False
        self._was_accepted = False
        self._relay = relay
        self._outbox = relay._outbox
        self._broker = broker
        self._woken = asyncio.Event()
        self._rest = SHORTEST_REST
        self._failures = 0
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
        """Publish one batch; return its size, None if the broker or the database is away."""
        try:
            if not await self._open():
                return None
            batch = await self._claim()
            if batch is not None:
                await batch.publish()
                self._note(batch)
        except (BrokerUnavailable, StoreUnavailable) as error:
            await self._wait_out(error)
            return None
        if self._failures:
            self._outbox.events.broker_up(self.name)
            self._failures, self.trouble = 0, None
        return 0 if batch is None else len(batch.messages)

    async def _open(self) -> bool:
        """Open the broker; return False if the relay was stopped before that."""
        opening = asyncio.ensure_future(self._broker.open())
        stopped = asyncio.ensure_future(self._relay._stopping.wait())
        try:
            await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return False
            await opening
            self._was_accepted, self.is_refused = True, False
            return True
        finally:
            for one in (opening, stopped):
                one.cancel()
            await asyncio.gather(opening, stopped, return_exceptions=True)

    async def _claim(self) -> BatchPublisher | None:
        self._woken.clear()
        relay, asked_at = self._relay, monotonic()
        messages = await self._outbox.claim_batch(relay.name, relay._batch, self.name, relay._lock)
        relay._has_claimed = True
        if not messages:
            return None
        self._rest = SHORTEST_REST
        return BatchPublisher(
            self._outbox,
            self._broker,
            messages,
            held_since=asked_at,
            lock=relay._lock,
            timeout=relay._timeout,
            pause=self._next_pause,
            is_over=relay._stopping.is_set,
        )

    def _note(self, batch: BatchPublisher) -> None:
        """Remember when failed messages are due again; raise if the broker is away."""
        self._due = [*self._due, *batch.due][-1000:]
        if batch.outage is not None:
            raise batch.outage

    async def _wait_out(self, error: BrokerUnavailable | StoreUnavailable) -> None:
        self.is_refused = isinstance(error, BrokerRefused) and not self._was_accepted
        if self._relay._is_hopeless(error):
            raise error
        if not self._failures:
            self._missed_at = monotonic()
        if self._until_idle and monotonic() - self._missed_at > LONGEST_ABSENCE:
            raise error  # a caller waits for the end of this run
        self._failures += 1
        pause = self._next_pause()
        self.trouble = f"broker {self.name}: {error}"
        if isinstance(error, BrokerUnavailable):
            self._outbox.events.broker_down(self.name, str(error), pause)
        else:
            self._outbox.events.store_down(self.name, str(error), pause)
        await self._pause(pause, ignore_hints=True)

    def _next_pause(self) -> float:
        """Return the back-off: longer each time, and not the same for every relay."""
        pause = float(min(FIRST_PAUSE * 2 ** min(self._failures, 20), LONGEST_PAUSE))
        return pause * (0.5 + random.random() / 2)  # noqa: S311

    def _next_rest(self) -> float:
        """Return the seconds until the next poll or until a message that failed here is due."""
        rest, now = self._rest, monotonic()
        self._rest = min(self._rest * 2, self._relay._poll)
        self._due = [due for due in self._due if due > now]
        return max(min([rest, *(due - now for due in self._due)]), SHORTEST_REST)

    async def _pause(self, seconds: float, *, ignore_hints: bool = False) -> None:
        """Wait until the time has passed, a hint arrives or the relay is stopped."""
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0 and not self._is_stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), left)
            if self._woken.is_set():
                self._woken.clear()
                if not ignore_hints:
                    self._rest = SHORTEST_REST
                    return


# -- hints of new messages: PostgreSQL's NOTIFY; a hint may be lost, the poll finds every message ---


async def listen(database: OutboxDatabase, hint: Hint) -> None:
    """Call `hint` with the name of a broker whenever a message for it was committed, until cancelled.

    Return at once if there are no hints: another database, or a driver that can't listen.
    """
    if database.statements.database != "postgresql":
        return
    if database.uses_threads:
        await _listen_in_thread(database, hint)
        return
    engine = database.async_engine()
    if engine.dialect.driver not in LISTENERS:
        return
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        try:
            await LISTENERS[engine.dialect.driver](raw, database.statements.channel, hint)
        finally:
            await connection.invalidate()  # it listens, so the pool must not reuse it


async def _listen_by_asyncpg(connection: Any, channel: str, hint: Hint) -> None:
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _: ended.set())
    await connection.add_listener(channel, lambda *received: hint(received[3]))
    await ended.wait()
    raise ConnectionError("the listening connection ended")


async def _listen_by_psycopg(connection: Any, channel: str, hint: Hint) -> None:
    await connection.set_autocommit(True)
    await connection.execute(f'listen "{channel}"')
    async for received in connection.notifies():
        hint(received.payload)


LISTENERS = {"asyncpg": _listen_by_asyncpg, "psycopg": _listen_by_psycopg}


async def _listen_in_thread(database: OutboxDatabase, hint: Hint) -> None:
    """Listen through a sync engine."""
    stop = threading.Event()
    loop = asyncio.get_running_loop()

    def pass_on(broker: str) -> None:
        loop.call_soon_threadsafe(hint, broker)

    try:
        await asyncio.to_thread(_listen_and_block, database, pass_on, stop)
    finally:
        stop.set()


def _listen_and_block(database: OutboxDatabase, hint: Hint, stop: threading.Event) -> None:
    engine = database.sync_engine()
    if engine.dialect.driver != "psycopg":
        return
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        try:
            raw.autocommit = True
            raw.execute(f'listen "{database.statements.channel}"')
            while not stop.is_set():
                for received in raw.notifies(timeout=STOP_CHECK):
                    hint(received.payload)
        finally:
            connection.invalidate()
