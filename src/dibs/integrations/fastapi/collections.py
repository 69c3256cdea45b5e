"""Routes for slots, pipelines and schedules."""

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response

from dibs.app.dibs import Dibs
from dibs.app.scopes import Scope, shown
from dibs.integrations.fastapi import models
from dibs.integrations.fastapi.permissions import RoutePermissions
from dibs.integrations.fastapi.requests import MOST_PER_PAGE, REFUSED, UNKNOWN, Limit, QueueName, audit, json
from dibs.integrations.fastapi.requests import Slot as SlotKey
from dibs.integrations.fastapi.streams import summary
from dibs.jobs.options import slot_from_text, slot_name
from dibs.operations.queries import Slot
from dibs.operations.schedules import ScheduleInfo


def add_slots(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    @api.get(
        "/slots",
        response_model=models.SlotPage | models.Slot,
        dependencies=[permissions.read],
        summary="List slots, or show the one with this key",
    )
    async def list_slots(
        scope: Annotated[Scope, permissions.scope],
        key: SlotKey = None,
        limit: Limit = 50,
        after: Annotated[str | None, Query(min_length=1, max_length=700)] = None,
    ) -> Response:
        """List the slots with waiting or running jobs, by key; with `key=`, show that one alone.

        A slot without such jobs is shown with the job that ran last.
        """
        if key is not None:
            return json(_slot(await _slot_of(app, scope, key)))
        scope.only_all()
        most = min(limit, MOST_PER_PAGE)
        slots = await app.slots.list(limit=most, after=after)
        next_page = slots[-1].key if len(slots) == most else None
        return json({"slots": [_slot(slot) for slot in slots], "next": next_page})


async def _slot_of(app: Dibs, scope: Scope, text: str) -> Slot:
    key = slot_from_text(text)
    scope.narrowed(slot=key)
    if set(scope.filter) - {"slot"}:
        scope.only_all()
    slot = await app.slots.get(key)
    if slot is not None:
        return slot
    return Slot(key=slot_name(key), current=await app.slots.current(key), running=0, waiting=0)


def _slot(slot: Slot) -> dict[str, Any]:
    current = None if slot.current is None else summary(slot.current)
    return {"key": slot.key, "current": current, "running": slot.running, "waiting": slot.waiting}


def add_pipelines(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    @api.get("/pipelines", response_model=models.PipelinePage, dependencies=[permissions.read])
    async def list_pipelines(
        scope: Annotated[Scope, permissions.scope], limit: Limit = 50, after: UUID | None = None
    ) -> Response:
        """List the pipelines that have jobs, newest first."""
        scope.only_all()
        most = min(limit, MOST_PER_PAGE)
        pipelines = await app.pipelines.list(limit=most, after=after)
        next_page = pipelines[-1].id if len(pipelines) == most else None
        return json({"pipelines": pipelines, "next": next_page})


def add_schedules(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    By = Annotated[Any, permissions.write]

    @api.get("/schedules", response_model=models.Schedules, dependencies=[permissions.read])
    async def list_schedules(scope: InScope, fields: Fields) -> Response:
        """List the schedules by name."""
        scope.only_all()
        return json({"schedules": [_schedule(one, fields) for one in await app.schedules.list()]})

    @api.post("/schedules/{name:path}/pause", response_model=models.Schedule, responses=UNKNOWN)
    async def pause_schedule(name: QueueName, scope: InScope, fields: Fields, by: By) -> Response:
        """Let no worker enqueue its ticks until it is resumed."""
        scope.only_all()
        schedule = await app.schedules.pause(name)
        audit(app, "pause_schedule", name, by)
        return json(_schedule(schedule, fields))

    @api.post("/schedules/{name:path}/resume", response_model=models.Schedule, responses=UNKNOWN)
    async def resume_schedule(name: QueueName, scope: InScope, fields: Fields, by: By) -> Response:
        """Let it continue with its next tick."""
        scope.only_all()
        schedule = await app.schedules.resume(name)
        audit(app, "resume_schedule", name, by)
        return json(_schedule(schedule, fields))

    @api.post("/schedules/{name:path}/run", response_model=models.Job, responses={**UNKNOWN, **REFUSED})
    async def run_schedule(name: QueueName, scope: InScope, fields: Fields, by: By) -> Response:
        """Enqueue its job at once; its ticks stay as they are."""
        scope.only_all()
        job = await app.schedules.run_now(name)
        audit(app, "run_schedule", name, by)
        return json(shown(job, fields))


def _schedule(schedule: ScheduleInfo, fields: Collection[str]) -> ScheduleInfo:
    """Return the schedule, without its arguments if they are not to be shown."""
    return schedule if "args" in fields else replace(schedule, args=None)
