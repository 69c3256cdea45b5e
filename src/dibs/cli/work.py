"""`dibs work jobs:app`: run a worker, or several processes of them, until told to stop."""

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dibs.app import Dibs
from dibs.cli.options import bad_usage, duration
from dibs.errors import BadRequest
from dibs.worker import Worker

EXAMPLE = "Example: dibs work jobs:app --queues mail,slow --concurrency 20"
RESTART_PAUSE = 1.0  # seconds before a process that died is replaced

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, like jobs:app.")]
Queues = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these queues, with commas between. Default: all.")
]


def command(
    target: Target,
    queues: Queues = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs at a time, per process.")] = 10,
    processes: Annotated[int, typer.Option(min=1, help="How many processes; dead ones are replaced.")] = 1,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to do.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long running jobs may take to end.")
    ] = "10s",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every job.")] = False,
) -> None:
    """Run the jobs of an app. Ctrl-C or SIGTERM ends it kindly, a second one at once."""
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level="DEBUG" if verbose else "INFO"
    )
    if processes > 1:
        raise typer.Exit(_supervise(processes))
    app = _load(target)
    names = None if queues is None else [name for name in queues.split(",") if name]
    worker = Worker(app, queues=names, concurrency=concurrency, grace=duration(grace))
    asyncio.run(_work(app, worker, until_idle))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a handler's thread that is still running must not keep the process; its lease ends it


async def _work(app: Dibs, worker: Worker, until_idle: bool) -> None:
    try:
        await worker.run(until_idle=until_idle)
    finally:
        await app.close()


def _load(target: str) -> Dibs:
    """The app that `module:name` names; modules are looked for in the current folder first."""
    module, _, name = target.partition(":")
    if not module or not name:
        bad_usage(f"{target!r} names no app: write MODULE:APP, like jobs:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        app: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"can't load {target!r}: {error}") from None
    if not isinstance(app, Dibs):
        raise BadRequest(f"{target!r} is a {type(app).__name__}, not a Dibs app")
    return app


def _supervise(processes: int) -> int:
    """Keep this many processes of the same command running; pass on the signals that end it."""
    arguments = _without_processes(sys.argv[1:])
    command = [sys.executable, "-m", "dibs.cli", *arguments]
    children = [subprocess.Popen(command) for _ in range(processes)]  # noqa: S603
    stopping = False

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    idle = "--until-idle" in arguments
    while any(child.poll() is None for child in children):
        time.sleep(0.1)
        if stopping or idle:
            continue
        for place, child in enumerate(children):
            if child.poll() is not None:
                logging.getLogger("dibs").warning(
                    "a worker process ended with %s; starting another", child.returncode
                )
                time.sleep(RESTART_PAUSE)
                children[place] = subprocess.Popen(command)  # noqa: S603
    return max(abs(child.returncode) for child in children) and 1


def _without_processes(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word.startswith("--processes="):
            skip = False
        elif word == "--processes":
            skip = True
        else:
            kept.append(word)
    return kept
