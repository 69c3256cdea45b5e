"""`router(app, read=…, write=…)`: all routes, behind the permissions that you pass."""

from collections.abc import Collection

from fastapi import APIRouter

from dibs.app.dibs import Dibs
from dibs.integrations.fastapi import models, routes
from dibs.integrations.fastapi.permissions import Permission, guards
from dibs.integrations.fastapi.requests import BoundedRoute
from dibs.integrations.prometheus import Metrics, OwnOutbox, Relayed

ROOM = 64 * 1024  # bytes of a body beside the arguments

RESPONSES = {
    400: {"model": models.Problem, "description": "The request can't be served as it stands"},
    401: {"description": "Who are you?"},
    403: {"description": "You may not"},
    413: {"model": models.Problem, "description": "The body is too long"},
    422: {"model": models.Invalid, "description": "The request is malformed"},
    503: {"model": models.Problem, "description": "The store can't be reached; try again"},
}


def router(
    app: Dibs,
    *,
    read: Permission | None = None,
    write: Permission | None = None,
    scope: Permission | None = None,
    shared: Collection[str] = (),
    outbox: Relayed | None = None,
    insecure: bool = False,
) -> APIRouter:
    """The routes of `app`: `read` guards those that look, `write` those that change something.

    Both are dependencies of yours that raise `HTTPException(401 or 403)`; without them there is no router,
    unless you say `insecure=True`. If `write` answers a name, it is in the audit log. `scope`, a dependency
    too, answers filters of `find`, like `{"tags": ["tenant-7"]}`, and the request sees and changes only
    the jobs that match. It enqueues none with a train, slot, unique key or pipeline that its scope does not
    name, in which jobs of others could be, unless `shared` lists `"train"`, `"slot"`, `"unique"` or
    `"pipeline_id"`.
    """
    guarded = guards(read, write, scope, shared, insecure=insecure)
    most = app._core.settings.max_payload + ROOM
    api = APIRouter(
        route_class=type("Route", (BoundedRoute,), {"most": most}),
        responses=RESPONSES,  # type: ignore[arg-type]
        tags=["jobs"],
        generate_unique_id_function=lambda route: route.name,
    )
    for add in routes.ALL:
        add(api, app, guarded)
    routes.watch_over(api, app, guarded, Metrics(app, outbox or OwnOutbox(app)))
    return api
