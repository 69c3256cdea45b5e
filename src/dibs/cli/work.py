"""`dibs work jobs:app`: run a worker, or several processes of them, until told to stop."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from typing import Annotated

import typer

from dibs.app import Dibs
from dibs.cli.choices import Choices
from dibs.cli.config import given
from dibs.cli.health import Answering, health_of_processes, health_of_worker
from dibs.cli.lines import set_up
from dibs.cli.loading import load
from dibs.cli.options import UntilIdle, Url, bad_usage, duration
from dibs.cli.printing import some, without_password
from dibs.cli.supervising import is_supervised, signals_of_supervisor, supervise, tell_supervisor
from dibs.clock import monotonic
from dibs.durations import spoken
from dibs.errors import BadRequest
from dibs.events import Event, log
from dibs.lines import NOTICE
from dibs.worker import Worker

EXAMPLE = "Example: dibs work jobs:app --queues mail,slow --concurrency 20"
UP_YET = 0.05  # seconds between two looks whether the worker has come up

MOST_NAMED = 8  # kinds in the first line of the log
YOUNG = 10_000  # new objects between two looks for garbage; Python itself looks after 700

Target = Annotated[str | None, typer.Argument(metavar="MODULE:APP", help="Where the app is, like jobs:app.")]
Queues = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these queues, with commas between. Default: all.")
]


def command(
    context: typer.Context,
    target: Target = None,
    queues: Queues = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Jobs at a time, per process. Default: 10.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many processes; dead ones are replaced.")
    ] = None,
    until_idle: UntilIdle = False,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="How long running jobs may take to end. Default: 10s."
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Answer GET /healthz and /metrics here."),
    ] = None,
    health_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to answer on; 0.0.0.0 for every one.")
    ] = "127.0.0.1",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every job.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what somebody should look at.")] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="The log as JSON, one object per line.")
    ] = False,
    url: Url = None,
) -> None:
    """Run the jobs of an app, until Ctrl-C or SIGTERM.

    Jobs that are running then may end first, for as long as --grace says; a second Ctrl-C ends it at once.

    The log on stderr has a line for what an operator wants to know: → a job was claimed (with -v), ✓ it
    succeeded (with -v), ↻ it will run again, ✗ it failed for good or its lease was lost.
    """
    level = logging.DEBUG if verbose else NOTICE if quiet else logging.INFO
    set_up(level=level, json=log_json)
    chosen = Choices.made(target, queues, concurrency, processes, grace)
    said = _name_store(context, url)
    if chosen.processes > 1:
        with health_of_processes(chosen.processes, health_host, health_port) as places:
            raise typer.Exit(supervise(places))
    app = load_app(chosen.target)
    if said is not None and said != app._core.settings.url:
        bad_usage(
            f"{chosen.target} names a store of its own: leave --url out, or let it say Dibs() without one"
        )
    worker = Worker(
        app,
        queues=chosen.queues,
        concurrency=chosen.concurrency,
        grace=chosen.grace,
    )
    answering = health_of_worker(app, worker, health_host, health_port)
    spare_the_collector()
    asyncio.Runner(loop_factory=_fastest_loop()).run(_work(app, worker, chosen, until_idle, answering))
    sys.stdout.flush()
    sys.stderr.flush()
    # Neither the loop nor the threads are waited for: a handler's thread that still runs must not keep
    # the process. Its job is its own until its lease ends.
    os._exit(0)


def spare_the_collector() -> None:
    """Look for garbage less often, and never through what has been loaded by now: that stays for good.

    A worker makes and forgets very many objects, and next to none of them in cycles. Draining no-op jobs is
    15 % faster so. Who has chosen a threshold beyond ours, or none, keeps it.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG), *older)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (`pip install 'dibs[fast]'`), else what asyncio takes."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


async def _work(app: Dibs, worker: Worker, chosen: Choices, until_idle: bool, answering: Answering) -> None:
    began, tally = monotonic(), Tally()
    app._core.events.subscribe(tally.hear, list(tally.counts))
    _greet(app, worker, chosen)
    supervised = is_supervised()
    up = asyncio.create_task(_tell_when_up(worker))
    try:
        async with answering:
            with signals_of_supervisor(worker.stop) if supervised else nullcontext():
                await worker.run(until_idle=until_idle, handle_signals=not supervised)
    finally:
        up.cancel()
        await app.close()
        _say_goodbye(worker, tally, monotonic() - began)


async def _tell_when_up(worker: Worker) -> None:
    tell = tell_supervisor()
    while worker.health().reason is not None:
        await asyncio.sleep(UP_YET)
    tell()


class Tally:
    """How often jobs were given back, or went wrong. Successes are too many to be counted one by one."""

    def __init__(self) -> None:
        self.counts = {"released": 0, "retried": 0, "failed": 0, "lost": 0}

    def hear(self, event: Event) -> None:
        self.counts[event.about.get("as", event.name)] += len(event.jobs)


def _greet(app: Dibs, worker: Worker, chosen: Choices) -> None:
    about = {
        "version": version("dibs"),
        "store": without_password(app._core.settings.url),
        "queues": chosen.queues,
        "kinds": sorted(app._core.registry.tasks),
        "concurrency": chosen.concurrency,
        "worker": worker.name,
    }
    log.info(
        "● dibs %s at %s · queues: %s · kinds: %s · %s at a time · %s",
        about["version"],
        about["store"],
        "all" if chosen.queues is None else ", ".join(chosen.queues),
        some(sorted(app._core.registry.tasks), MOST_NAMED),
        chosen.concurrency,
        worker.name,
        extra={"fields": {"event": "started", **about}},
    )


def _say_goodbye(worker: Worker, tally: Tally, seconds: float) -> None:
    counts = {"settled": worker.settled - tally.counts["released"], **tally.counts}
    log.info(
        "● stopped after %s: %s",
        spoken(seconds),
        ", ".join(f"{number:,} {name}" for name, number in counts.items()),
        extra={"fields": {"event": "stopped", "seconds": round(seconds, 3), **counts}},
    )


def _name_store(context: typer.Context, url: str | None) -> str | None:
    """What is said here goes for an app that leaves it open, as `Dibs()` does; answers a URL."""
    for name, value in given(context, url).items():
        os.environ[f"DIBS_{name.upper()}"] = str(value)
    said: str | None = url or context.obj
    return said


def load_app(target: str) -> Dibs:
    """The app that `module:name` names."""
    app = load(target, "an app", "MODULE:APP, like jobs:app")
    if not isinstance(app, Dibs):
        raise BadRequest(f"{target!r} is a {type(app).__name__}, not a Dibs app")
    return app
