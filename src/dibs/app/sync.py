"""`app.sync`: the blocking face, method for method the same as `Dibs`.

Signatures and docstrings are those of the awaited face; a test compares them.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from dibs.app.callbacks import Fate, cancel_fates, swept_fates
from dibs.app.claims import SyncClaim
from dibs.app.collections import SyncNewPipeline, SyncPipelines, SyncSlots, SyncTrains
from dibs.app.running import handler_for, run_job_sync
from dibs.app.schedules import ScheduleInfo
from dibs.app.verbs import Core
from dibs.app.watching import Looks
from dibs.doctor import Finding, judge, unwell
from dibs.doctor.servers import drifted, uncompared
from dibs.doctor.wakeup_check import echo
from dibs.engines.sql.schema_check import SchemaProblem
from dibs.errors import NotPermitted, SchemaOutdated, StoreUnavailable, UnsafeStore
from dibs.jobs.job import Job, NewJob
from dibs.operations.queries import Queue
from dibs.operations.questions import Traits
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.watch import Change, Topic
from dibs.operations.why import Why
from dibs.settings import Duration, seconds


class SyncDibs:
    """The blocking face of an app. What it returns blocks, too."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @cached_property
    def trains(self) -> SyncTrains:
        return SyncTrains(self._core)

    @cached_property
    def slots(self) -> SyncSlots:
        return SyncSlots(self._core)

    @cached_property
    def pipelines(self) -> SyncPipelines:
        return SyncPipelines(self._core)

    def pipeline(self, name: str, *, on_failed: str = "cancel") -> SyncNewPipeline:
        return SyncNewPipeline(self._core, self._core.plan(name, on_failed))

    @property
    def traits(self) -> Traits:
        return self._core.store.traits

    def open(self) -> Self:
        self._core.store.open()
        return self

    def close(self) -> None:
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

    def migrate(self) -> list[int]:
        return self._core.store.migrate()

    def schema_version(self) -> int:
        return self._core.store.schema_version()

    def check_schema(self) -> list[SchemaProblem]:
        return self._core.store.check_schema()

    def enqueue(self, *new_jobs: NewJob, within: Any = None) -> list[Job]:
        jobs = self._core.store.run(self._core.enqueue(new_jobs), self._core.joined(within))
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
        ran = run_job_sync(self._core, task, lambda: self.claim_job(id))
        return self.get(id) if ran else None

    def get(self, id: UUID | str) -> Job | None:
        return self._core.store.run(self._core.get(id))

    def find(
        self,
        *,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        kind: str | None = None,
        train: str | None = None,
        slot: str | tuple[Any, ...] | None = None,
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

    def schedules(self) -> list[ScheduleInfo]:
        return self._core.store.run(self._core.look_at_schedules())

    def why(self, id: UUID | str) -> Why:
        return self._core.store.run(self._core.why(id))

    def doctor(self) -> list[Finding]:
        try:
            examined = self._core.store.run(self._core.examine())
            schema = self._core.store.schema_version()
            found = judge(examined, echo(self._core.store), schema)
        except (SchemaOutdated, StoreUnavailable, NotPermitted, UnsafeStore) as error:
            return [unwell(error)]
        try:
            return [*found, *drifted(self.check_schema())]
        except Exception as error:
            return [*found, uncompared(error)]

    def wait(self, id: UUID | str, *, timeout: Duration | None = None) -> Job:
        looks = Looks(id, seconds(timeout, "timeout"))
        while not looks.over(job := self.get(id)):
            time.sleep(looks.pause())
        return job  # type: ignore[return-value]

    def watch(
        self,
        *,
        job_id: UUID | str | None = None,
        pipeline_id: UUID | str | None = None,
        queue: str | None = None,
    ) -> Iterator[Change]:
        return self._watch(self._core.topic(job_id, pipeline_id, queue))

    def _watch(self, topic: Topic) -> Iterator[Change]:
        news, over = threading.Event(), False
        with self._core.watching.watched(topic, news.set) as subscription:
            while not over:
                news.wait()
                news.clear()
                changes, over = subscription.take()
                yield from changes

    def cancel(self, id: UUID | str, reason: str | None = None) -> Job:
        job = self._core.store.run(self._core.cancel(id, reason))
        self._core.callbacks.tell_now_sync(self._core.store, cancel_fates(job))
        return job

    def retry(self, id: UUID | str) -> Job:
        return self._core.store.run(self._core.retry(id))

    def delete(self, id: UUID | str) -> bool:
        return self._core.store.run(self._core.delete(id))

    def cancel_many(self, *, reason: str | None = None, **filter: Any) -> int:
        ended: list[Fate] = []
        number = self._core.store.run(self._core.cancel_many(reason, ended, **filter))
        self._core.callbacks.tell_now_sync(self._core.store, ended)
        return number

    def retry_many(self, **filter: Any) -> int:
        return self._core.store.run(self._core.retry_many(**filter))

    def recover(self, id: UUID | str, *, stale_after: Duration | None = None) -> Job:
        return self._core.store.run(self._core.recover(id, stale_after))

    def pause(self, queue: str) -> None:
        self._core.store.run(self._core.pause(queue, True))

    def resume(self, queue: str) -> None:
        self._core.store.run(self._core.pause(queue, False))

    def limit(self, queue: str, n: int | None) -> None:
        self._core.store.run(self._core.limit(queue, n))

    def sweep(self) -> Swept:
        swept = self._core.swept(self._core.store.run(self._core.sweep()))
        self._core.callbacks.tell_now_sync(self._core.store, swept_fates(swept))
        return swept

    def prune(self, older_than: Duration, *, state: str | Sequence[str] | None = None) -> int:
        return self._core.store.run(self._core.prune(older_than, state))
