"""dibs in your FastAPI (or Starlette) app: routes for your jobs, and a worker that runs with the app.

web = FastAPI(lifespan=lifespan(app))
web.include_router(router(app, read=Depends(may_read), write=Depends(may_write)), prefix="/dibs")
"""

import importlib.util

if importlib.util.find_spec("fastapi") is None:
    raise ModuleNotFoundError(
        "dibs.integrations.fastapi needs FastAPI: pip install 'dibs[fastapi]'", name="fastapi"
    )


from dibs.integrations.fastapi.lifespan import lifespan
from dibs.integrations.fastapi.routes import router

__all__ = ["lifespan", "router"]
