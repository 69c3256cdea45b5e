"""The web app of `dibs serve`."""

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

from dibs.app.dibs import Dibs
from dibs.integrations.fastapi import lifespan, router
from dibs.integrations.service.auth import Access
from dibs.integrations.service.middleware import Gate

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_service(app: Dibs, access: Access, hosts: Collection[str] = LOOPBACK) -> FastAPI:
    """The routes of `app` for those who have access, under these host names (`*` for any)."""
    read, write = Depends(access.may_read), Depends(access.may_write)
    service = FastAPI(
        title="dibs",
        version=version("dibs"),
        lifespan=lifespan(app, worker=False),
        middleware=[Middleware(Gate, hosts=hosts)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    service.include_router(router(app, read=read, write=write))

    @service.get("/openapi.json", dependencies=[read], include_in_schema=False)
    async def document() -> dict[str, Any]:
        return service.openapi()

    return service
