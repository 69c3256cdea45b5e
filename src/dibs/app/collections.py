"""`app.trains`, `.slots`, `.pipelines`, `.schedules`, `app.pipeline(…)`: each verb declared once."""

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dibs.app.callbacks import cancelled_events
from dibs.app.finding import AppVerbs
from dibs.app.verbs import joined_call
from dibs.engines.retries import Tries
from dibs.errors import BadRequest
from dibs.faces import AsyncFace, Calls, SyncFace, verb
from dibs.jobs import payload
from dibs.jobs.ids import new_id, parse_id
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import slot_name
from dibs.jobs.pipelines import Pipeline, PipelineDraft
from dibs.jobs.schedules import Missed, check_missed, rule
from dibs.operations import pipelines, queries, schedules
from dibs.operations.pipelines import PipelineInfo
from dibs.operations.queries import MOST_FOUND, Slot, Train, job_filter
from dibs.operations.schedules import ScheduleInfo
from dibs.operations.scripts import Script
from dibs.settings import Duration

if TYPE_CHECKING:
    from dibs.app.state import AppState


class TrainVerbs(AppVerbs):
    """The verbs of `app.trains`: jobs that run strictly one after another."""

    @verb
    def get(self, name: str) -> Calls[Train | None]:
        """Return the train of this name; None when no job is on it."""
        names = [payload.check_name(name, "train")]
        found = yield from self._ask(lambda _: queries.find_trains(names, held=False, after=None, limit=1))
        return found[0] if found else None

    @verb
    def held(self) -> Calls[list[Train]]:
        """Return the trains that wait for an operator, by name: retry the head, or release the train."""
        return (yield from self._ask(lambda _: queries.held_trains(MOST_FOUND)))

    @verb
    def release(self, name: str) -> Calls[bool]:
        """Let the next job of a held train go; return whether it was held.

        `NotFound` when no job is on it.
        """
        checked = payload.check_name(name, "train")
        return (yield from self._ask(lambda tries: queries.release_train(checked, unsure=tries.unsure)))

    @verb
    def list(
        self, *, held: bool = False, limit: int = MOST_FOUND, after: str | None = None
    ) -> Calls["list[Train]"]:
        """Return the trains with jobs on them, by name; `after` the last name of a page gives the next."""
        most = payload.check_whole(limit, "limit", None, MOST_FOUND)
        start = None if after is None else payload.check_name(after, "after")
        if most <= 0:
            return []
        return (yield from self._ask(lambda _: queries.find_trains(None, held=held, after=start, limit=most)))


class Trains(TrainVerbs, AsyncFace):
    """Trains of this app: jobs that run one after another. Example: `await app.trains.get("customer_7")`"""


class SyncTrains(TrainVerbs, SyncFace):
    """The sync face of `app.trains`."""


class SlotVerbs(AppVerbs):
    """The verbs of `app.slots`: keys that jobs share, so that not all of them run at once."""

    @verb
    def current(self, key: str | tuple[Any, ...]) -> Calls[Job | None]:
        """Return the job that started last, of the jobs that share this key."""
        slot = slot_name(key)
        return (yield from self._ask(lambda _: queries.current_of(slot)))

    @verb
    def get(self, key: str | tuple[Any, ...]) -> Calls[Slot | None]:
        """Return the slot of this key; None when no job with it waits or runs."""
        names = [slot_name(key)]
        found = yield from self._ask(lambda _: queries.find_slots(names, after=None, limit=1))
        return found[0] if found else None

    @verb
    def list(self, *, limit: int = MOST_FOUND, after: str | None = None) -> Calls["list[Slot]"]:
        """Return the slots with waiting or running jobs, by key; `after` the last key gives the next page."""
        most = payload.check_whole(limit, "limit", None, MOST_FOUND)
        start = None if after is None else slot_name(after)
        if most <= 0:
            return []
        return (yield from self._ask(lambda _: queries.find_slots(None, after=start, limit=most)))


class Slots(SlotVerbs, AsyncFace):
    """Slots of this app: keys that limit how many jobs run. Example: `await app.slots.current("csv")`"""


class SyncSlots(SlotVerbs, SyncFace):
    """The sync face of `app.slots`."""


class NewPipelineVerbs:
    """A new pipeline on either face: nothing is stored until it is enqueued."""

    def __init__(self, core: "AppState", draft: PipelineDraft) -> None:
        self._core = core
        self._draft = draft

    @property
    def id(self) -> UUID:
        """Its jobs' `pipeline_id`."""
        return self._draft.id

    @property
    def name(self) -> str:
        return self._draft.name

    def add(self, new: NewJob, *, after: Collection[NewJob | UUID | str] = ()) -> NewJob:
        """Add a job, which waits until all in `after` have succeeded; return it, to be waited for."""
        return self._draft.add(new, after)

    @verb
    def enqueue(self, *, within: Any = None) -> Calls[list[Job]]:
        """Store all of it or nothing, in your transaction if you give one; a second time stores nothing."""
        core, draft = self._core, self._draft
        rows = pipelines.rows_of(draft, [core.registry.prepare(new) for new in draft.jobs.values()])
        fresh = False not in [new.take_fresh() for new in draft.jobs.values()] and not draft.is_sent
        draft.is_sent = True
        if not rows:
            return []

        def operation(tries: Tries) -> Script[list[Job]]:
            first, ours = fresh and tries.number == 0, fresh and tries.unsure
            return pipelines.enqueue(draft, rows, fresh=first, ours=ours)

        jobs: list[Job] = yield joined_call(core, operation, within)
        core.events.enqueued(jobs)
        return jobs


class NewPipeline(NewPipelineVerbs, AsyncFace):
    """Jobs on their way to the store, some after others. Example: `await app.pipeline("import").enqueue()`"""

    @cached_property
    def sync(self) -> "SyncNewPipeline":
        """The same pipeline on the sync face."""
        return SyncNewPipeline(self._core, self._draft)


class SyncNewPipeline(NewPipelineVerbs, SyncFace):
    """The sync face of a new pipeline. Example: `app.pipeline("import").sync.enqueue()`"""


class PipelineVerbs(AppVerbs):
    """The verbs of `app.pipelines`: jobs that belong together."""

    @verb
    def get(self, id: UUID | str) -> Calls[Pipeline | None]:
        """Return the pipeline with all its jobs: counts by state, progress, tree; None when it has none."""
        parsed, filter = parse_id(id), job_filter(pipeline_id=id)
        return (yield from self._ask(lambda _: pipelines.get(parsed, filter)))

    @verb
    def list(self, *, limit: int = 50, after: UUID | str | None = None) -> Calls["list[PipelineInfo]"]:
        """Return the pipelines with their counts, newest first; `after` the last id gives the next page."""
        most = payload.check_whole(limit, "limit", None, MOST_FOUND)
        start = None if after is None else parse_id(after)
        if most <= 0:
            return []
        return (yield from self._ask(lambda _: pipelines.newest(limit=most, after=start)))

    @verb
    def cancel(self, id: UUID | str, reason: str | None = None) -> Calls[int]:
        """End all of its jobs that wait, ask its running ones to stop; return how many."""
        core = self._core
        parsed, filter, why = parse_id(id), job_filter(pipeline_id=id), core.checked_text(reason, "reason")
        wanted = core.callbacks.want("cancelled")
        changed = yield from self._ask(
            lambda _: pipelines.change("cancel", parsed, filter, with_rows=wanted, reason=why)
        )
        yield from core.callbacks.call(core.store, cancelled_events(changed.rows))
        return changed.number

    @verb
    def retry(self, id: UUID | str) -> Calls[int]:
        """Let all of its failed and cancelled jobs run again, in their order; return how many."""
        parsed, filter = parse_id(id), job_filter(pipeline_id=id, state=("failed", "cancelled"))
        changed = yield from self._ask(lambda _: pipelines.change("retry", parsed, filter))
        return changed.number


class ScheduleVerbs(AppVerbs):
    """The verbs of `app.schedules`: rules that enqueue a job at each of their ticks."""

    @verb
    def list(self) -> Calls["list[ScheduleInfo]"]:
        """Return all schedules, by name: the ones that were put, and the ones of `@app.every`."""
        known = self._core.schedules.definitions
        return (yield from self._ask(lambda _: schedules.find_schedules(known)))

    @verb
    def get(self, name: str) -> Calls[ScheduleInfo | None]:
        """Return the schedule of this name; None if there is none."""
        checked, known = payload.check_name(name, "name"), self._core.schedules.definitions
        return (yield from self._ask(lambda _: schedules.find_schedule(checked, known)))

    @verb
    def put(
        self, name: str, when: str | Duration, new: NewJob, /, *, tz: str = "UTC", missed: Missed = "latest"
    ) -> Calls[ScheduleInfo]:
        """Store a schedule: enqueue such a job at every tick of a cron expression or interval.

        Any worker serves it, also one that does not know the kind. Put again, it is changed.
        """
        core, checked, when_checked = self._core, payload.check_name(name, "name"), rule(when, tz)
        schedules.refuse_in_code(checked, core.schedules.definitions)
        row = core.registry.prepare(new)
        if new.run_at is not None or new.delay is not None:
            raise BadRequest("a job of a schedule is due at its tick: leave out run_at= and delay=")
        about = schedules.definition(when_checked, tz, check_missed(missed), "store", row)
        return (yield from self._ask(lambda _: schedules.put_schedule(checked, about)))

    @verb
    def pause(self, name: str) -> Calls[ScheduleInfo]:
        """Let no worker enqueue its ticks until it is resumed; `NotFound` if there is none."""
        return (yield from self._pause(name, paused=True))

    @verb
    def resume(self, name: str) -> Calls[ScheduleInfo]:
        """Let it go on with its next tick; the ones that came while it was paused are left out."""
        return (yield from self._pause(name, paused=False))

    def _pause(self, name: str, *, paused: bool) -> Calls[ScheduleInfo]:
        checked, known = payload.check_name(name, "name"), self._core.schedules.definitions
        return (yield from self._ask(lambda _: schedules.pause_schedule(checked, known, paused=paused)))

    @verb
    def run_now(self, name: str) -> Calls[Job]:
        """Enqueue its job at once, paused or not, and return it; its ticks stay as they are."""
        core, checked, id = self._core, payload.check_name(name, "name"), new_id()

        def operation(tries: Tries) -> Script[Job]:
            known, fresh = core.schedules.definitions, tries.number == 0
            return schedules.run_schedule(checked, known, id, fresh=fresh, ours=tries.unsure)

        job = yield from self._ask(operation)
        core.events.enqueued([job])
        return job

    @verb
    def delete(self, name: str) -> Calls[None]:
        """Remove a schedule that was put; `Refused` for one of `@app.every`, `NotFound` if there is none."""
        checked, known = payload.check_name(name, "name"), self._core.schedules.definitions
        yield from self._ask(lambda tries: schedules.delete_schedule(checked, known, unsure=tries.unsure))


class Schedules(ScheduleVerbs, AsyncFace):
    """Schedules of this store: rules that enqueue a job at each of their ticks.

    Example: `await app.schedules.put("hourly", "0 * * * *", NewJob("send_receipt", args={"order_id": 42}))`
    """


class SyncSchedules(ScheduleVerbs, SyncFace):
    """The sync face of `app.schedules`."""


class Pipelines(PipelineVerbs, AsyncFace):
    """Pipelines of this app: jobs that belong together. Example: `await app.pipelines.cancel(pipeline.id)`"""


class SyncPipelines(PipelineVerbs, SyncFace):
    """The sync face of `app.pipelines`."""
