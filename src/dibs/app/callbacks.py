"""`@app.on("failed")`: functions that are called when jobs end. For alerts; no job depends on them.

A callback is called after the store has the change, beside the work: one that raises or hangs is logged and
forgotten. Without callbacks nothing is done, and nothing is built.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from uuid import UUID

from dibs.clock import monotonic
from dibs.errors import BadRequest, DibsError
from dibs.events import Event, log
from dibs.faces import Call, Calls, ask
from dibs.jobs.job import Job, JobError
from dibs.jobs.states import JobState
from dibs.operations.queries import with_current
from dibs.operations.scripts import Rows, Script, Step
from dibs.operations.upkeep import BATCH, Swept
from dibs.text import numbered

if TYPE_CHECKING:
    from dibs.engines.store import Store

CallbackName = Literal["succeeded", "failed", "retried", "cancelled", "lost", "held"]
NAMES: tuple[str, ...] = get_args(CallbackName)

LONGEST_CALL = 10.0  # seconds a callback may take
LAST_MOMENT = 5.0  # seconds a worker that ends waits for its callbacks
MOST_WAITING = 1000  # events that wait for a slow callback; more are dropped
MOST_REMEMBERED = 1000  # losses that a worker has reported
MOST_HANGING = 20  # threads of callbacks that don't return
COMPLAIN_EVERY = 60.0  # seconds between two log lines about one callback

# A job that was asked to cancel ends when it is given back, whatever its holder made of it.
_GIVEN_BACK = frozenset({"retried", "snoozed", "released"})
# After these ends a train may wait for an operator.
_MAY_HOLD = frozenset({"failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a callback is called with. Example: `app.on("failed")(lambda event: print(event.error))`"""

    name: str
    """Why it was called: `succeeded`, `failed`, `retried`, `cancelled`, `lost`, or `held` (its train)."""
    job: Job
    """The job as the store has it now."""
    error: JobError | None
    """What went wrong in the attempt that this is about."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the job: alerts are often written for a job."""
            if name in JobEvent.__slots__:  # not filled yet, while it is being copied
                raise AttributeError(name)
            return getattr(self.job, name)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """What became of a claim, named as it was settled; `job` as it was claimed."""

    name: str
    id: UUID
    token: int
    job: Job | None = None


Callback = Callable[[JobEvent], Any]
C = TypeVar("C", bound=Callback)


class Callbacks:
    """The callbacks of an app by the event they want, and the way they are called."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Callback]] = {}
        self.are_there = False
        self._threads = threading.BoundedSemaphore(MOST_HANGING)
        self._complained: dict[object, float] = {}

    def decorator(self, name: str) -> Callable[[C], C]:
        """Return the decorator `@app.on(name)`, which leaves the function as it is."""
        if name not in NAMES:
            raise BadRequest(f"there is no event {name!r}; there are {', '.join(NAMES)}")

        def add(callback: C) -> C:
            if not callable(callback):
                raise BadRequest(f"@app.on({name!r}) goes on a function, not on {callback!r}")
            self._by_name.setdefault(name, []).append(callback)
            self.are_there = True
            return callback

        return add

    def want(self, name: str) -> bool:
        """Return whether a callback may want what was settled under this name."""
        wanted = self._by_name
        if not wanted or name in wanted:
            return bool(wanted)
        names = {"cancelled", "held"} if name in _GIVEN_BACK else {"held"} if name in _MAY_HOLD else ()
        return not wanted.keys().isdisjoint(names)

    @property
    def want_held(self) -> bool:
        """Whether the trains of jobs that ended have to be read."""
        return "held" in self._by_name

    def call(self, store: "Store", pending: Iterable[PendingEvent]) -> Calls[None]:
        """Call the callbacks that want these events, before the caller goes on: it has settled by hand."""
        wanted = [event for event in pending if self.want(event.name)]
        for first in range(0, len(wanted), BATCH):
            page = wanted[first : first + BATCH]
            try:
                events = yield from ask(store, lambda _, page=page: read_events(page, held=self.want_held))  # type: ignore[misc]
            except DibsError as error:
                self.complain("away", f"{numbered(len(page), 'event')} could not be reported", error)
                return
            for event in events:
                yield Call(self.tell_sync, self.tell, (event,))

    async def tell(self, event: JobEvent) -> None:
        for callback in self._by_name.get(event.name, ()):
            try:
                async with asyncio.timeout(LONGEST_CALL):
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
                self._in_thread(call, event).result(LONGEST_CALL)
            except BaseException as error:
                self._complain_of(callback, event, error)
                if isinstance(error, KeyboardInterrupt):
                    raise

    def complain(self, about: object, what: str, error: BaseException | None = None) -> None:
        """Log a problem, at most once a minute."""
        if monotonic() - self._complained.get(about, float("-inf")) >= COMPLAIN_EVERY:
            self._complained[about] = monotonic()
            log.error("%s; no job is affected", what, exc_info=error)

    def _complain_of(self, callback: Callback, event: JobEvent, error: BaseException) -> None:
        how = f"took longer than {LONGEST_CALL:.0f} s" if isinstance(error, TimeoutError) else "failed"
        self.complain(callback, f"the callback {callback!r} for {event.name!r} {how}", error)

    def _in_thread(self, callback: Callback, event: JobEvent) -> "Future[Any]":
        """Call it in a thread of its own, for which neither the event loop nor the ending process waits."""
        if not self._threads.acquire(blocking=False):
            raise TimeoutError(f"{MOST_HANGING} earlier calls have not returned")
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()

        def call() -> None:
            try:
                done.set_result(callback(event))
            except BaseException as error:
                done.set_exception(error)
            finally:
                self._threads.release()

        threading.Thread(target=call, name="dibs-callback", daemon=True).start()
        return done


def _in_loop(callback: Callback) -> Callback:
    return lambda event: asyncio.run(callback(event))


def read_events(pending: Sequence[PendingEvent], *, held: bool = False) -> Script[list[JobEvent]]:
    """Return the events to call callbacks with, each with its job as the store has it."""
    jobs = yield from with_current((yield Step("get", {"ids": list({event.id for event in pending})})))
    events = events_of(pending, {job.id: job for job in jobs})
    return [*events, *((yield from _held_by(events)) if held else ())]


def _held_by(events: Sequence[JobEvent]) -> Script[list[JobEvent]]:
    """Return an event for each of these ends that holds its train now."""
    ends = [event for event in events if event.name in _MAY_HOLD and event.job.train is not None]
    names = sorted({event.job.train for event in ends if event.job.train is not None})
    if not names:
        return []
    rows = yield Step("gates", {"sort": "train", "names": names, "held": True, "after": None, "limit": BATCH})
    holders = {row["head"] for row in rows}
    return [replace(event, name="held") for event in ends if event.job.id in holders]


def events_of(pending: Iterable[PendingEvent], jobs: Mapping[UUID, Job]) -> list[JobEvent]:
    """Return the events with known jobs; a lost claim may be reported with the job as it was claimed."""
    events = []
    for one in pending:
        job = jobs.get(one.id) or (one.job if one.name == "lost" else None)
        if job is not None and (name := _name(one, job)) is not None:
            errors = [error for error in job.errors if error.token == one.token]
            events.append(JobEvent(name, job, errors[-1] if errors else None))
    return events


def _name(pending: PendingEvent, job: Job) -> str | None:
    if pending.name in _GIVEN_BACK and job.state == JobState.cancelled:
        return "cancelled"
    return pending.name if pending.name in NAMES else None


def swept_events(swept: Swept) -> list[PendingEvent]:
    """Return the events of a sweep: a claim was lost, and with it the job may have ended."""
    return [
        PendingEvent(name, id, token)
        for state, id, token in swept.taken_back
        for name in ("lost", *([] if state == JobState.ready else [str(state)]))
    ]


def cancel_events(job: Job) -> list[PendingEvent]:
    """Return the event of a cancel that ended a waiting job; the worker of a running one reports its end."""
    ended_waiting = job.state == JobState.cancelled and job.worker is None
    return [PendingEvent("cancelled", job.id, 0)] if ended_waiting else []


def cancelled_events(rows: Rows) -> list[PendingEvent]:
    """Return the events of many cancels, from the rows that the store returned."""
    return [PendingEvent("cancelled", row["id"], 0) for row in rows if row["worker"] is None]


class CallbackQueue:
    """The events of one worker, for which callbacks are called beside its work, in order."""

    def __init__(self, callbacks: Callbacks, store: "Store") -> None:
        self._callbacks = callbacks
        self._store = store
        self._waiting: list[PendingEvent] = []
        self._losses: dict[tuple[UUID, int], None] = {}
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def tell(self, events: Iterable[PendingEvent]) -> None:
        """Queue these events; never wait, never raise."""
        wanted = [event for event in events if self._callbacks.want(event.name) and self._is_news(event)]
        room = MOST_WAITING - len(self._waiting)
        if len(wanted) > room:
            self._callbacks.complain(
                "full", f"{MOST_WAITING} events wait for slow callbacks; more are dropped"
            )
        self._waiting += wanted[: max(room, 0)]
        if self._waiting and self._task is None and not self._over:
            self._task = asyncio.get_running_loop().create_task(self._telling())

    def _is_news(self, event: PendingEvent) -> bool:
        """Return False for a loss reported before: the worker's own upkeep takes back what it has lost."""
        loss = event.id, event.token
        if event.name != "lost":
            return True
        if loss in self._losses:
            return False
        if len(self._losses) >= MOST_REMEMBERED:
            del self._losses[next(iter(self._losses))]
        self._losses[loss] = None
        return True

    def listen_for(self, worker: str) -> Callable[[Event], None]:
        """Return a subscriber, called in any thread, that queues the lost claims of this worker."""
        loop = asyncio.get_running_loop()

        def hear(event: Event) -> None:
            lost = [
                PendingEvent("lost", job.id, job.token or 0, job)
                for job in event.jobs
                if job.worker == worker
            ]
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self.tell, lost)

        return hear

    async def finish(self) -> None:
        """Give the events that still wait a few seconds: the worker ends."""
        self._over = True
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=LAST_MOMENT)
            for task in late:
                task.cancel()
                self._waiting.clear()

    async def _telling(self) -> None:
        try:
            while self._waiting:
                events, self._waiting = self._waiting, []
                for event in await self._events(events):
                    await self._callbacks.tell(event)
        finally:
            self._task = None

    async def _events(self, events: Sequence[PendingEvent]) -> list[JobEvent]:
        try:
            return await self._store.run_async(lambda _: read_events(events, held=self._callbacks.want_held))
        except DibsError as error:
            self._callbacks.complain("away", f"{numbered(len(events), 'event')} could not be reported", error)
            return events_of(events, {})
