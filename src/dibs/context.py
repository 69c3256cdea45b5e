"""What a handler may know and do while it runs: the `Context` that is handed to it."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from dibs.jobs import Job, NewJob
from dibs.progress import Progress

if TYPE_CHECKING:
    from dibs.claims import Claim


class Context:
    """Handed to every handler that has a parameter annotated `Context`."""

    def __init__(self, claim: "Claim", state: Any = None) -> None:
        self._claim = claim
        self._progress: Progress | None = None
        self.state = state
        self.children: list[NewJob] = []

    @cached_property
    def sync(self) -> "SyncContext":
        """The same for plain functions, which can't await."""
        return SyncContext(self)

    @property
    def job(self) -> Job:
        return self._claim.job

    @property
    def token(self) -> int:
        """Greater for every later claim: pass it along to whatever must refuse a stale writer."""
        return self._claim.token

    @property
    def lost(self) -> bool:
        """True once this claim can no longer be sure to hold the job."""
        return self._claim.lost

    def check(self) -> None:
        """Raise when the handler should stop: `LeaseLost`, a cancel, its timeout, the end of its worker.

        Async handlers are cancelled at their next await; plain functions, which run in threads, call this.
        """
        self._claim._held.check_stop()

    def chain(self, *new_jobs: NewJob) -> None:
        """Jobs to be added in the same commit as this one's success, or never."""
        self.children.extend(new_jobs)

    async def parents(self) -> list[Job]:
        """The jobs that this one waited for, in the order of `after=`, or the one that chained it."""
        core = self._claim._held.core
        return await core.store.run_async(core.parents(self.job))

    def _parents_sync(self) -> list[Job]:
        core = self._claim._held.core
        return core.store.run(core.parents(self.job))

    async def progress(self, fraction: float, message: str | None = None) -> None:
        """Note how far the work got; call it as often as you like, the store hears twice a second."""
        await self._notes.note(fraction, message)

    async def complete(self, result: Any = None, *, within: Any) -> None:
        """Succeed in your transaction: the job is done exactly when your data is."""
        await self._claim.succeed(result, then=self.children, within=within)

    async def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        """Keep stale holders from writing to these rows, from now to the end of your transaction.

        The rows get this claim's token; `LeaseLost` if they have a later claim's already.
        """
        await self._claim.fence(connection, table, key=key, column=column, insert=insert)

    @property
    def _notes(self) -> Progress:
        """Made when first used: most jobs never say how far they are."""
        if self._progress is None:
            self._progress = Progress(self._claim._held)
        return self._progress


class SyncContext:
    """The blocking face of a context: `ctx.sync.progress(…)` in a plain function."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def progress(self, fraction: float, message: str | None = None) -> None:
        """The same, and a `check()`: it raises when the handler should stop."""
        self._context._notes.note_sync(fraction, message)

    def parents(self) -> list[Job]:
        """The jobs that this one waited for, in the order of `after=`, or the one that chained it."""
        return self._context._parents_sync()

    def complete(self, result: Any = None, *, within: Any) -> None:
        """Succeed in your transaction: the job is done exactly when your data is."""
        claim = self._context._claim._blocking()
        claim.succeed(result, then=self._context.children, within=within)

    def fence(
        self, connection: Any, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        """The same, through a connection that blocks."""
        claim = self._context._claim._blocking()
        claim.fence(connection, table, key=key, column=column, insert=insert)
