"""A web app of its own process, for the test with a thousand clients."""

import resource

from fastapi import FastAPI

from dibs import Dibs
from dibs.integrations.fastapi import lifespan, router

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))

app = Dibs()
web = FastAPI(lifespan=lifespan(app, worker=False))
web.include_router(router(app, insecure=True))
