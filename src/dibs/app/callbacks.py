"""`@app.on("failed")`: functions that hear how jobs ended. For alerts; nothing of a job depends on them.

A callback is called after the store has it, beside the work: one that raises or hangs is logged and
forgotten. Where nobody subscribed nothing is done, and nothing is built.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from dibs.clock import monotonic
from dibs.errors import BadRequest, DibsError
from dibs.events import Event, log
from dibs.jobs.job import Job, JobError, job_from_row
from dibs.jobs.states import JobState
from dibs.operations.scripts import Rows, Script, Step
from dibs.operations.upkeep import BATCH, Swept
from dibs.text import numbered

if TYPE_CHECKING:
    from dibs.engines.store import Store

NAMES = ("succeeded", "failed", "retried", "cancelled", "lost")

PATIENCE = 10.0  # seconds a callback may take
LAST_MOMENT = 5.0  # seconds a worker that ends waits for its callbacks
MOST_WAITING = 1000  # events that wait for a slow callback; more are dropped
MOST_REMEMBERED = 1000  # losses that a worker has told
MOST_HANGING = 20  # threads of callbacks that don't come back
COMPLAIN_EVERY = 60.0  # seconds between two log lines about one callback

# A job that was asked to cancel ends when it is given back, whatever its holder made of it.
_GIVEN_BACK = frozenset({"retried", "snoozed", "released"})


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a callback is called with."""

    name: str
    """Why it was called: `succeeded`, `failed`, `retried`, `cancelled` or `lost`."""
    job: Job
    """The job as the store has it now."""
    error: JobError | None
    """What went wrong in the attempt that this is about."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the job has, the event has: alerts are often written for a job."""
            if name in JobEvent.__slots__:  # not filled yet, while it is being copied
                raise AttributeError(name)
            return getattr(self.job, name)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a claim, by the name under which the store was told; `job` as it was claimed."""

    name: str
    id: UUID
    token: int
    job: Job | None = None


Callback = Callable[[JobEvent], Any]
C = TypeVar("C", bound=Callback)


class Callbacks:
    """Who wants to hear what, and how they are called."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Callback]] = {}
        self._places = threading.BoundedSemaphore(MOST_HANGING)
        self._complained: dict[object, float] = {}

    def decorator(self, name: str) -> Callable[[C], C]:
        """`@app.on(name)`: the function stays what it was."""
        if name not in NAMES:
            raise BadRequest(f"there is no event {name!r}; there are {', '.join(NAMES)}")

        def add(callback: C) -> C:
            if not callable(callback):
                raise BadRequest(f"@app.on({name!r}) goes on a function, not on {callback!r}")
            self._by_name.setdefault(name, []).append(callback)
            return callback

        return add

    def want(self, name: str) -> bool:
        """Whether anybody may have to hear of what the store was told under this name."""
        wanted = self._by_name
        return bool(wanted) and (name in wanted or (name in _GIVEN_BACK and "cancelled" in wanted))

    @property
    def are_there(self) -> bool:
        return bool(self._by_name)

    async def tell_now(self, store: "Store", fates: Iterable[Fate]) -> None:
        """For whoever settles by hand: told before the call returns."""
        for wanted in _pages([fate for fate in fates if self.want(fate.name)]):
            try:
                events = await store.run_async(_telling_of(wanted))
            except DibsError as error:
                self.complain("away", f"{numbered(len(wanted), 'event')} could not be told", error)
                return
            for event in events:
                await self.tell(event)

    def tell_now_sync(self, store: "Store", fates: Iterable[Fate]) -> None:
        for wanted in _pages([fate for fate in fates if self.want(fate.name)]):
            try:
                events = store.run(_telling_of(wanted))
            except DibsError as error:
                self.complain("away", f"{numbered(len(wanted), 'event')} could not be told", error)
                return
            for event in events:
                self.tell_sync(event)

    async def tell(self, event: JobEvent) -> None:
        for callback in self._by_name.get(event.name, ()):
            try:
                async with asyncio.timeout(PATIENCE):
                    if inspect.iscoroutinefunction(callback):
                        await callback(event)
                    else:
                        await asyncio.wrap_future(self._in_thread(callback, event))
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._complain_of(callback, event, error)

    def tell_sync(self, event: JobEvent) -> None:
        for callback in self._by_name.get(event.name, ()):
            try:
                call = _in_loop(callback) if inspect.iscoroutinefunction(callback) else callback
                self._in_thread(call, event).result(PATIENCE)
            except BaseException as error:
                self._complain_of(callback, event, error)
                if isinstance(error, KeyboardInterrupt):
                    raise

    def complain(self, about: object, what: str, error: BaseException | None = None) -> None:
        """Say it once a minute, not twenty thousand times a second."""
        if monotonic() - self._complained.get(about, float("-inf")) >= COMPLAIN_EVERY:
            self._complained[about] = monotonic()
            log.error("%s; no job is affected", what, exc_info=error)

    def _complain_of(self, callback: Callback, event: JobEvent, error: BaseException) -> None:
        how = f"took longer than {PATIENCE:.0f} s" if isinstance(error, TimeoutError) else "failed"
        self.complain(callback, f"the callback {callback!r} for {event.name!r} {how}", error)

    def _in_thread(self, callback: Callback, event: JobEvent) -> "Future[Any]":
        """A thread of its own, that neither the event loop nor the end of the process waits for."""
        if not self._places.acquire(blocking=False):
            raise TimeoutError(f"{MOST_HANGING} earlier calls have not come back")
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()

        def call() -> None:
            try:
                done.set_result(callback(event))
            except BaseException as error:
                done.set_exception(error)
            finally:
                self._places.release()

        threading.Thread(target=call, name="dibs-callback", daemon=True).start()
        return done


def _in_loop(callback: Callback) -> Callback:
    return lambda event: asyncio.run(callback(event))


def _pages(fates: list[Fate]) -> Iterator[list[Fate]]:
    return (fates[first : first + BATCH] for first in range(0, len(fates), BATCH))


def _telling_of(fates: list[Fate]) -> Callable[[object], Script[list[JobEvent]]]:
    return lambda _: told(fates)


def told(fates: Sequence[Fate]) -> Script[list[JobEvent]]:
    """The events of these fates, with each job as the store has it."""
    rows = yield Step("get", {"ids": list({fate.id for fate in fates})})
    return events_of(fates, {row["id"]: job_from_row(row) for row in rows})


def events_of(fates: Iterable[Fate], jobs: Mapping[UUID, Job]) -> list[JobEvent]:
    events = []
    for fate in fates:
        job = jobs.get(fate.id) or (fate.job if fate.name == "lost" else None)
        if job is not None and (name := _name(fate, job)) is not None:
            errors = [error for error in job.errors if error.token == fate.token]
            events.append(JobEvent(name, job, errors[-1] if errors else None))
    return events


def _name(fate: Fate, job: Job) -> str | None:
    if fate.name in _GIVEN_BACK and job.state == JobState.cancelled:
        return "cancelled"
    return fate.name if fate.name in NAMES else None


def swept_fates(swept: Swept) -> list[Fate]:
    """What a sweep tells: a claim was lost, and with it the job may have ended."""
    return [
        Fate(name, id, token)
        for state, id, token in swept.fates
        for name in ("lost", *([] if state == JobState.ready else [str(state)]))
    ]


def cancel_fates(job: Job) -> list[Fate]:
    """What a cancel tells: a job that waited has ended by it. One that ran has a holder, and that tells."""
    ended_waiting = job.state == JobState.cancelled and job.worker is None
    return [Fate("cancelled", job.id, 0)] if ended_waiting else []


def cancelled_fates(rows: Rows) -> list[Fate]:
    """The same of many, by what the store answered for each."""
    return [Fate("cancelled", row["id"], 0) for row in rows if row["worker"] is None]


class Teller:
    """Tells one worker's events beside its work, one after the other and in order."""

    def __init__(self, callbacks: Callbacks, store: "Store") -> None:
        self._callbacks = callbacks
        self._store = store
        self._waiting: list[Fate] = []
        self._losses: dict[tuple[UUID, int], None] = {}
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def tell(self, fates: Iterable[Fate]) -> None:
        """Never waits, never raises."""
        wanted = [fate for fate in fates if self._callbacks.want(fate.name) and self._is_news(fate)]
        room = MOST_WAITING - len(self._waiting)
        if len(wanted) > room:
            self._callbacks.complain(
                "full", f"{MOST_WAITING} events wait for slow callbacks; more are dropped"
            )
        self._waiting += wanted[: max(room, 0)]
        if self._waiting and self._task is None and not self._over:
            self._task = asyncio.get_running_loop().create_task(self._telling())

    def _is_news(self, fate: Fate) -> bool:
        """A worker whose own upkeep takes back what it has lost would tell it twice."""
        loss = fate.id, fate.token
        if fate.name != "lost":
            return True
        if loss in self._losses:
            return False
        if len(self._losses) >= MOST_REMEMBERED:
            del self._losses[next(iter(self._losses))]
        self._losses[loss] = None
        return True

    def listen_for(self, worker: str) -> Callable[[Event], None]:
        """A subscriber, called in any thread, that passes on which claims of this worker were lost."""
        loop = asyncio.get_running_loop()

        def hear(event: Event) -> None:
            lost = [Fate("lost", job.id, job.token or 0, job) for job in event.jobs if job.worker == worker]
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self.tell, lost)

        return hear

    async def finish(self) -> None:
        """The worker ends: what is still to be told gets a moment."""
        self._over = True
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=LAST_MOMENT)
            for task in late:
                task.cancel()
                self._waiting.clear()

    async def _telling(self) -> None:
        try:
            while self._waiting:
                fates, self._waiting = self._waiting, []
                for event in await self._events(fates):
                    await self._callbacks.tell(event)
        finally:
            self._task = None

    async def _events(self, fates: Sequence[Fate]) -> list[JobEvent]:
        try:
            return await self._store.run_async(lambda _: told(fates))
        except DibsError as error:
            self._callbacks.complain("away", f"{numbered(len(fates), 'event')} could not be told", error)
            return events_of(fates, {})
