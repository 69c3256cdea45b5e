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
    asyncio.Runner().run(_work(app, worker, until_idle))
    sys.stdout.flush()
    sys.stderr.flush()
    # Neither the loop nor the threads are waited for: a handler's thread that still runs must not keep
    # the process. Its job is its own until its lease ends.
    os._exit(0)


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
    children = [_start(arguments) for _ in range(processes)]
    stopping = "--until-idle" in arguments
    told: set[int] = set()

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            child.send_signal(number)
            told.add(child.pid)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping:
        time.sleep(0.1)
        for place, child in enumerate(children):
            if child.poll() is not None and not stopping:
                logging.getLogger("dibs").warning(
                    "a worker process ended (%s); starting another", child.returncode
                )
                children[place] = _start(arguments)
                time.sleep(RESTART_PAUSE)
    for child in children:
        if told and child.pid not in told:  # it was being started when the signal came
            child.send_signal(signal.SIGTERM)
    ended = [child.wait() for child in children if child.poll() is None]
    return 1 if set(ended) - {0, -signal.SIGTERM, -signal.SIGINT} else 0


def _start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    """A session of its own: a Ctrl-C in the terminal must reach it once, from us."""
    command = [sys.executable, "-m", "dibs.cli", *arguments]
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603


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
