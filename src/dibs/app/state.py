"""What both faces of an app share: settings, registry, store, leases, events. No verb lives here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar

from dibs.app.callbacks import Callbacks
from dibs.app.claims import SettlementBatcher
from dibs.app.context import DelayedCalls
from dibs.app.leases import LeaseKeeper
from dibs.app.lifespan import Around, Lifespan
from dibs.app.registry import CodeSchedules, Registry
from dibs.app.watching import Watching
from dibs.clock import SECOND
from dibs.engines.store import Operation, Store, connect
from dibs.events import Events
from dibs.jobs import payload
from dibs.jobs.job import Job
from dibs.jobs.states import FINISHED, JobState, Outcome
from dibs.operations import upkeep
from dibs.settings import Settings, lease_micros, span
from dibs.text import numbered, without_password

T = TypeVar("T")

SHORTLY = 60 * SECOND  # what is not to be kept stays this long, so that a repeated settle is recognised

# Entered around each handler that runs, with its job. It yields a function that takes the outcome and returns
# the one to settle.
HandlerWrapper = Callable[[Job], AbstractContextManager[Callable[[Outcome], Outcome]]]


class AppState:
    """The settings, the registry and the store of one app, and the threads that serve its claims."""

    def __init__(self, settings: Settings, lifespan: Lifespan) -> None:
        self.settings = settings
        self.lifespan = lifespan
        self.registry = Registry(settings)
        self.schedules = CodeSchedules(self.registry)
        self.events = Events()
        self.callbacks = Callbacks()
        self.around: HandlerWrapper | None = None
        self.arounds: list[Around] = []
        self.open_transaction: Callable[[], Any] = lambda: None
        """Return the transaction that a framework has open in this thread, if any; sync enqueues join it."""
        self.use(connect(settings))

    def __str__(self) -> str:
        return f"{without_password(self.settings.url)} ({numbered(len(self.registry.tasks), 'kind')})"

    def use(self, store: Store) -> None:
        """Work on this store from now on; claims made in another one keep theirs."""
        self.store = store
        self.keeper = LeaseKeeper(store)
        self.later = DelayedCalls()
        self.settler = SettlementBatcher(store)
        self.watching = Watching(store, self.events)

    def close(self) -> None:
        """End the threads of this app."""
        self.watching.close()
        self.later.close()
        self.keeper.close()

    def run_joined(self, operation: Operation[T], within: Any) -> T:
        """Run it in the transaction given, else in the one that a framework has open in this thread."""
        return self.store.run(operation, self.open_transaction() if within is None else within)

    @property
    def silence(self) -> int:
        """The time, in microseconds, after which a worker that has not been heard of does not count."""
        return span(3 * self.settings.poll, what="poll")

    def lease_of(self, job: Job) -> int:
        """Return the length of the lease that this job was claimed with."""
        if job.lease_until is None or job.claimed_at is None:
            return lease_micros(self.registry.options(job.kind).lease)
        return round((job.lease_until - job.claimed_at) / timedelta(microseconds=1))

    def checked_text(self, text: str | None, what: str) -> str | None:
        """Return free text that a store can keep; an empty one becomes None."""
        return None if text is None else payload.check_text(text, what, self.settings.max_payload) or None

    def swept(self, swept: upkeep.Swept) -> upkeep.Swept:
        """Report a sweep as an event."""
        self.events.swept(
            staged=swept.staged, returned=swept.returned, failed=swept.failed, cancelled=swept.cancelled
        )
        return swept

    def retention(self) -> list[Operation[int]]:
        """Return the operations that remove what the settings `keep` and `keep_for` no longer keep."""
        short = {"all": frozenset(), "failed": FINISHED - {JobState.failed}, "none": FINISHED}[
            self.settings.keep
        ]
        kept_for = span(self.settings.keep_for, what="keep_for")
        return [
            lambda _: upkeep.prune(kept_for),
            *([lambda _: upkeep.prune(SHORTLY, short)] if short else []),
        ]
