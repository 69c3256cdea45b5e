"""What both faces share: settings, registry, store; here a call becomes a checked operation."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dibs import doctor
from dibs.app.callbacks import Callbacks, Fate, cancelled_fates
from dibs.app.claims import Holding
from dibs.app.context import Later
from dibs.app.leases import Keeper
from dibs.app.lifespan import Lifespan
from dibs.app.registry import Registry
from dibs.app.schedules import ScheduleInfo, Schedules, Ticked, enqueue_due, look
from dibs.app.settling import Settler
from dibs.app.watching import Watching
from dibs.clock import SECOND, monotonic
from dibs.doctor import StoreFacts
from dibs.engines.connect import connect
from dibs.engines.store import Operation, Store
from dibs.engines.trouble import Tries
from dibs.errors import BadRequest
from dibs.events import Events
from dibs.jobs import payload
from dibs.jobs.failures import error_entry, errors_text
from dibs.jobs.ids import may_have_steps, parse_id, worker_name
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import DEFAULT_LEASE, slot_name
from dibs.jobs.states import FINISHED, WORKER_DIED, JobState, Outcome, settle
from dibs.operations import manage, pipelines, queries, upkeep
from dibs.operations.claim import ClaimRequest, claim
from dibs.operations.enqueue import NewRow, enqueue
from dibs.operations.pipelines import Pipeline, Plan
from dibs.operations.queries import Queue, Train
from dibs.operations.scripts import Rows, Script
from dibs.operations.settle import Renewal, SettleRequest, lease_lost, progress, renew, settle_if_held
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.watch import Topic
from dibs.operations.why import Why, explain
from dibs.settings import Duration, Settings, lease_micros, span

MOST_FOUND = 1000
# Entered around each handler that runs, with its job; what it yields is told the outcome, and passes it on.
Around = Callable[[Job], AbstractContextManager[Callable[[Outcome], Outcome]]]
SHORTLY = 60 * SECOND  # what is not to be kept stays this long, so that a repeated settle is recognised


class Core:
    """One app's inner half. Nothing in here waits for anything but through `store`."""

    def __init__(self, settings: Settings, lifespan: Lifespan) -> None:
        self.settings = settings
        self.lifespan = lifespan
        self.registry = Registry(settings)
        self.schedules = Schedules(self.registry)
        self.events = Events()
        self.callbacks = Callbacks()
        self.around: Around | None = None
        self.open_transaction: Callable[[], Any] = lambda: None
        self.use(connect(settings))

    def use(self, store: Store) -> None:
        """Work on this store from now on; what was claimed in another stays that one's business."""
        self.store = store
        self.keeper = Keeper(store)
        self.later = Later()
        self.settler = Settler(store)
        self.watching = Watching(store, self.events)

    def close(self) -> None:
        """End the threads of this app."""
        self.watching.close()
        self.later.close()
        self.keeper.close()

    # -- enqueue --------------------------------------------------------------------------------

    def joined(self, within: Any) -> Any:
        """The caller's transaction: the one that was given, else what a framework has open in this thread."""
        return self.open_transaction() if within is None else within

    def enqueue(self, new_jobs: Sequence[NewJob]) -> Operation[list[Job]]:
        rows = [self.registry.prepare(new) for new in new_jobs]
        fresh = False not in [new.take_fresh() for new in new_jobs]
        if not rows:
            return _nothing
        return lambda tries: enqueue(
            rows,
            fresh=fresh and tries.number == 0,
            ours={row[0] for row in rows} if fresh and tries.unsure else (),
        )

    def plan(self, name: str, on_failed: str) -> Plan:
        """A new pipeline, of which the store knows nothing yet."""
        return Plan(payload.check_name(name, "pipeline"), on_failed)

    def enqueue_pipeline(self, plan: Plan) -> Operation[list[Job]]:
        rows = plan.rows([self.registry.prepare(new) for new in plan.jobs.values()])
        fresh = False not in [new.take_fresh() for new in plan.jobs.values()] and not plan.is_sent
        plan.is_sent = True
        if not rows:
            return _nothing
        return lambda tries: pipelines.enqueue(
            plan, rows, fresh=fresh and tries.number == 0, ours=fresh and tries.unsure
        )

    # -- claim ----------------------------------------------------------------------------------

    def claim(
        self,
        queues: Sequence[str] | None,
        kinds: Sequence[str] | None,
        limit: int,
        worker: str | None,
        lease: Duration | None,
    ) -> Operation[list[Holding]]:
        limit = payload.check_whole(limit, "limit", -(10**9), 10_000)
        queues, kinds = payload.check_names(queues, "queue"), payload.check_names(kinds, "kind")
        if limit <= 0 or queues == [] or kinds == []:
            return _nothing
        wish = self._wish(worker, lease, limit=limit, queues=queues, kinds=kinds)
        return lambda _: self._claimed(wish)

    def claim_job(
        self, id: UUID | str, worker: str | None, lease: Duration | None
    ) -> Operation[list[Holding]]:
        wish = self._wish(worker, lease, id=parse_id(id))
        return lambda _: self._claimed(wish)

    def _claimed(self, wish: ClaimRequest) -> Script[list[Holding]]:
        asked_at = monotonic()  # before this very try was sent: the lease can't have begun earlier
        return self.holdings((yield from claim(wish)), asked_at)

    def holdings(self, jobs: Sequence[Job], asked_at: float) -> list[Holding]:
        self.events.claimed(jobs)
        return [Holding(self, job, asked_at) for job in jobs]

    def _wish(self, worker: str | None, lease: Duration | None, **what: Any) -> ClaimRequest:
        return ClaimRequest(
            worker=worker_name() if worker is None else payload.check_name(worker, "worker"),
            lease=lease_micros(DEFAULT_LEASE if lease is None else lease),
            leases=self.registry.leases if lease is None else {},
            **what,
        )

    # -- settle, renew, progress ----------------------------------------------------------------

    def settlement(self, held: Holding, outcome: Outcome, then: Sequence[NewJob] = ()) -> SettleRequest:
        job = held.job
        children = self._children(job, then) if then else ()
        retry = self.registry.options(job.kind).retry
        to = settle(job.attempts, job.max_attempts, outcome, retry, random.random())  # noqa: S311
        starts_pipeline = children and job.pipeline_id is None
        values = (
            job.id,
            held.token,
            to.state,
            to.settled_as,
            to.delay,
            to.refund,
            to.result,
            errors_text(job.errors, to.error),
            to.message,
            job.id if starts_pipeline else None,
            job.train,
            job.slot,
        )
        return SettleRequest(
            values=values, children=children, steps_of=self._steps_of(job), unique=job.unique
        )

    def _children(self, job: Job, then: Sequence[NewJob]) -> list[NewRow]:
        children = [self.registry.prepare(new, parent=job) for new in then]
        for new in then:
            new.take_fresh()
        return children

    def _steps_of(self, job: Job) -> UUID | None:
        """The pipeline in which others may wait for this job; chained jobs don't pay for such pipelines."""
        return job.pipeline_id if may_have_steps(job.pipeline_id) else None

    def settle(self, one: SettleRequest) -> Operation[None]:
        return lambda _: _settle_one(one)

    def renew(self, held: Holding, lease: Duration | None) -> Operation[Renewal]:
        length = self.lease_of(held.job) if lease is None else lease_micros(lease)
        return lambda _: _renew_one(held, length)

    def progress(self, held: Holding, fraction: float, message: str | None) -> Operation[Renewal]:
        checked = self.check_progress(fraction, message)
        return lambda _: progress(held.job.id, held.token, float(fraction), checked)

    def check_progress(self, fraction: float, message: str | None) -> str | None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise BadRequest(f"progress={fraction!r} must be a number from 0 to 1")
        return self._text(message, "message")

    def encode_result(self, result: Any) -> str | None:
        return None if result is None else payload.encode(result, "result", self.settings.max_payload)

    def check_reason(self, reason: str | None) -> str | None:
        return self._text(reason, "reason")

    def _text(self, text: str | None, what: str) -> str | None:
        """Free text; an empty one says nothing."""
        return None if text is None else payload.check_text(text, what, self.settings.max_payload) or None

    def lease_of(self, job: Job) -> int:
        """The length of the lease that this job was claimed with."""
        if job.lease_until is None or job.claimed_at is None:
            return lease_micros(self.registry.options(job.kind).lease)
        return round((job.lease_until - job.claimed_at) / timedelta(microseconds=1))

    # -- look and act ---------------------------------------------------------------------------

    def get(self, id: UUID | str) -> Operation[Job | None]:
        parsed = parse_id(id)
        return lambda _: queries.get(parsed)

    def find(self, limit: int, after: UUID | str | None, **filter: Any) -> Operation[list[Job]]:
        limit = payload.check_whole(limit, "limit", -(10**9), MOST_FOUND)
        if limit <= 0:
            return _nothing
        checked, start = self._filter(**filter), None if after is None else parse_id(after)
        return lambda _: queries.find(checked, limit=limit, after=start)

    def topic(self, job_id: UUID | str | None, pipeline_id: UUID | str | None, queue: str | None) -> Topic:
        """What is to be watched: one of these, or everything."""
        if [job_id, pipeline_id, queue].count(None) < 2:
            raise BadRequest(
                "watch one thing: a job_id, a pipeline_id or a queue; nothing means all of the store"
            )
        if job_id is not None:
            return Topic("job", parse_id(job_id), {})
        if pipeline_id is not None:
            return Topic("pipeline", parse_id(pipeline_id), self._filter(pipeline_id=pipeline_id))
        chosen = self._filter(queue=queue)
        return Topic("queue", chosen["queue"], chosen)

    def counts(self, queue: str | None) -> Operation[dict[str, int]]:
        checked = None if queue is None else payload.check_name(queue, "queue")
        return lambda _: queries.counts(checked)

    def queues(self) -> Operation[list[Queue]]:
        return lambda _: queries.queues()

    def workers(self) -> Operation[list[WorkerInfo]]:
        silence = span(3 * self.settings.poll, what="poll")
        return lambda _: upkeep.workers(silence)

    def look_at_schedules(self) -> Operation[list[ScheduleInfo]]:
        return lambda _: look(list(self.schedules))

    def why(self, id: UUID | str) -> Operation[Why]:
        parsed, silence = parse_id(id), span(3 * self.settings.poll, what="poll")
        return lambda _: explain(parsed, silence)

    def examine(self) -> Operation[StoreFacts]:
        silence = span(3 * self.settings.poll, what="poll")
        return lambda _: doctor.examine(silence)

    def cancel(self, id: UUID | str, reason: str | None) -> Operation[Job]:
        parsed, checked = parse_id(id), self.check_reason(reason)
        return lambda tries: manage.cancel(parsed, checked, unsure=tries.unsure)

    def retry(self, id: UUID | str) -> Operation[Job]:
        parsed = parse_id(id)
        return lambda _: manage.retry(parsed)

    def delete(self, id: UUID | str) -> Operation[bool]:
        parsed = parse_id(id)
        return lambda tries: manage.delete(parsed, unsure=tries.unsure)

    def retry_many(self, **filter: Any) -> Operation[int]:
        checked = self._filter(**filter)
        return lambda _: manage.change_many("retry", checked)

    def cancel_many(self, reason: str | None, ended: list[Fate], **filter: Any) -> Operation[int]:
        """`ended` is filled with what is to be told of those that waited."""
        checked, why = self._filter(**filter), self.check_reason(reason)
        return lambda _: manage.change_many("cancel", checked, self._noting(ended), reason=why)

    def _noting(self, ended: list[Fate]) -> Callable[[Rows], object]:
        if not self.callbacks.want("cancelled"):
            return len
        return lambda rows: ended.extend(cancelled_fates(rows))

    def recover(self, id: UUID | str, stale_after: Duration | None) -> Operation[Job]:
        parsed = parse_id(id)
        stale = span(self.settings.stale_after if stale_after is None else stale_after, what="stale_after")
        return lambda tries: manage.recover(parsed, stale, _died, unsure=tries.unsure)

    def pause(self, queue: str, paused: bool) -> Operation[None]:
        name = payload.check_name(queue, "queue")
        return lambda _: manage.set_queue(name, paused=paused)

    def limit(self, queue: str, n: int | None) -> Operation[None]:
        name = payload.check_name(queue, "queue")
        most = None if n is None else payload.check_whole(n, "limit", 0, 1_000_000)
        return lambda _: manage.set_queue(name, max_running=most, set_limit=True)

    def sweep(self) -> Operation[Swept]:
        return lambda _: upkeep.sweep_and_mend()

    def trains(
        self,
        names: Sequence[str] | None = None,
        *,
        held: bool = False,
        limit: int = MOST_FOUND,
        after: str | None = None,
    ) -> Operation[list[Train]]:
        most = payload.check_whole(limit, "limit", -(10**9), MOST_FOUND)
        checked = payload.check_names(names, "train")
        start = None if after is None else payload.check_name(after, "after")
        return (
            _nothing
            if most <= 0
            else lambda _: queries.find_trains(checked, held=held, after=start, limit=most)
        )

    def held_trains(self) -> Operation[list[Train]]:
        return lambda _: queries.held_trains(MOST_FOUND)

    def release_train(self, name: str) -> Operation[bool]:
        checked = payload.check_name(name, "train")
        return lambda tries: queries.release_train(checked, unsure=tries.unsure)

    def current_of_slot(self, key: str | tuple[Any, ...]) -> Operation[Job | None]:
        slot = slot_name(key)
        return lambda _: queries.current_of(slot)

    def pipeline(self, id: UUID | str) -> Operation[Pipeline | None]:
        parsed, filter = parse_id(id), self._filter(pipeline_id=id)
        return lambda _: pipelines.look(parsed, filter)

    def cancel_pipeline(self, id: UUID | str, reason: str | None, ended: list[Fate]) -> Operation[int]:
        parsed, filter, why = parse_id(id), self._filter(pipeline_id=id), self.check_reason(reason)
        return lambda _: pipelines.change("cancel", parsed, filter, self._noting(ended), reason=why)

    def retry_pipeline(self, id: UUID | str) -> Operation[int]:
        failed = ("failed", "cancelled")
        parsed, filter = parse_id(id), self._filter(pipeline_id=id, state=failed)
        return lambda _: pipelines.change("retry", parsed, filter)

    def parents(self, job: Job) -> Operation[list[Job]]:
        return lambda _: pipelines.parents_of(job)

    def swept(self, swept: Swept) -> Swept:
        self.events.swept(
            staged=swept.staged, returned=swept.returned, failed=swept.failed, cancelled=swept.cancelled
        )
        return swept

    def enqueue_due(self, now: datetime) -> Operation[Ticked]:
        return lambda _: enqueue_due(list(self.schedules), self.registry, now)

    def retention(self) -> list[Operation[int]]:
        """What the settings `keep` and `keep_for` ask to be removed by now."""
        short = {"all": frozenset(), "failed": FINISHED - {JobState.failed}, "none": FINISHED}[
            self.settings.keep
        ]
        kept_for = span(self.settings.keep_for, what="keep_for")
        return [
            lambda _: upkeep.prune(kept_for),
            *([lambda _: upkeep.prune(SHORTLY, short)] if short else []),
        ]

    def prune(self, older_than: Duration, state: Any) -> Operation[int]:
        age = span(older_than, what="older_than")
        states = queries.check_states(state)
        if states is not None and (live := [one for one in states if one not in FINISHED]):
            raise BadRequest(f"{live[0]} jobs can't be pruned, only {', '.join(sorted(FINISHED))} ones")
        return lambda _: upkeep.prune(age, FINISHED if states is None else states)

    def _filter(
        self, state: Any = None, tags: Sequence[str] | str | None = None, **equal: Any
    ) -> Mapping[str, Any]:
        if unknown := set(equal) - {*_NAMES_TO_FIND, "pipeline_id"}:
            raise BadRequest(f"can't find jobs by {', '.join(sorted(unknown))}")
        given = {name: equal[name] for name in _NAMES_TO_FIND if equal.get(name) is not None}
        pipeline = equal.get("pipeline_id")
        states = queries.check_states(state)
        return {
            **dict.fromkeys(_NAMES_TO_FIND),
            **{name: _name_to_find(value, name) for name, value in given.items()},
            "pipeline_id": None if pipeline is None else parse_id(pipeline),
            "states": None if states is None else [one.value for one in states],
            "tags": payload.check_names(tags, "tag") or [],
        }


_NAMES_TO_FIND = ("queue", "kind", "train", "slot")


def _name_to_find(value: Any, name: str) -> str:
    return slot_name(value) if name == "slot" else payload.check_name(value, name)


def _nothing(_: Tries) -> Script[list[Any]]:
    return []
    yield


def _died(job: Job, at: datetime) -> str:
    assert job.token is not None
    death = error_entry(
        attempt=job.attempts,
        token=job.token,
        at=at,
        worker=job.worker,
        type="LeaseLost",
        message=WORKER_DIED,
    )
    return errors_text(job.errors, death)


def _settle_one(one: SettleRequest) -> Script[None]:
    if (yield from settle_if_held([one])):
        raise lease_lost(one.id, one.token)


def _renew_one(held: Holding, lease: int) -> Script[Renewal]:
    standing = yield from renew([held.key], lease)
    if held.key not in standing:
        raise lease_lost(held.job.id, held.token)
    return standing[held.key]
