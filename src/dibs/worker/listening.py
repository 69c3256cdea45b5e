"""Receives hints, checks that they arrive, and says how often to poll while they don't.

Hints can stop without an error: a socket that died half-way, a pooler that forgets its listeners. So a
listener counts as working only once that is proved: where the store sends echoes, the worker's own report at
upkeep comes back through its listener. Until the first echo, and again when one stays out, the worker polls:
20 ms after work, then at growing intervals up to one second.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dibs.clock import monotonic
from dibs.engines.retries import TryAgain
from dibs.engines.store import Store
from dibs.events import log
from dibs.operations.questions import ECHO_HINT

ECHO_WITHIN = 3.0  # seconds after an upkeep round
SHORTEST_POLL, LONGEST_POLL = 0.02, 1.0  # seconds, while no hints arrive
LOG_AFTER = 5.0  # seconds of polling until the worker logs that it receives no hints
LONGEST_PAUSE = 2.0  # seconds until a listener that broke is opened again
LONGEST_SILENCE = 60.0  # until one without echoes is: each try stays visible in a pooler's sessions


class HintListener:
    """The listener of one worker, opened again whenever it breaks."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._own_echo = ECHO_HINT + name
        self._has_echoes = store.traits.echoes
        self.is_proved = store.traits.wakes and not self._has_echoes
        self._timeout: asyncio.Timeout | None = None  # of the listener that is open
        self._echoed = False
        self._tries = 0  # since the last echo
        self._reason = "it does not listen yet"
        self._next_poll = SHORTEST_POLL
        self._deaf_since: float | None = None
        self._is_logged = False

    # -- listening ------------------------------------------------------------------------------

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Pass on hints for ever; open the listener again when it breaks or its echo stays out."""
        while True:
            try:
                await self._listen_once(hear)
            except TimeoutError:
                self._reason = f"its own tick did not come back within {ECHO_WITHIN:g} s"
                pause = self._pause(0.0 if self._tries == 0 else 1.0, LONGEST_SILENCE)
            except Exception as error:  # whatever it is: the polls find every job without hints
                self._reason = str(error.cause if isinstance(error, TryAgain) else error)
                pause = self._pause(0.1, LONGEST_PAUSE)
            log.debug("not listening: %s", self._reason)
            self._tries += 1
            await asyncio.sleep(pause)

    async def _listen_once(self, hear: Callable[[str], None]) -> None:
        is_over = False
        try:
            async with asyncio.timeout(None) as timeout:

                def heard(hint: str) -> None:
                    if not is_over:  # a hint on its way when listening stopped proves nothing of the next one
                        self._timeout = timeout
                        hear(hint)

                await self._store.listen(heard)
        finally:
            is_over = True
            self._timeout = None
            self.is_proved = self.is_proved and not self._has_echoes

    def _pause(self, first: float, longest: float) -> float:
        times: int = 2 ** min(self._tries, 10)
        return min(first * times, longest) * (0.5 + random.random())  # noqa: S311

    # -- echoes ---------------------------------------------------------------------------------

    @property
    def wants_echo(self) -> bool:
        """Whether the listener is open, and nothing proves yet that hints arrive."""
        return self._timeout is not None and not self.is_proved and self._timeout.when() is None

    @contextmanager
    def expecting_echo(self) -> Iterator[None]:
        """Limit the wait for the echo of what the body sends, if the listener was open before and after."""
        listener, self._echoed = self._timeout, False
        yield
        if listener is not None and listener is self._timeout and not self._echoed and self._has_echoes:
            listener.reschedule(asyncio.get_running_loop().time() + ECHO_WITHIN)

    def is_echo(self, hint: str) -> bool:
        """Return whether this is the echo of a worker; this worker's own proves that hints arrive."""
        if hint == self._own_echo:
            self._prove()
        return hint.startswith(ECHO_HINT)

    def _prove(self) -> None:
        if self._is_logged:
            log.info("this worker hears wake-ups again")
        self._echoed = self.is_proved = self._has_echoes
        self._tries, self._deaf_since, self._is_logged = 0, None, False
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None)

    @property
    def deafness(self) -> str | None:
        """Why no hints arrive, once that was logged."""
        return self._reason if self._is_logged else None

    # -- polling --------------------------------------------------------------------------------

    def poll(self, usual: float) -> float:
        """Return the seconds to the next poll; without hints they grow with every poll that finds no work."""
        if self.is_proved:
            return usual
        self._log_deafness()
        poll, self._next_poll = self._next_poll, min(self._next_poll * 2, LONGEST_POLL)
        return min(usual, poll)

    def poll_after_work(self) -> float:
        """Return the seconds after which more work is worth a poll."""
        if self.is_proved:
            return float("inf")
        self._next_poll = SHORTEST_POLL
        return SHORTEST_POLL

    def store_lost(self) -> None:
        """Ignore the time without a store: it is not time without hints."""
        self._deaf_since = None

    def _log_deafness(self) -> None:
        now = monotonic()
        self._deaf_since = now if self._deaf_since is None else self._deaf_since
        if self._has_echoes and not self._is_logged and now - self._deaf_since > LOG_AFTER:
            self._is_logged = True
            log.warning(
                "this worker hears no wake-ups (%s) and looks for work every second instead; "
                "behind a pooler like PgBouncer, give listen_url= with the address of the server itself",
                self._reason,
            )
