"""`app.sync`: the blocking face, method for method the same as `Dibs`.

Signatures and docstrings are those of the awaited face; a test compares them.
"""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from dibs.claims import SyncClaim
from dibs.contract import Traits
from dibs.core import Core
from dibs.jobs import Job, NewJob
from dibs.operations import Queue
from dibs.running import handler_for, run_claimed_sync
from dibs.settings import Duration
from dibs.upkeep import Swept, WorkerInfo
from dibs.waiting import Looks, seconds
from dibs.why import Why


class SyncDibs:
    """The blocking face of an app. What it returns blocks, too."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def traits(self) -> Traits:
        return self._core.store.traits

    def open(self) -> Self:
        self._core.store.open()
        return self

    def close(self) -> None:
        self._core.keeper.close()
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

    def migrate(self) -> list[int]:
        return self._core.store.migrate()

    def schema_version(self) -> int:
        return self._core.store.schema_version()

    def enqueue(self, *new_jobs: NewJob, within: Any = None) -> list[Job]:
        jobs = self._core.store.run(self._core.enqueue(new_jobs), within)
        self._core.events.enqueued(jobs)
        return jobs

    def claim(
        self,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 1,
        worker: str | None = None,
        lease: Duration | None = None,
    ) -> list[SyncClaim]:
        operation = self._core.claim(queues, kinds, limit, worker, lease)
        return [SyncClaim(held) for held in self._core.store.run(operation)]

    def claim_job(
        self, id: UUID | str, *, worker: str | None = None, lease: Duration | None = None
    ) -> SyncClaim | None:
        held = self._core.store.run(self._core.claim_job(id, worker, lease))
        return SyncClaim(held[0]) if held else None

    def run_job(self, id: UUID | str) -> Job | None:
        job = self.get(id)
        if job is None:
            return None
        task = handler_for(self._core.registry, job)
        claim = self.claim_job(id)
        if claim is None:
            return None
        run_claimed_sync(claim, task)
        return self.get(id)

    def get(self, id: UUID | str) -> Job | None:
        return self._core.store.run(self._core.get(id))

    def find(
        self,
        *,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        kind: str | None = None,
        train: str | None = None,
        slot: str | None = None,
        pipeline_id: UUID | str | None = None,
        tags: Sequence[str] | str | None = None,
        limit: int = 50,
        after: UUID | str | None = None,
    ) -> list[Job]:
        filter = {"state": state, "queue": queue, "kind": kind, "train": train, "slot": slot}
        operation = self._core.find(limit, after, **filter, pipeline_id=pipeline_id, tags=tags)
        return self._core.store.run(operation)

    def counts(self, queue: str | None = None) -> dict[str, int]:
        return self._core.store.run(self._core.counts(queue))

    def queues(self) -> list[Queue]:
        return self._core.store.run(self._core.queues())

    def workers(self) -> list[WorkerInfo]:
        return self._core.store.run(self._core.workers())

    def why(self, id: UUID | str) -> Why:
        return self._core.store.run(self._core.why(id))

    def wait(self, id: UUID | str, *, timeout: Duration | None = None) -> Job:
        looks = Looks(id, seconds(timeout, "timeout"))
        while not looks.over(job := self.get(id)):
            time.sleep(looks.pause())
        return job  # type: ignore[return-value]

    def cancel(self, id: UUID | str, reason: str | None = None) -> Job:
        return self._core.store.run(self._core.cancel(id, reason))

    def retry(self, id: UUID | str) -> Job:
        return self._core.store.run(self._core.retry(id))

    def delete(self, id: UUID | str) -> bool:
        return self._core.store.run(self._core.delete(id))

    def cancel_many(self, **filter: Any) -> int:
        return self._core.store.run(self._core.change_many("cancel", **filter))

    def retry_many(self, **filter: Any) -> int:
        return self._core.store.run(self._core.change_many("retry", **filter))

    def recover(self, id: UUID | str, *, stale_after: Duration | None = None) -> Job:
        return self._core.store.run(self._core.recover(id, stale_after))

    def pause(self, queue: str) -> None:
        self._core.store.run(self._core.pause(queue, True))

    def resume(self, queue: str) -> None:
        self._core.store.run(self._core.pause(queue, False))

    def limit(self, queue: str, n: int | None) -> None:
        self._core.store.run(self._core.limit(queue, n))

    def sweep(self) -> Swept:
        return self._core.swept(self._core.store.run(self._core.sweep()))

    def prune(self, older_than: Duration) -> int:
        return self._core.store.run(self._core.prune(older_than))
