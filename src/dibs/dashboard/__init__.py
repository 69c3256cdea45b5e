"""The page of dibs: see what waits and why, act on it, follow it live. An ASGI app for any path.

    web.mount("/jobs", Dashboard(app, authorize=role_of))

It is drawn on the server and works without JavaScript. Every link is relative, so it may live below any
prefix of any framework, behind any proxy. Needs Starlette and Jinja2: `pip install 'dibs[dashboard]'`.
"""

import importlib.util

if not all(importlib.util.find_spec(name) for name in ("starlette", "jinja2")):
    raise ModuleNotFoundError(
        "dibs.dashboard needs Starlette and Jinja2: pip install 'dibs[dashboard]'", name="starlette"
    )

from dibs.dashboard.dashboard import Dashboard
from dibs.dashboard.sessions import TokenLogin

__all__ = ["Dashboard", "TokenLogin"]
