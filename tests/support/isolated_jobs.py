"""Isolated jobs. They record in files what they do, as the tests run in another process."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import asyncpg

from dibs import Cancel, Context, Dibs, Fail, Job, NewJob, Retry, Snooze


@asynccontextmanager
async def resources(_: Dibs) -> AsyncIterator[dict[str, Any]]:
    yield {"pid": os.getpid(), "loop": asyncio.get_running_loop()}


app = Dibs(os.environ["DIBS_URL"], poll=1, lifespan=resources)

FOREVER = 60.0


def leave(folder: str, name: str, text: object = "") -> None:
    """Write a file that exists whole or not at all."""
    part = Path(folder, f".{name}.{os.getpid()}")
    part.write_text(str(text))
    part.rename(Path(folder, name))


def see(folder: str, name: str) -> None:
    while not Path(folder, name).exists():
        time.sleep(0.01)


@contextmanager
def noted(folder: str) -> Any:
    leave(folder, "began", os.getpid())
    try:
        yield
    finally:
        leave(folder, "cleaned up")


surrounding: ContextVar[int] = ContextVar("surrounding", default=0)


@app.around
@contextmanager
def surrounded(job: Job) -> Iterator[None]:
    token = surrounding.set(os.getpid())
    try:
        yield
    finally:
        surrounding.reset(token)


@app.job(isolation="process", name="around")
def around() -> tuple[int, int]:
    return surrounding.get(), os.getpid()


@app.job(isolation="process", name="around_awaited")
async def around_awaited() -> tuple[int, int]:
    return around()


@app.job(isolation="process")
def plain(n: int = 1) -> dict[str, int]:
    return {"pid": os.getpid(), "n": n}


@app.job(isolation="process")
async def awaited(n: int = 1) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"pid": os.getpid(), "n": n}


@app.job(isolation="process")
async def with_state_awaited(ctx: Context) -> dict[str, bool]:
    here = asyncio.get_running_loop() is ctx.state["loop"]
    return {"own process": ctx.state["pid"] == os.getpid(), "own loop": here}


@app.job(isolation="process")
def with_state(ctx: Context) -> dict[str, bool]:
    return {"own process": ctx.state["pid"] == os.getpid(), "own loop": True}


@app.job(isolation="process")
def tells_plainly(ctx: Context, folder: str) -> None:
    ctx.sync.progress(0.25, "a quarter")
    see(folder, "seen")


@app.job
def still_there(pid: int) -> bool:
    """Return whether that process can still run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@app.job
async def inside(n: int = 1) -> dict[str, int]:
    return {"pid": os.getpid(), "n": n}


@app.job(isolation="process")
def together(folder: str, others: list[str], name: str) -> int:
    leave(folder, name)
    for other in others:
        see(folder, other)
    return os.getpid()


@app.job(isolation="process", max_attempts=1)
def die(how: str, folder: str = "") -> None:
    if folder:
        see(folder, "now")
    match how:
        case "exit":
            os._exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)


@app.job(isolation="process", retry=Retry.fixed(0))
def die_at_first(ctx: Context) -> int:
    if ctx.job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.job.attempts


@app.job(isolation="process", lease=1, retry=Retry.fixed(0))
def sleeps(ctx: Context, folder: str) -> str:
    if ctx.job.attempts > 1:
        return "second"
    with noted(folder):
        time.sleep(FOREVER)
    return "first"


@app.job(isolation="process", lease=1, retry=Retry.fixed(0))
async def sleeps_awaited(ctx: Context, folder: str) -> str:
    if ctx.job.attempts > 1:
        return "second"
    with noted(folder):
        await asyncio.sleep(FOREVER)
    return "first"


@app.job(isolation="process", max_attempts=1, timeout=0.5)
def too_slow(folder: str) -> None:
    with noted(folder):
        time.sleep(FOREVER)


@app.job(isolation="process", max_attempts=1, timeout=0.5)
async def too_slow_awaited(folder: str) -> None:
    with noted(folder):
        await asyncio.sleep(FOREVER)


@app.job(isolation="process", max_attempts=1, timeout=0.5)
def too_slow_with_the_gil(folder: str) -> None:
    hold_the_gil(folder)


@app.job(isolation="process", max_attempts=5, lease=1)
def hold_the_gil(folder: str) -> None:
    """Block all other threads and signal handlers of this process."""
    leave(folder, "began", os.getpid())
    ctypes.PyDLL(None).sleep(int(FOREVER))


@app.job(isolation="process", max_attempts=1, timeout=0.5)
def deaf(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with noted(folder):
        time.sleep(FOREVER)


@app.job(isolation="process", max_attempts=1, timeout=0.5)
def starts_another(folder: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    leave(folder, "other", other.pid)
    other.wait()


@app.job(isolation="process", lease=1, max_attempts=5)
def starts_another_for_long(folder: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    leave(folder, "other", other.pid)
    leave(folder, "began", os.getpid())
    other.wait()


@app.job(isolation="process", max_attempts=1)
def leaves_another_behind(folder: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"], close_fds=False)
    leave(folder, "other", other.pid)
    os._exit(1)


# -- the context --------------------------------------------------------------------------------


@app.job(isolation="process")
async def knows(ctx: Context) -> dict[str, Any]:
    ctx.check()
    return {"id": str(ctx.job.id), "token": ctx.token, "lost": ctx.lost, "args": ctx.job.args}


@app.job(isolation="process")
async def notes(ctx: Context, folder: str) -> None:
    await ctx.progress(0.25, "a quarter")
    await asyncio.to_thread(see, folder, "seen")


@app.job(isolation="process", max_attempts=1)
async def notes_nonsense(ctx: Context) -> None:
    await ctx.progress(7)


@app.job(isolation="process", max_attempts=1)
async def chains(ctx: Context, ending: str) -> Any:
    ctx.chain(inside.using(priority=3, tags=["child"], delay=0).new(5), NewJob("inside", {"n": 6}))
    match ending:
        case "raise":
            raise ValueError("no children, then")
        case "unstorable":
            ctx.chain("not a job")  # type: ignore[arg-type]
    return None


@app.job(isolation="process", max_attempts=1)
def ends(how: str) -> Any:
    match how:
        case "snooze":
            return Snooze(3600)
        case "cancel":
            return Cancel("not needed")
        case "fail":
            return Fail("can't be done")
        case "raise snooze":
            raise Snooze(3600)
        case "raise cancel":
            raise Cancel("not needed")
        case "raise fail":
            raise Fail("can't be done")
        case "raise":
            raise ValueError("went wrong")
        case "exit":
            sys.exit("leaving")
        case "unstorable":
            return object()
        case "hostile":
            raise Hostile
        case "huge":
            raise ValueError("x" * 10_000_000)
        case "surrogate":
            raise ValueError("\ud800\x00")


@app.job(isolation="process", max_attempts=3, retry_on=(ConnectionError,))
async def tries_again(kind: str) -> None:
    raise {"reset": ConnectionResetError, "key": KeyError}[kind]("name")


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@app.job(isolation="process", max_attempts=1)
async def completes(ctx: Context, url: str, commit: bool) -> str:
    if url.startswith("sqlite"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        file.execute("begin immediate")
        await ctx.complete("by hand", within=file)
        file.execute("commit" if commit else "rollback")
        file.close()
    else:
        server = await asyncpg.connect(url, statement_cache_size=0)  # as behind a pooler
        change = server.transaction()
        await change.start()
        await ctx.complete("by hand", within=server)
        await (change.commit() if commit else change.rollback())
        await server.close()
    return "not this"


@app.job(isolation="process", max_attempts=1)
async def completes_nowhere(ctx: Context, within: str | None) -> None:
    await ctx.complete("by hand", within=within)


# -- hostile things -----------------------------------------------------------------------------


@app.job(isolation="process")
def chatters() -> str:
    print("x" * 200_000, flush=True)
    print('\x00\x00\x00\x02{"type":"Ended"}', file=sys.stderr, flush=True)
    os.write(1, b"\xff\xff\xff\xff")
    logging.getLogger("mine").warning("something is odd")
    return "y" * 900_000


@app.job(isolation="process", max_attempts=1)
def speaks_into_the_socket(what: str) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                os.close(number) if what == "close" else os.write(number, b"\x00\x00\x00\x02hi")
        except OSError:
            pass
    time.sleep(0 if what == "close" else FOREVER)


@app.job(isolation="process")
async def results_of_parents_awaited(ctx: Context) -> list[Any]:
    return [os.getpid(), *(parent.result for parent in await ctx.parents())]


@app.job(isolation="process")
def results_of_parents(ctx: Context) -> list[Any]:
    return [os.getpid(), *(parent.result for parent in ctx.sync.parents())]
