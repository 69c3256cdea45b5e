"""The verbs of an app, each declared once for both faces: arguments, checks, the operation it asks."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

from dibs import doctor as examination
from dibs.app.callbacks import cancel_events, swept_events
from dibs.app.claims import Claim, ClaimState, ClaimVerbs, hold
from dibs.app.finding import FindVerbs
from dibs.app.running import handler_for, run_claimed_job, run_claimed_job_sync
from dibs.app.state import AppState
from dibs.app.watching import JobWait
from dibs.clock import monotonic
from dibs.doctor import Finding
from dibs.doctor.servers import drifted, echo, echo_async, uncompared
from dibs.engines.retries import Tries
from dibs.engines.store import Operation, SchemaProblem, Store
from dibs.errors import BadRequest, DibsError, NotPermitted, SchemaOutdated, StoreUnavailable, UnsafeStore
from dibs.faces import Call, Calls, make, run, run_async, sleep, verb
from dibs.jobs import payload
from dibs.jobs.ids import parse_id, worker_name
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import USUAL_LEASE, check_priority
from dibs.jobs.pipelines import PipelineDraft
from dibs.jobs.states import FINISHED, Released
from dibs.operations import manage, queries, upkeep
from dibs.operations.claim import ClaimRequest, claim
from dibs.operations.enqueue import enqueue
from dibs.operations.queries import Queue
from dibs.operations.questions import Traits
from dibs.operations.scripts import Script
from dibs.operations.settle import Refusal, refusals
from dibs.operations.upkeep import Swept, WorkerInfo
from dibs.operations.why import Why, explain
from dibs.settings import Duration, lease_micros, seconds, span

GIVE_BACK_WITHIN = 2.0  # seconds that a cancelled caller waits until its claims are given back
_returning: set["asyncio.Future[None]"] = set()  # asyncio itself would forget a task that is under way

C = TypeVar("C", bound=ClaimVerbs)
N = TypeVar("N")


class Claimed(NamedTuple):
    """The claims that this process made, and what a sweep changed that was due."""

    held: list[ClaimState]
    swept: Swept | None


class Verbs(FindVerbs, Generic[C, N]):
    """The verbs of both faces; a face names its classes of claims and of new pipelines."""

    _claim: type[C]
    _new_pipeline: type[N]

    @property
    def traits(self) -> Traits:
        """What this app's store can promise."""
        return self._core.store.traits

    # -- tables ---------------------------------------------------------------------------------

    @verb
    def migrate(self) -> Calls[list[int]]:
        """Bring the store's tables up to date; return the versions that were applied."""
        store = self._core.store
        return (yield from make(Call(store.migrate, store.migrate_async)))

    @verb
    def schema_version(self) -> Calls[int]:
        """Return the version of the store's tables; 0 when there are none."""
        store = self._core.store
        return (yield from make(Call(store.schema_version, store.schema_version_async)))

    @verb
    def check_schema(self) -> Calls[list[SchemaProblem]]:
        """Compare the store's tables with what dibs makes; return what is missing or wrong."""
        store = self._core.store
        return (yield from make(Call(store.check_schema, store.check_schema_async)))

    # -- enqueue and claim ----------------------------------------------------------------------

    @verb
    def enqueue(self, *new_jobs: NewJob, within: Any = None) -> Calls[list[Job]]:
        """Store all of these jobs or none, in your transaction if you give one."""
        return (yield from self._enqueue(new_jobs, within))

    def _enqueue(self, new_jobs: Sequence[NewJob], within: Any) -> Calls[list[Job]]:
        rows = list(map(self._core.registry.prepare, new_jobs))
        fresh = False not in list(map(NewJob.take_fresh, new_jobs))

        def operation(tries: Tries) -> Script[list[Job]]:
            ours = {row[0] for row in rows} if fresh and tries.unsure else ()
            return enqueue(rows, fresh=fresh and tries.number == 0, ours=ours)

        if not rows:
            return []
        jobs: list[Job] = yield joined_call(self._core, operation, within)
        self._core.events.enqueued(jobs)
        return jobs

    def pipeline(self, name: str, *, on_failed: Literal["cancel", "hold"] = "cancel") -> N:
        """Return a new pipeline: add jobs to it, say which waits for which, and enqueue it as a whole.

        `on_failed` says what becomes of the jobs after one that failed or was cancelled: `cancel`, or `hold`.
        """
        draft = PipelineDraft(payload.check_name(name, "pipeline"), on_failed)
        return self._new_pipeline(self._core, draft)  # type: ignore[call-arg]

    @verb
    def claim(
        self,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 1,
        worker: str | None = None,
        lease: Duration | None = None,
    ) -> Calls[list[C]]:
        """Claim up to `limit` ready jobs; no other worker gets them while their leases are kept."""
        limit = payload.check_whole(limit, "limit", None, 10_000)
        queues, kinds = payload.check_names(queues, "queue"), payload.check_names(kinds, "kind")
        if limit <= 0 or queues == [] or kinds == []:
            return []
        request = self._request(worker, lease, limit=limit, queues=queues, kinds=kinds)
        held = yield from self._hold(lambda _: claim_script(self._core, request))
        return list(map(self._claim, held))

    @verb
    def claim_job(
        self, id: UUID | str, *, worker: str | None = None, lease: Duration | None = None
    ) -> Calls[C | None]:
        """Claim exactly this job, or no job: None when it can't be claimed now."""
        held = yield from self._hold(self._claim_one(id, worker, lease))
        return self._claim(held[0]) if held else None

    @verb
    def run_job(self, id: UUID | str) -> Calls[Job | None]:
        """Claim this job, run its handler here, settle it; None when it can't be claimed now.

        The app's `lifespan` is entered for it, before the claim, and left after it.
        """
        job = yield from self._get(id)
        if job is None:
            return None
        core, operation = self._core, self._claim_one(id)
        task = handler_for(core.registry, job)
        ran = yield from make(
            Call(
                lambda: run_claimed_job_sync(core, task, lambda: run(self._hold(operation))),
                lambda: run_claimed_job(core, task, lambda: run_async(self._hold(operation))),
            )
        )
        return (yield from self._get(id)) if ran else None

    def _hold(self, operation: Operation[Claimed]) -> Calls[list[ClaimState]]:
        store = self._core.store
        claimed: Claimed = yield Call(store.run, partial(claim_or_give_back, store), (operation,))
        if claimed.swept is not None:
            try:
                yield from self._report(claimed.swept)
            except (asyncio.CancelledError, KeyboardInterrupt):
                for held in claimed.held:
                    yield from held.settle(Released())
                raise
        return claimed.held

    def _report(self, swept: Swept) -> Calls[None]:
        core = self._core
        core.swept(swept)
        yield from core.callbacks.call(core.store, swept_events(swept))

    def _claim_one(
        self, id: UUID | str, worker: str | None = None, lease: Duration | None = None
    ) -> Operation[Claimed]:
        request = self._request(worker, lease, id=parse_id(id))
        return lambda _: claim_script(self._core, request)

    def _request(self, worker: str | None, lease: Duration | None, **what: Any) -> ClaimRequest:
        return ClaimRequest(
            worker=worker_name() if worker is None else payload.check_name(worker, "worker"),
            lease=USUAL_LEASE if lease is None else lease_micros(lease),
            leases=self._core.registry.leases if lease is None else {},
            **what,
        )

    # -- read -----------------------------------------------------------------------------------

    @verb
    def get(self, id: UUID | str) -> Calls[Job | None]:
        """Return the job as it is now, live or finished; None if there is none."""
        return (yield from self._get(id))

    def _get(self, id: UUID | str) -> Calls[Job | None]:
        parsed = parse_id(id)
        return (yield from self._ask(lambda _: queries.get(parsed)))

    @verb
    def queues(self) -> Calls[list[Queue]]:
        """Return the queues that have live jobs or a setting, by name."""
        return (yield from self._ask(lambda _: queries.queues()))

    @verb
    def workers(self) -> Calls[list[WorkerInfo]]:
        """Return the workers that were heard of lately, by name."""
        silence = self._core.silence
        return (yield from self._ask(lambda _: upkeep.workers(silence)))

    @verb
    def refusals(self, id: UUID | str) -> Calls[list[Refusal]]:
        """Return the late writes to this job that were refused, oldest first; the newest twenty are kept."""
        parsed = parse_id(id)
        return (yield from self._ask(lambda _: refusals(parsed)))

    @verb
    def why(self, id: UUID | str) -> Calls[Why]:
        """Explain why this job is not running: a sentence for people, `.code` for programs."""
        parsed, silence = parse_id(id), self._core.silence
        return (yield from self._ask(lambda _: explain(parsed, silence)))

    @verb
    def doctor(self) -> Calls[list[Finding]]:
        """Examine the store: is it set up as it should be, and is its work being done?"""
        store, silence = self._core.store, self._core.silence
        try:
            examined = yield from self._ask(lambda _: examination.examine(silence))
            schema = yield from make(Call(store.schema_version, store.schema_version_async))
            heard = yield from make(Call(echo, echo_async, (store,)))
            found = examination.judge(examined, heard, schema)
        except (SchemaOutdated, StoreUnavailable, NotPermitted, UnsafeStore) as error:
            return [examination.unwell(error)]
        try:
            problems = yield from make(Call(store.check_schema, store.check_schema_async))
            return [*found, *drifted(problems)]
        except Exception as error:
            return [*found, uncompared(error)]

    @verb
    def wait(self, id: UUID | str, *, timeout: Duration | None = None) -> Calls[Job]:
        """Wait until the job has finished, and return it; `TimeoutError` when that takes too long."""
        waiting = JobWait(id, seconds(timeout, "timeout"))
        while True:
            if (job := waiting.finished((yield from self._get(id)))) is not None:
                return job
            yield from sleep(waiting.pause())

    # -- act ------------------------------------------------------------------------------------

    @verb
    def cancel(self, id: UUID | str, reason: str | None = None) -> Calls[Job]:
        """End a waiting job, ask a running one to stop."""
        core = self._core
        parsed, checked = parse_id(id), core.checked_text(reason, "reason")
        job = yield from self._ask(lambda tries: manage.cancel(parsed, checked, unsure=tries.unsure))
        yield from core.callbacks.call(core.store, cancel_events(job))
        return job

    @verb
    def retry(self, id: UUID | str) -> Calls[Job]:
        """Let a failed or cancelled job run again with all its attempts; a scheduled one now."""
        parsed = parse_id(id)
        return (yield from self._ask(lambda _: manage.retry(parsed)))

    @verb
    def update(
        self,
        id: UUID | str,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
    ) -> Calls[Job]:
        """Change the priority of a waiting job, or when it is due; `Refused` once it runs or has finished."""
        parsed, (wait, at) = parse_id(id), payload.check_due(run_at, delay)
        rank = None if priority is None else check_priority(priority)
        if (rank, wait, at) == (None, None, None):
            raise BadRequest("nothing to change: give priority=, run_at= or delay=")
        return (yield from self._ask(lambda _: manage.update(parsed, rank, at, wait)))

    @verb
    def delete(self, id: UUID | str) -> Calls[bool]:
        """Remove a job that is not running; False when there is none."""
        parsed = parse_id(id)
        return (yield from self._ask(lambda tries: manage.delete(parsed, unsure=tries.unsure)))

    @verb
    def recover(self, id: UUID | str, *, stale_after: Duration | None = None) -> Calls[Job]:
        """Take back a job with a lease long over, `NotStale` until then; retry one whose last worker died."""
        parsed, settings = parse_id(id), self._core.settings
        stale = span(settings.stale_after if stale_after is None else stale_after, what="stale_after")
        return (yield from self._ask(lambda tries: manage.recover(parsed, stale, unsure=tries.unsure)))

    @verb
    def pause(self, queue: str) -> Calls[None]:
        """Let no worker claim from this queue."""
        name = payload.check_name(queue, "queue")
        yield from self._ask(lambda _: manage.set_queue(name, paused=True))

    @verb
    def resume(self, queue: str) -> Calls[None]:
        """Let the jobs of a paused queue be claimed again."""
        name = payload.check_name(queue, "queue")
        yield from self._ask(lambda _: manage.set_queue(name, paused=False))

    @verb
    def limit(self, queue: str, n: int | None) -> Calls[None]:
        """Run at most `n` jobs of this queue at a time; None lifts the limit."""
        name = payload.check_name(queue, "queue")
        most = None if n is None else payload.check_whole(n, "limit", 0, 1_000_000)
        yield from self._ask(lambda _: manage.set_queue(name, max_running=most, set_limit=True))

    @verb
    def sweep(self) -> Calls[Swept]:
        """Do one round of upkeep: due jobs become ready, expired leases are taken back."""
        swept = yield from self._ask(lambda _: upkeep.sweep_and_mend())
        yield from self._report(swept)
        return swept

    @verb
    def prune(self, older_than: Duration, *, state: str | Sequence[str] | None = None) -> Calls[int]:
        """Remove jobs that finished longer ago than this, all or in these states; return how many."""
        age, states = span(older_than, what="older_than"), queries.check_states(state)
        if states is not None and (live := [one for one in states if one not in FINISHED]):
            raise BadRequest(f"{live[0]} jobs can't be pruned, only {', '.join(sorted(FINISHED))} ones")
        ended = FINISHED if states is None else states
        return (yield from self._ask(lambda _: upkeep.prune(age, ended)))


def joined_call(core: AppState, operation: Operation[list[Job]], within: Any) -> Call[list[Job]]:
    """Return the call of an operation that enqueues.

    Only the sync face joins a transaction that a framework has open in this thread.
    """
    return Call(core.run_joined, core.store.run_async, (operation, within))


def claim_script(core: AppState, request: ClaimRequest) -> Script[Claimed]:
    """Claim what is asked for, and hold it."""
    asked_at = monotonic()  # before this very try was sent: the lease can't have begun earlier
    jobs, swept = yield from claim(request)
    return Claimed(hold(core, jobs, asked_at), swept)


async def claim_or_give_back(store: Store, operation: Operation[Claimed]) -> Claimed:
    """Run a claim. A caller that is cancelled meanwhile gets nothing, and what was claimed is given back.

    The store may have claimed already when the cancellation comes; no worker would run the jobs until their
    leases end.
    """
    claiming = asyncio.ensure_future(store.run_async(operation))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        if not claiming.cancelled():
            returning = asyncio.ensure_future(_give_back(claiming))
            _returning.add(returning)
            returning.add_done_callback(_returning.discard)
            # a store that hangs must not keep the caller
            await asyncio.wait([returning], timeout=GIVE_BACK_WITHIN)
        raise


async def _give_back(claiming: "asyncio.Future[Claimed]") -> None:
    with suppress(DibsError):  # it was not claimed after all, or can't be reached: its lease ends by itself
        claims = [Claim(held) for held in (await claiming).held]
        await asyncio.gather(*(claim.release() for claim in claims))
