"""Whether a worker hears hints, and how it looks for work while it doesn't.

Hints can stop coming without a word: a socket that died half-way, a pooler that forgets who listens. So
hearing is never believed, only proved: where the store echoes, the worker's own tick comes back through its
listener. Until the first echo, and again from the first one that stays out, the worker looks by itself: 20 ms
after work, then slower and slower, at last once a second.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from dibs.clock import monotonic
from dibs.engines.retries import TryAgain
from dibs.engines.store import Store
from dibs.events import log
from dibs.jobs.job import Job
from dibs.operations.questions import ECHO_HINT

ECHO_WITHIN = 3.0  # seconds after a tick
SHORTEST_LOOK, LONGEST_LOOK = 0.02, 1.0  # seconds between two looks for work
SAY_AFTER = 5.0  # seconds of looking until a worker says that it hears nothing
LONGEST_PAUSE = 2.0  # seconds until a listener that broke is opened again
LONGEST_SILENCE = 60.0  # until one that heard nothing is: each try leaves its mark in a pooler's sessions


class Hearing:
    """One worker's ears."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._own_voice = ECHO_HINT + name
        self._echoes = store.traits.echoes
        self._hears = store.traits.wakes and not self._echoes
        self._patience: asyncio.Timeout | None = None  # of the listener that is open
        self._echoed = False
        self._rounds = 0  # since an echo was heard
        self._reason = "nobody listens yet"
        self._look = SHORTEST_LOOK
        self._deaf_since: float | None = None
        self._said = False

    # -- listening ------------------------------------------------------------------------------

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Pass hints on, for ever; a listener that breaks or hears nothing is opened anew."""
        while True:
            try:
                await self._listen_once(hear)
            except TimeoutError:
                self._reason = f"its own tick did not come back within {ECHO_WITHIN:g} s"
                pause = self._pause(0.0 if self._rounds == 0 else 1.0, LONGEST_SILENCE)
            except Exception as error:  # hints are a comfort; without them a look finds everything
                self._reason = str(error.cause if isinstance(error, TryAgain) else error)
                pause = self._pause(0.1, LONGEST_PAUSE)
            log.debug("not listening: %s", self._reason)
            self._rounds += 1
            await asyncio.sleep(pause)

    async def _listen_once(self, hear: Callable[[str], None]) -> None:
        over = False
        try:
            async with asyncio.timeout(None) as patience:

                def heard(hint: str) -> None:
                    if not over:  # what was on its way when we stopped listening says nothing of the next one
                        self._patience = patience
                        hear(hint)

                await self._store.listen(heard)
        finally:
            over = True
            self._patience = None
            self._hears = self._hears and not self._echoes

    def _pause(self, first: float, longest: float) -> float:
        times: int = 2 ** min(self._rounds, 10)
        return min(first * times, longest) * (0.5 + random.random())  # noqa: S311

    # -- proof ----------------------------------------------------------------------------------

    @property
    def wants_echo(self) -> bool:
        """Somebody listens, but nothing proves yet that hints arrive: say something."""
        return self._patience is not None and not self._hears and self._patience.when() is None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around a tick: if it was sent while we listened, its echo must come back soon."""
        listener, self._echoed = self._patience, False
        yield
        if listener is not None and listener is self._patience and not self._echoed and self._echoes:
            listener.reschedule(asyncio.get_running_loop().time() + ECHO_WITHIN)

    def is_echo(self, hint: str) -> bool:
        """A worker's voice, which is no news; our own one proves that we hear."""
        if hint == self._own_voice:
            self._prove()
        return hint.startswith(ECHO_HINT)

    def _prove(self) -> None:
        if self._said:
            log.info("this worker hears wake-ups again")
        self._echoed = self._hears = self._echoes
        self._rounds, self._deaf_since, self._said = 0, None, False
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(None)

    @property
    def deafness(self) -> str | None:
        """Why this worker hears nothing, once it has said so."""
        return self._reason if self._said else None

    # -- looking --------------------------------------------------------------------------------

    def poll(self, usual: float) -> float:
        """Seconds until the next look at the latest; longer each time, as long as there was no work."""
        if self._hears:
            return usual
        self._mind_deafness()
        look, self._look = self._look, min(self._look * 2, LONGEST_LOOK)
        return min(usual, look)

    def look_after_work(self) -> float:
        """Seconds until it is worth a look whether there is more."""
        if self._hears:
            return float("inf")
        self._look = SHORTEST_LOOK
        return SHORTEST_LOOK

    def lost_store(self) -> None:
        """Where nobody answers there is nothing to hear."""
        self._deaf_since = None

    def _mind_deafness(self) -> None:
        now = monotonic()
        self._deaf_since = now if self._deaf_since is None else self._deaf_since
        if self._echoes and not self._said and now - self._deaf_since > SAY_AFTER:
            self._said = True
            log.warning(
                "this worker hears no wake-ups (%s) and looks for work every second instead; "
                "behind a pooler like PgBouncer, give listen_url= with the address of the server itself",
                self._reason,
            )


class Suspicion:
    """Jobs are ready, tick after tick, and this worker gets none of them.

    Mostly that is as it should be: they are of other kinds, or in queues that are paused, limited or not
    ours. But if something is wrong with the connections, nobody else will say so. So the worker starts over
    with new ones, ever more rarely as long as that does not help, and says a word only when it did.
    """

    EMPTY_TURNS = 3
    LONGEST = 600.0  # seconds from one start over to the next

    def __init__(self, poll: float) -> None:
        self._first = self._wait = poll
        self._empty = 0
        self._since = 0.0
        self._ready_at: datetime | None = None
        self._missed_at: datetime | None = None  # when we last heard of jobs before we started over

    def ready(self, at: datetime | None) -> None:
        """A tick said that jobs are ready at this time of the store, or that none are."""
        self._ready_at = at
        if at is None:
            self._empty = 0

    def took(self, jobs: Sequence[Job]) -> bool:
        """What a turn with free places came to; True when it is time to start over."""
        if jobs:
            self._cleared(jobs)
            return False
        self._missed_at = None
        self._since = monotonic() if self._empty == 0 else self._since
        self._empty += self._ready_at is not None
        if self._empty < self.EMPTY_TURNS or monotonic() - self._since <= self._wait:
            return False
        self._empty, self._wait, self._missed_at = 0, min(self._wait * 2, self.LONGEST), self._ready_at
        return True

    def _cleared(self, jobs: Sequence[Job]) -> None:
        if self._missed_at is not None and any(job.run_at <= self._missed_at for job in jobs):
            log.warning("jobs were ready and this worker got none of them; with new connections it does")
        self._empty, self._wait, self._missed_at = 0, self._first, None
