"""What a handler may know and do while it runs: the `Context` that is handed to it."""

from typing import TYPE_CHECKING, Any

from dibs.jobs import Job, NewJob

if TYPE_CHECKING:
    from dibs.claims import Claim


class Context:
    """Handed to every handler that has a parameter annotated `Context`."""

    def __init__(self, claim: "Claim", state: Any = None) -> None:
        self._claim = claim
        self.state = state
        self.children: list[NewJob] = []

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
        """Raise when the handler should stop: `LeaseLost`, or because of a cancel or its timeout.

        Async handlers are cancelled at their next await; plain functions, which run in threads, call this.
        """
        self._claim._held.check_stop()

    def chain(self, *new_jobs: NewJob) -> None:
        """Jobs to be added in the same commit as this one's success, or never."""
        self.children.extend(new_jobs)

    async def progress(self, fraction: float, message: str | None = None) -> None:
        await self._claim.progress(fraction, message)

    async def complete(self, result: Any = None, *, within: Any) -> None:
        """Succeed in your transaction: the job is done exactly when your data is."""
        await self._claim.succeed(result, then=self.children, within=within)
