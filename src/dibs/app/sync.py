"""`app.sync`: the sync face of an app."""

import threading
from collections.abc import Iterator
from functools import cached_property
from types import TracebackType
from typing import Self
from uuid import UUID

from dibs.app.claims import SyncClaim
from dibs.app.collections import SyncNewPipeline, SyncPipelines, SyncSchedules, SyncSlots, SyncTrains
from dibs.app.state import AppState
from dibs.app.verbs import Verbs
from dibs.faces import SyncFace
from dibs.operations.watch import Change, WatchTarget, watch_target


class SyncDibs(Verbs[SyncClaim, SyncNewPipeline], SyncFace):
    """The sync face of an app. What it returns blocks, too."""

    _claim, _new_pipeline = SyncClaim, SyncNewPipeline

    def __init__(self, core: AppState) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<SyncDibs {self._core}>"

    @cached_property
    def trains(self) -> SyncTrains:
        """Jobs that run one after another."""
        return SyncTrains(self._core)

    @cached_property
    def slots(self) -> SyncSlots:
        """Keys that jobs share, so that not all of them run at once."""
        return SyncSlots(self._core)

    @cached_property
    def pipelines(self) -> SyncPipelines:
        """Jobs that belong together."""
        return SyncPipelines(self._core)

    @cached_property
    def schedules(self) -> SyncSchedules:
        """Rules that enqueue a job at each of their ticks."""
        return SyncSchedules(self._core)

    def open(self) -> Self:
        """Connect and check the schema now rather than at the first call."""
        self._core.store.open()
        return self

    def close(self) -> None:
        """Give the connections back; the app opens again at the next call."""
        self._core.close()
        self._core.store.close()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def watch(
        self,
        *,
        job_id: UUID | str | None = None,
        pipeline_id: UUID | str | None = None,
        queue: str | None = None,
    ) -> Iterator[Change]:
        """Yield changes of a job, a pipeline, a queue or the whole store as they happen; first, all as it is.

        Ends when the job or the whole pipeline has finished. Of several changes that come close together only
        the latest may be yielded.
        """
        return self._watch(watch_target(job_id, pipeline_id, queue))

    def _watch(self, target: WatchTarget) -> Iterator[Change]:
        news, over = threading.Event(), False
        with self._core.watching.watched(target, news.set) as subscription:
            while not over:
                news.wait()
                news.clear()
                changes, over = subscription.take()
                yield from changes
