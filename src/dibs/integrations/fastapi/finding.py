"""The routes that take a filter of jobs and a search: find what matches, and change all of it."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Body, Request, Response

from dibs.app.dibs import Dibs
from dibs.app.scopes import Scope, shown
from dibs.errors import BadRequest
from dibs.integrations.fastapi import models
from dibs.integrations.fastapi.permissions import RoutePermissions
from dibs.integrations.fastapi.requests import (
    MOST_PER_PAGE,
    REFUSED,
    Limit,
    Named,
    Search,
    Since,
    Slot,
    States,
    Tags,
    audit,
    json,
    refuse_unknown_filters,
)
from dibs.jobs.options import slot_from_text
from dibs.jobs.search import parse_span

Act = Literal["retry", "cancel", "delete"]
SUMMARIES: dict[Act, str] = {
    "retry": "Retry all that match: failed, cancelled and scheduled jobs",
    "cancel": "Cancel all that match and have not finished",
    "delete": "Delete all that match and do not run",
}


def add_search(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    read = [permissions.read]

    @api.get("/jobs", response_model=models.JobPage, dependencies=read, summary="Find jobs, newest first")
    async def find_jobs(
        request: Request,
        scope: InScope,
        fields: Fields,
        state: States = [],  # noqa: B006
        queue: Named = None,
        kind: Named = None,
        train: Named = None,
        slot: Slot = None,
        pipeline_id: UUID | None = None,
        tag: Tags = [],  # noqa: B006
        worker: Named = None,
        since: Since = None,
        q: Search = None,
        limit: Limit = 50,
        after: UUID | None = None,
    ) -> Response:
        refuse_unknown_filters(request)
        key, span = slot and slot_from_text(slot), since and parse_span(since)
        asked = {"queue": queue, "kind": kind, "train": train, "slot": key, "pipeline_id": pipeline_id}
        filter = scope.narrowed(state=state, tags=tag, worker=worker, since=span, **asked)
        most = min(limit, MOST_PER_PAGE)
        found = await app.search(q or "", limit=most, after=after, fields=fields, **filter)
        return json({**msgspec.structs.asdict(found), "jobs": [shown(job, fields) for job in found.jobs]})


def add_bulk_acts(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    By = Annotated[Any, permissions.write]

    def add(act: Act) -> None:
        @api.post(
            f"/jobs/{act}",
            name=f"{act}_jobs",
            response_model=models.Acted,
            responses=REFUSED,
            summary=SUMMARIES[act],
        )
        async def change_jobs(
            wanted: Annotated[models.JobsToChange, Body()], scope: InScope, fields: Fields, by: By
        ) -> Response:
            """Change nothing with `preview`, or when another number of jobs matches than you `expect`."""
            filter = scope.narrowed(**_filter(wanted))
            is_meant = filter or (wanted.q or "").strip() or wanted.expect is not None
            if not (is_meant or wanted.preview):
                raise BadRequest(f"this would {act} all jobs: give a filter, or say how many you expect")
            how = wanted.model_dump(include={"q", "preview", "expect", "reason"})
            acted = await app.change_matching(act, fields=fields, **how, **filter)
            if not wanted.preview:
                about = wanted.model_dump_json(exclude_defaults=True)
                audit(app, f"{act} {acted.changed}", about, by)
            return json(acted)

    for act in SUMMARIES:
        add(act)


def _filter(wanted: models.JobsToChange) -> dict[str, Any]:
    filter = wanted.model_dump(exclude={"q", "preview", "expect", "reason"}, exclude_none=True)
    if isinstance(filter.get("slot"), list):
        filter["slot"] = tuple(filter["slot"])
    if isinstance(filter.get("since"), str):
        filter["since"] = parse_span(filter["since"])
    return filter
