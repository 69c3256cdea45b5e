"""Let time pass in a store without waiting: due jobs become due, leases run out, back-offs end.

A store's clock can't be moved (ADR 5), so everything in it becomes older instead. Times that one reads of a
job move with it: `run_at` of a job that is due in an hour lies fifty minutes ahead once ten have passed.
"""

from datetime import timedelta

from dibs.app.dibs import Dibs
from dibs.app.state import AppState
from dibs.app.sync import SyncDibs
from dibs.errors import BadRequest, Refused
from dibs.jobs.ids import worker_name
from dibs.operations import upkeep
from dibs.operations.upkeep import Swept
from dibs.settings import Duration, micros


def virtual_time(app: Dibs | SyncDibs) -> "VirtualClock":
    """A clock whose `advance` lets time pass in this app's store."""
    return VirtualClock(app._core)


class VirtualClock:
    """The time of one store, in the hands of a test."""

    def __init__(self, core: AppState) -> None:
        self._core = core

    def advance(
        self,
        duration: Duration = 0,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> Swept:
        """Let this much time pass, then do the upkeep that is due; answers what that moved.

        Refused while workers of other processes use the store: their time would pass as well.
        """
        parts = {"weeks": weeks, "days": days, "hours": hours, "minutes": minutes}
        more = timedelta(**parts, seconds=seconds, milliseconds=milliseconds)
        span = micros(duration, what="duration") + micros(more, what="duration")
        if span <= 0:
            raise BadRequest("time only goes forward: give advance() more than 0, like advance(minutes=10)")
        self._refuse_company()
        self._core.store.run(lambda _: upkeep.age(span))
        return self._core.swept(self._core.store.run(lambda _: upkeep.sweep_and_mend()))

    def _refuse_company(self) -> None:
        here = self._core.store.run(lambda _: upkeep.workers(self._core.silence))
        others = [worker.name for worker in here if not worker.name.startswith(worker_name())]
        if others:
            raise Refused(
                f"{', '.join(others)} works on this store, too, and time would pass for everybody: "
                "let it pass only in a store that the test has for itself"
            )
