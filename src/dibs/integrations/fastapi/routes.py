"""`router(app, read=…, write=…)`: routes that list, change and watch jobs, behind your permissions."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Body, Path, Request, Response

from dibs.app.dibs import Dibs
from dibs.app.guards import StreamLimit, file_limit, network_of
from dibs.app.scopes import USUAL_FIELDS, Scope, shown, why_shown
from dibs.errors import DibsError, NotFound
from dibs.integrations.fastapi import models
from dibs.integrations.fastapi.collections import add_pipelines, add_schedules, add_slots
from dibs.integrations.fastapi.finding import add_bulk_acts, add_search
from dibs.integrations.fastapi.permissions import Permission, RoutePermissions, check_permissions
from dibs.integrations.fastapi.requests import (
    MOST_PER_PAGE,
    REFUSED,
    UNKNOWN,
    BoundedRoute,
    Id,
    Limit,
    Named,
    QueueName,
    audit,
    json,
    problem,
)
from dibs.integrations.fastapi.streams import (
    EventStream,
    FindFirst,
    encode_shown,
    encode_summary,
    event_id_of,
    summary,
)
from dibs.integrations.prometheus import CONTENT_TYPE, AppOutbox, JobMetrics, OutboxSource
from dibs.jobs.job import Job, NewJob
from dibs.jobs.pipelines import Pipeline
from dibs.operations.queries import Train
from dibs.operations.watch import FIRST_SIGHT, LIVE, WatchTarget, watch_target

Acts = dict[str, Callable[..., Awaitable[Job]]]

BODY_ROOM = 64 * 1024  # bytes of a body beside the arguments

RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": models.Problem, "description": "The request can't be served as it stands"},
    401: {"description": "No valid credentials"},
    403: {"description": "Not permitted"},
    413: {"model": models.Problem, "description": "The body is too long"},
    422: {"model": models.Invalid, "description": "The request is malformed"},
    503: {"model": models.Problem, "description": "The store can't be reached; try again"},
}


EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": models.Event.model_json_schema()}},
        "description": "Events `snapshot`, `change`, `gone`, `end`, `resync`.",
    }
}
SEEN_ALL: dict[int | str, dict[str, Any]] = {204: {"description": "Finished, and the client has all events"}}


def router(
    app: Dibs,
    *,
    read: Permission | None = None,
    write: Permission | None = None,
    scope: Permission | None = None,
    shared: Collection[str] = (),
    fields: Permission | Collection[str] = USUAL_FIELDS,
    outbox: OutboxSource | None = None,
    cross_site: bool = False,
    insecure: bool = False,
) -> APIRouter:
    """Return the routes of `app`: `read` protects the routes that read, `write` the routes that change.

    Both are dependencies of yours that raise `HTTPException(401 or 403)`; without them there is no router,
    unless you say `insecure=True`. If `write` returns a name, it is in the audit log. `scope`, a dependency
    too, returns filters of `find`, like `{"tags": ["tenant-7"]}`, and the request sees and changes only the
    jobs that match. It can't enqueue a job with a train, slot, unique key or pipeline that its scope does
    not name, since jobs outside of the scope could have the same, unless `shared` lists `"train"`, `"slot"`,
    `"unique"` or `"pipeline_id"`. `fields`, names or a dependency that returns them, says which of `args`,
    `result`, `errors`, `traceback` and `meta` a response or event has. Requests of pages of other sites
    change nothing, unless `cross_site` is set.
    Example: `web.include_router(router(app, read=Depends(may_read), write=Depends(may_write)))`"""
    permissions = check_permissions(read, write, scope, shared, fields, insecure=insecure)
    most = app._core.settings.max_payload + BODY_ROOM
    api = APIRouter(
        route_class=type("Route", (BoundedRoute,), {"most": most, "cross_site": cross_site}),
        responses=RESPONSES,
        tags=["jobs"],
        generate_unique_id_function=lambda route: route.name,
    )
    for add in (
        add_search,
        add_job_queries,
        add_job_changes,
        add_bulk_acts,
        add_queues,
        add_trains,
        add_events,
    ):
        add(api, app, permissions)
    for add in (add_slots, add_pipelines, add_schedules):
        add(api, app, permissions)
    add_monitoring(api, app, permissions, JobMetrics(app, outbox or AppOutbox(app)))
    return api


def add_job_queries(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    read = [permissions.read]

    @api.get("/jobs/{id}", response_model=models.Job, dependencies=read, responses=UNKNOWN)
    async def get_job(id: Id, scope: InScope, fields: Fields) -> Response:
        return json(shown(await job_within(app, scope, id), fields))

    @api.get("/jobs/{id}/why", response_model=models.Why, dependencies=read, responses=UNKNOWN)
    async def why_not_running(id: Id, scope: InScope, fields: Fields) -> Response:
        """Explain why a job is not running, in one sentence and a code."""
        await job_within(app, scope, id)
        why = await app.why(id)
        return json({"code": why.code, "text": await why_shown(app, why, scope, fields)})

    @api.get("/pipelines/{id}", response_model=models.Pipeline, dependencies=read, responses=UNKNOWN)
    async def get_pipeline(id: Annotated[UUID, Path()], scope: InScope) -> Response:
        pipeline = await pipeline_within(app, scope, id)
        return json({"id": id, "counts": pipeline.counts, "progress": pipeline.progress})


def add_job_changes(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    By = Annotated[Any, permissions.write]
    acts: Acts = {"update": app.update, "recover": app.recover, "cancel": app.cancel, "retry": app.retry}

    async def acted(verb: str, id: UUID, scope: Scope, fields: Any, by: Any, **about: Any) -> Response:
        await job_within(app, scope, id)
        job = await acts[verb](id, **about)
        audit(app, verb, id, by)
        return json(shown(job, fields))

    @api.post(
        "/jobs",
        response_model=models.Job,
        status_code=201,
        responses={200: {"model": models.Job, "description": "It was there already"}, **REFUSED},
        summary="Enqueue a job",
    )
    async def enqueue_job(new: models.NewJob, scope: InScope, fields: Fields, by: By) -> Response:
        """Refuse (403) a train, slot, unique key or pipeline that jobs outside of your scope could have."""
        wanted = _new_job(new, scope)
        scope.may_enqueue(app._core.registry.prepare(wanted))
        [job] = await app.enqueue(wanted)
        if not scope.allows(job):  # a job outside of the scope has the id or the unique key
            return problem(409, "another job has this id or this unique key")
        if job.is_new:
            audit(app, "enqueue", job.id, by)
        return json(shown(job, fields), 201 if job.is_new else 200)

    @api.patch("/jobs/{id}", response_model=models.Job, responses={**UNKNOWN, **REFUSED})
    async def update_job(
        id: Id, scope: InScope, fields: Fields, by: By, change: models.JobChange
    ) -> Response:
        """Change the priority of a waiting job, or when it is due; 409 once it runs or has finished."""
        to = {"priority": change.priority, "run_at": change.run_at, "delay": change.delay}
        return await acted("update", id, scope, fields, by, **to)

    @api.delete("/jobs/{id}", status_code=204, responses={**UNKNOWN, **REFUSED})
    async def delete_job(id: Id, scope: InScope, by: By) -> Response:
        """Remove a job for good; 409 while it runs."""
        await job_within(app, scope, id)
        await app.delete(id)
        audit(app, "delete", id, by)
        return Response(status_code=204)

    @api.post("/jobs/{id}/recover", response_model=models.Job, responses={**UNKNOWN, **REFUSED})
    async def recover_job(id: Id, scope: InScope, fields: Fields, by: By) -> Response:
        """Take a job back from a worker that is long dead, with all of its attempts.

        409 until its lease has been over for the app's `stale_after`, by default 30 minutes.
        """
        return await acted("recover", id, scope, fields, by)

    @api.post("/jobs/{id}/cancel", response_model=models.Job, responses={**UNKNOWN, **REFUSED})
    async def cancel_job(
        id: Id,
        scope: InScope,
        fields: Fields,
        by: By,
        why: Annotated[models.CancelReason | None, Body()] = None,
    ) -> Response:
        """End a waiting job, ask a running one to stop."""
        return await acted("cancel", id, scope, fields, by, reason=None if why is None else why.reason)

    @api.post("/jobs/{id}/retry", response_model=models.Job, responses={**UNKNOWN, **REFUSED})
    async def retry_job(id: Id, scope: InScope, fields: Fields, by: By) -> Response:
        """Let a failed or cancelled job run again with all its attempts; a scheduled one now."""
        return await acted("retry", id, scope, fields, by)


def add_queues(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    By = Annotated[Any, permissions.write]
    read = [permissions.read]

    @api.get("/queues", response_model=models.Queues, dependencies=read)
    async def list_queues(scope: InScope) -> Response:
        """List the queues with live jobs or a setting."""
        if "queue" in scope.filter:
            scope.only_queue(scope.filter["queue"])
        else:
            scope.only_all()
        queues = [each for each in await app.queues() if each.name == scope.filter.get("queue", each.name)]
        return json({"queues": queues})

    @api.post("/queues/{name:path}/pause", response_model=models.Queue, responses=UNKNOWN)
    async def pause_queue(name: QueueName, scope: InScope, by: By) -> Response:
        """Stop workers from claiming jobs of this queue; running jobs continue."""
        scope.only_queue(name)
        await app.pause(name)
        audit(app, "pause", name, by)
        return json(await _queue(app, name))

    @api.post("/queues/{name:path}/resume", response_model=models.Queue, responses=UNKNOWN)
    async def resume_queue(name: QueueName, scope: InScope, by: By) -> Response:
        """Let workers claim the jobs of a paused queue again."""
        scope.only_queue(name)
        await app.resume(name)
        audit(app, "resume", name, by)
        return json(await _queue(app, name))

    @api.post("/queues/{name:path}/limit", response_model=models.Queue, responses=UNKNOWN)
    async def limit_queue(name: QueueName, scope: InScope, by: By, to: models.QueueLimit) -> Response:
        """Let at most this many jobs of the queue run at a time; null lifts the limit."""
        scope.only_queue(name)
        await app.limit(name, to.limit)
        audit(app, "limit", name, by)
        return json(await _queue(app, name))

    @api.get("/workers", response_model=models.Workers, dependencies=read)
    async def list_workers(scope: InScope) -> Response:
        """List the workers that were seen lately."""
        scope.only_all()
        return json({"workers": await app.workers()})


def add_trains(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    By = Annotated[Any, permissions.write]

    @api.get("/trains", response_model=models.Trains, dependencies=[permissions.read])
    async def list_trains(
        scope: InScope, held: bool = False, limit: Limit = 50, after: Named = None
    ) -> Response:
        """List the trains that have jobs, by name; or only held ones, which wait for an operator."""
        scope.only_all()
        most = min(limit, MOST_PER_PAGE)
        trains = await app.trains.list(held=held, limit=most, after=after)
        next_page = trains[-1].name if len(trains) == most else None
        return json({"trains": [_train(train) for train in trains], "next": next_page})

    @api.post("/trains/{name:path}/release", response_model=models.Train, responses={**UNKNOWN, **REFUSED})
    async def release_train(name: QueueName, scope: InScope, by: By) -> Response:
        """Let a held train continue with its next job."""
        train = await app.trains.get(name)
        if train is None or (scope.filter and _visible(train, scope).head is None):
            return problem(404, f"no train {name!r}: no job is on it")
        if not await app.trains.release(name):
            return problem(409, f"the train {name!r} is not held: there is nothing to release")
        audit(app, "release", name, by)
        now = await app.trains.get(name)
        return json(_train(_visible(now or Train(name=name, head=None, length=0, held=False), scope)))


def add_events(api: APIRouter, app: Dibs, permissions: RoutePermissions) -> None:
    InScope = Annotated[Scope, permissions.scope]
    Fields = Annotated[frozenset[str], permissions.fields]
    Reader = Annotated[Any, permissions.read]
    streams = StreamLimit(file_limit())

    def stream(
        request: Request,
        reader: Any,
        scope: Scope,
        topic: WatchTarget,
        *,
        fields: frozenset[str] | None = None,
        find_first: FindFirst | None = None,
    ) -> Response:
        address = None if request.client is None else request.client.host
        client = reader if isinstance(reader, str) else network_of(address)
        if (refusal := streams.refusal(client)) is not None:
            return problem(503, refusal)
        return EventStream(
            app._core.watching,
            topic,
            encode=encode_summary if fields is None else partial(encode_shown, fields=fields),
            allows=scope.allows,
            last_event_id=request.headers.get("last-event-id"),
            find_first=find_first,
            counted=streams.counted(client),
        )

    @api.get(
        "/jobs/{id}/events",
        response_class=Response,
        responses={**EVENTS, **SEEN_ALL, **UNKNOWN},
    )
    async def follow_job(
        request: Request, id: Id, reader: Reader, scope: InScope, fields: Fields
    ) -> Response:
        """Stream the progress and every change of a job, until it has finished."""
        job = await job_within(app, scope, id)
        if job.is_finished and request.headers.get("last-event-id") == event_id_of(job):
            return Response(status_code=204)  # a browser then does not reconnect
        return stream(request, reader, scope, watch_target(id, None, None), fields=fields)

    @api.get(
        "/pipelines/{id}/events",
        response_class=Response,
        responses={**EVENTS, **UNKNOWN},
    )
    async def follow_pipeline(
        request: Request, id: Annotated[UUID, Path()], reader: Reader, scope: InScope, fields: Fields
    ) -> Response:
        """Stream the changes of all jobs of a pipeline, until all have finished."""
        is_outside = scope.filter.get("pipeline_id", id) != id
        if is_outside or not await app.find(limit=1, **{**scope.filter, "pipeline_id": id}):
            raise NotFound(id, "pipeline")
        return stream(request, reader, scope, watch_target(None, id, None), fields=fields)

    @api.get("/events", response_class=Response, responses=EVENTS)
    async def follow_store(request: Request, reader: Reader, scope: InScope, queue: Named = None) -> Response:
        """Stream the changes of all jobs, or of the jobs of a queue; first, the 200 newest live ones.

        These events have no id: a client that reconnects gets a new snapshot.
        """
        filter = scope.narrowed(queue=queue)
        topic = watch_target(None, None, filter.get("queue"))
        sees_all = set(filter) <= {"queue"}
        visible = partial(app.find, state=LIVE, limit=FIRST_SIGHT, **filter)
        return stream(request, reader, scope, topic, find_first=None if sees_all else visible)


def add_monitoring(api: APIRouter, app: Dibs, permissions: RoutePermissions, metrics: JobMetrics) -> None:
    @api.get(
        "/healthz",
        response_model=models.Health,
        responses={503: {"model": models.Health, "description": "The store or the worker is unhealthy"}},
    )
    async def health(request: Request) -> Response:
        """Report whether this process is healthy; needs no permission."""
        state = getattr(request.app.state, "dibs", None)
        try:
            await app.schema_version()
        except DibsError:
            return json({"status": "unhealthy"}, 503)
        if state is not None and not state.is_healthy:
            return json({"status": "unhealthy"}, 503)
        return json({"status": "ok"})

    @api.get("/doctor", response_model=models.Findings, dependencies=[permissions.read])
    async def examine_store(scope: Annotated[Scope, permissions.scope]) -> Response:
        """Check the store; each finding says what to do about it."""
        scope.only_all()
        return json({"findings": await app.doctor()})

    @api.get("/metrics", dependencies=[permissions.read], response_class=Response, responses=_METRICS)
    async def show_metrics(scope: Annotated[Scope, permissions.scope]) -> Response:
        """Return the metrics for Prometheus."""
        scope.only_all()
        return Response(await metrics.text(), media_type=CONTENT_TYPE, headers={"cache-control": "no-store"})


_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


# -- what the routes share ----------------------------------------------------------------------


async def job_within(app: Dibs, scope: Scope, id: UUID) -> Job:
    """Return the job; one outside of the scope is not found."""
    job = await app.get(id)
    if job is None or not scope.allows(job):
        raise NotFound(id)
    return job


async def pipeline_within(app: Dibs, scope: Scope, id: UUID) -> Pipeline:
    """Return the pipeline with the jobs of the scope; other jobs are neither shown nor counted."""
    pipeline = await app.pipelines.get(id)
    jobs = () if pipeline is None else tuple(job for job in pipeline.jobs if scope.allows(job))
    if pipeline is None or not jobs:
        raise NotFound(id, "pipeline")
    return replace(pipeline, jobs=jobs)


def _new_job(new: models.NewJob, scope: Scope) -> NewJob:
    given = {name: getattr(new, name) for name in new.model_fields_set}
    if isinstance(given.get("slot"), list):
        given["slot"] = tuple(given["slot"])
    wanted = {name: given.get(name) for name in scope.filter}
    return NewJob(**{**given, **scope.narrowed(**wanted)})


def _visible(train: Train, scope: Scope) -> Train:
    """Return the train, without its head if that job is outside of the scope."""
    return train if train.head is None or scope.allows(train.head) else replace(train, head=None)


def _train(train: Train) -> dict[str, Any]:
    head = None if train.head is None else summary(train.head)
    return {"name": train.name, "head": head, "length": train.length, "held": train.held}


async def _queue(app: Dibs, name: str) -> dict[str, Any]:
    found = [queue for queue in await app.queues() if queue.name == name]
    nothing = {"name": name, "paused": False, "limit": None, "counts": {}}
    return msgspec.to_builtins(found[0]) if found else nothing
