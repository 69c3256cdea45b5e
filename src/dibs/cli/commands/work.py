"""`dibs work jobs:app`: run a worker, or several processes of workers, until a signal."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from importlib.metadata import version
from typing import Annotated, Any

import typer

from dibs.app import lifespan
from dibs.app.dibs import Dibs
from dibs.cli._support.config import WorkOptions, given
from dibs.cli._support.health import Answering, health_of_processes, health_of_worker
from dibs.cli._support.options import (
    HealthHost,
    HealthPort,
    LogJson,
    Quiet,
    UntilIdle,
    Url,
    bad_usage,
    duration,
    import_modules,
    load,
)
from dibs.cli._support.printing import log_level, set_up_log, some
from dibs.cli._support.supervisor import (
    is_supervised,
    reload_on_change,
    report_up,
    signals_of_supervisor,
    supervise,
)
from dibs.clock import monotonic
from dibs.errors import BadRequest
from dibs.events import Event, log
from dibs.text import spoken, without_password
from dibs.worker import Worker

EXAMPLE = "Example: dibs work jobs:app --queues mail,slow --concurrency 20"
UP_CHECK = 0.05  # seconds between two checks whether the worker has come up

MOST_NAMED = 8  # kinds in the first line of the log
YOUNG = 10_000  # new objects between two garbage collections; Python's own default is 700

Target = Annotated[str | None, typer.Argument(metavar="MODULE:APP", help="Where the app is, like jobs:app.")]
Queues = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these queues, separated by commas. Default: all.")
]


def command(
    context: typer.Context,
    target: Target = None,
    queues: Queues = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Jobs at a time, per process. Default: 10.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many processes; one that dies is replaced.")
    ] = None,
    until_idle: UntilIdle = False,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="How long running jobs may take to end. Default: 10s."
        ),
    ] = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for every claim and every job.")
    ] = False,
    quiet: Quiet = False,
    log_jobs: Annotated[
        bool | None,
        typer.Option(
            "--log-jobs/--no-log-jobs", help="A line for every job that ends. Default: on a terminal."
        ),
    ] = None,
    log_json: LogJson = False,
    imports: Annotated[
        str | None,
        typer.Option("--import", metavar="A,B", help="Import these modules, too: they have jobs of the app."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file here changes; for development.")
    ] = False,
    url: Url = None,
) -> None:
    """Run the jobs of an app, until Ctrl-C or SIGTERM.

    Jobs that are running then have the time of --grace to end; a second Ctrl-C ends the worker at once.

    The signs in the log on stderr: → a job was claimed (with -v), ✓ it succeeded (on a terminal), ↻ it will
    run again, ✗ it failed for good or its lease was lost.
    """
    set_up_log(log_level(verbose, quiet, log_jobs), json=log_json)
    options = WorkOptions.chosen(target, queues, concurrency, processes, grace, imports)
    if reload:
        raise typer.Exit(reload_on_change(sys.argv[1:]))
    said = _name_store(context, url)
    if options.processes > 1:
        with health_of_processes(options.processes, health_host, health_port) as sockets:
            raise typer.Exit(supervise(sockets))
    app = load_app(options.target)
    import_modules(options.imports or ())
    if said is not None and said != app._core.settings.url:
        bad_usage(
            f"{options.target} names a store of its own: leave --url out, or write Dibs() without a URL there"
        )
    worker = Worker(
        app,
        queues=options.queues,
        concurrency=options.concurrency,
        grace=options.grace,
    )
    answering = health_of_worker(app, worker, health_host, health_port)
    spare_the_collector()
    _run(_work(app, worker, options, until_idle, answering))
    sys.stdout.flush()
    sys.stderr.flush()
    # Without waiting for the loop or threads: a handler's thread that still runs must not keep the process
    # alive. No other worker runs its job before its lease ends.
    os._exit(0)


def spare_the_collector() -> None:
    """Collect garbage less often, and never among what has been loaded by now.

    A worker makes and drops very many objects, and hardly any of them in cycles. Draining no-op jobs is 15 %
    faster with this. A higher threshold than ours, or none at all, stays as it is.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG), *older)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run this to its end, although an asyncio task that a handler made may raise an interrupt.

    Such an exception leaves the loop at once; the handler that waits for it gets it, too, and fails alone.
    """
    loop = asyncio.Runner(loop_factory=_fastest_loop()).get_loop()
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, SystemExit) as error:
            if task.done() or lifespan.may_raise_interrupt():
                raise
            log.error("an asyncio task of a handler raised %s; the worker goes on", type(error).__name__)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop if it is installed (`pip install 'dibs[fast]'`), else None for asyncio's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


async def _work(
    app: Dibs, worker: Worker, options: WorkOptions, until_idle: bool, answering: Answering
) -> None:
    began, counter = monotonic(), OutcomeCounter()
    app._core.events.subscribe(counter.count, list(counter.counts))
    _log_start(app, worker, options)
    supervised = is_supervised()
    up = asyncio.create_task(_report_when_up(worker))
    try:
        async with answering:
            with signals_of_supervisor(worker.stop) if supervised else nullcontext():
                await worker.run(until_idle=until_idle, handle_signals=not supervised)
    finally:
        up.cancel()
        await app.close()
        _log_stop(worker, counter, monotonic() - began)


async def _report_when_up(worker: Worker) -> None:
    report = report_up()
    while worker.health().reason is not None:
        await asyncio.sleep(UP_CHECK)
    report()


class OutcomeCounter:
    """Counts of jobs that did not succeed; successes would be too many events to count one by one."""

    def __init__(self) -> None:
        self.counts = {"released": 0, "retried": 0, "failed": 0, "lost": 0}

    def count(self, event: Event) -> None:
        self.counts[event.about.get("as", event.name)] += len(event.jobs)


def _log_start(app: Dibs, worker: Worker, options: WorkOptions) -> None:
    about = {
        "version": version("dibs"),
        "store": without_password(app._core.settings.url),
        "queues": options.queues,
        "kinds": sorted(app._core.registry.tasks),
        "concurrency": options.concurrency,
        "worker": worker.name,
    }
    log.info(
        "● dibs %s at %s · queues: %s · kinds: %s · %s at a time · %s",
        about["version"],
        about["store"],
        "all" if options.queues is None else ", ".join(options.queues),
        some(sorted(app._core.registry.tasks), MOST_NAMED),
        options.concurrency,
        worker.name,
        extra={"fields": {"event": "started", **about}},
    )


def _log_stop(worker: Worker, counter: OutcomeCounter, seconds: float) -> None:
    counts = {"settled": worker.settled - counter.counts["released"], **counter.counts}
    log.info(
        "● stopped after %s: %s",
        spoken(seconds),
        ", ".join(f"{number:,} {name}" for name, number in counts.items()),
        extra={"fields": {"event": "stopped", "seconds": round(seconds, 3), **counts}},
    )


def _name_store(context: typer.Context, url: str | None) -> str | None:
    """Set the store for an app that names none, as `Dibs()`, and return the URL of the command line."""
    for name, value in given(context, url).items():
        os.environ[f"DIBS_{name.upper()}"] = str(value)
    said: str | None = url or context.obj
    return said


def load_app(target: str) -> Dibs:
    """Return the app that `module:name` names."""
    app = load(target, "an app", "MODULE:APP, like jobs:app")
    if not isinstance(app, Dibs):
        raise BadRequest(f"{target!r} is a {type(app).__name__}, not a Dibs app")
    return app
