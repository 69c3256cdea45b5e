"""Write the table of verbs: `python docs/reference/draw_verbs.py > docs/reference/verbs.md`.

A verb, a command or a route that is missing in the table is an error, and so is one that is no more.
"""

from collections.abc import Iterator
from typing import Any

import typer
from fastapi.routing import APIRoute

from dibs import Dibs, SyncDibs
from dibs.app import collections
from dibs.cli import app as commands
from dibs.integrations.fastapi import router

OPENING = """# The same thing in Python, on the command line, over HTTP

Every verb is on `app` (awaited) and, under the same name and with the same arguments, on `app.sync`. This
table is made from the code by `docs/reference/draw_verbs.py`. Behind a dash stands why there is nothing.

| Python | command line | HTTP |
|---|---|---|
"""

OURS = "— it is about your own process"
MIGRATE = "— tables are made by `dibs migrate`, with rights that a service should not have"
MANY = "`--all` and filters"

# Python: (command, route). What is no command or route begins with a dash and says why.
VERBS: dict[str, tuple[str, str]] = {
    "open": (OURS, OURS),
    "close": (OURS, OURS),
    "migrate": ("migrate", MIGRATE),
    "schema_version": ("doctor", "GET /doctor"),
    "check_schema": ("doctor", "GET /doctor"),
    "enqueue": ("enqueue", "POST /jobs"),
    "pipeline": ("— jobs that wait for each other are named in code", "— the same"),
    "claim": ("work", "— a claim is held by a process that renews it"),
    "claim_job": ("work", "— the same"),
    "run_job": ("work", "— the same"),
    "get": ("jobs show", "GET /jobs/{id}"),
    "find": ("jobs list", "GET /jobs"),
    "search": ("jobs list", "GET /jobs"),
    "count": ("jobs retry", "POST /jobs/retry"),
    "counts": ("queues", "GET /queues"),
    "why": ("why", "GET /jobs/{id}/why"),
    "wait": ("jobs wait", "GET /jobs/{id}/events"),
    "watch": ("top", "GET /events"),
    "cancel": ("jobs cancel", "POST /jobs/{id}/cancel"),
    "retry": ("jobs retry", "POST /jobs/{id}/retry"),
    "update": ("jobs update", "PATCH /jobs/{id}"),
    "recover": ("jobs recover", "POST /jobs/{id}/recover"),
    "delete": ("jobs delete", "DELETE /jobs/{id}"),
    "cancel_many": ("jobs cancel", "POST /jobs/cancel"),
    "retry_many": ("jobs retry", "POST /jobs/retry"),
    "delete_many": ("jobs delete", "POST /jobs/delete"),
    "change_matching": ("jobs delete", "POST /jobs/delete"),
    "queues": ("queues", "GET /queues"),
    "pause": ("queues pause", "POST /queues/{name}/pause"),
    "resume": ("queues resume", "POST /queues/{name}/resume"),
    "limit": ("queues limit", "POST /queues/{name}/limit"),
    "stats": (
        "— charts are on the page of `dibs serve`",
        "— the same; `GET /metrics` has numbers of each process",
    ),
    "refusals": ("— drawn on the job's page of `dibs serve`", "— the same"),
    "workers": ("workers", "GET /workers"),
    "doctor": ("doctor", "GET /doctor"),
    "sweep": ("— every worker does this by itself", "— the same"),
    "prune": ("prune", "— kept for the owner of the store; workers prune by `keep=`"),
    "trains.list": ("trains", "GET /trains"),
    "trains.held": ("trains", "GET /trains"),
    "trains.get": ("trains show", "GET /trains"),
    "trains.release": ("trains release", "POST /trains/{name}/release"),
    "slots.list": ("slots", "GET /slots"),
    "slots.get": ("slots", "GET /slots"),
    "slots.current": ("slots", "GET /slots"),
    "pipelines.list": ("pipelines", "GET /pipelines"),
    "pipelines.get": ("pipelines show", "GET /pipelines/{id}"),
    "pipelines.cancel": ("jobs cancel", "POST /jobs/cancel"),
    "pipelines.retry": ("jobs retry", "POST /jobs/retry"),
    "schedules.list": ("schedules", "GET /schedules"),
    "schedules.get": ("schedules", "GET /schedules"),
    "schedules.put": ("— its rule and job belong into code that can be read again", "— the same"),
    "schedules.pause": ("schedules pause", "POST /schedules/{name}/pause"),
    "schedules.resume": ("schedules resume", "POST /schedules/{name}/resume"),
    "schedules.run_now": ("schedules run", "POST /schedules/{name}/run"),
    "schedules.delete": ("schedules delete", "— as `put`"),
}

MORE = {
    "count": ("before it asks", '`"preview": true`'),
    "cancel_many": (MANY, ""),
    "retry_many": (MANY, ""),
    "delete_many": (MANY, ""),
    "change_matching": ("`--all --search`", "`q`"),
    "search": ("`--search`", "`?q=`"),
    "trains.held": ("`--held`", "`?held=true`"),
    "slots.get": ("", "`?key=`"),
    "slots.current": ("", "`?key=`"),
    "pipelines.cancel": ("`--all --pipeline-id`", "`pipeline_id`"),
    "pipelines.retry": ("`--all --pipeline-id`", "`pipeline_id`"),
}

# What has another name in Python, or none.
OTHER_COMMANDS = {
    "serve": "`router(app, …)`",
    "demo": "no verb: it shows what dibs does",
    "verify": "no verb: it tries a store",
    "move": "`dibs.moving`",
    "tables sql": "`dibs.tables`",
    "outbox relay": "`dibs.outbox`",
    "outbox list": "`dibs.outbox`",
    "outbox redrive": "`dibs.outbox`",
    "outbox prune": "`dibs.outbox`",
}
OTHER_ROUTES = {
    "GET /healthz": "no verb: whether this process reaches its store",
    "GET /pipelines/{id}/events": "`app.watch(pipeline_id=…)`",
    "GET /metrics": "`JobMetrics(app).text()`",
}


def page() -> str:
    """Return the whole text of docs/reference/verbs.md."""
    _compare("verb", set(_verbs()), set(VERBS))
    ours = {name for pair in VERBS.values() for name in pair if not name.startswith("—")}
    _compare(
        "command", set(_commands([], typer.main.get_command(commands))), {*OTHER_COMMANDS, *_words(ours)}
    )
    _compare("route", set(_routes()), {*OTHER_ROUTES, *(name for name in ours if "/" in name)})
    rows = [_row(name, *VERBS[name]) for name in VERBS]
    others = [f"- `dibs {name}`: {what}" for name, what in OTHER_COMMANDS.items()]
    others += [f"- `{name}`: {what}" for name, what in OTHER_ROUTES.items()]
    return OPENING + "\n".join(rows) + "\n\nBeside the verbs of `app`:\n\n" + "\n".join(others) + "\n"


def _words(names: set[str]) -> set[str]:
    return {name for name in names if "/" not in name}


def _row(name: str, command: str, route: str) -> str:
    typed = command if command.startswith("—") else f"`dibs {command}`"
    asked = route if route.startswith("—") else f"`{route}`"
    more = MORE.get(name, ("", ""))
    return f"| `app.{name}` | {f'{typed} {more[0]}'.strip()} | {f'{asked} {more[1]}'.strip()} |"


def _verbs() -> Iterator[str]:
    yield from (name for name in _public(SyncDibs) if callable(getattr(SyncDibs, name)))
    for name in ("trains", "slots", "pipelines", "schedules"):
        face = getattr(collections, f"Sync{name.capitalize()}")
        yield from (f"{name}.{verb}" for verb in _public(face))


def _public(face: type) -> list[str]:
    return [name for name in dir(face) if not name.startswith("_")]


def _commands(path: list[str], command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if path and (not children or command.invoke_without_command):
        yield " ".join(path)
    for name, child in children.items():
        yield from _commands([*path, name], child)


def _routes() -> Iterator[str]:
    for route in router(Dibs("memory://"), insecure=True).routes:
        if isinstance(route, APIRoute):
            yield from (f"{method} {route.path.replace(':path', '')}" for method in sorted(route.methods))


def _compare(what: str, there: set[str], listed: set[str]) -> None:
    if there != listed:
        lacks, gone = sorted(there - listed), sorted(listed - there)
        raise SystemExit(f"docs/reference/draw_verbs.py lacks each {what} {lacks}; there is no {gone}")


if __name__ == "__main__":
    typer.echo(page(), nl=False)
