"""`@app.around`: entered around every handler, where the handler runs."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from dibs import BadRequest, Fail, Job, NewJob
from tests.support.faces import Face

tenant: ContextVar[str] = ContextVar("tenant")

two_stores = pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)


def run(app: Face, kind: str, **meta: Any) -> Job:
    done: Job = app.run_job(app.enqueue(NewJob(kind, meta=meta))[0].id)
    return done


def noting(log: list[str], name: str, *, colour: str) -> Any:
    @contextmanager
    def plain(job: Job) -> Iterator[None]:
        log.append(f"{name} enters for {job.kind}")
        try:
            yield
        except BaseException as error:
            log.append(f"{name} sees {error!r}")
            raise
        finally:
            log.append(f"{name} leaves")

    @asynccontextmanager
    async def awaited(job: Job) -> AsyncIterator[None]:
        with plain(job):
            await asyncio.sleep(0)
            yield

    return plain if colour == "plain" else awaited


@pytest.mark.parametrize("handler", ["plain", "async"])
@pytest.mark.parametrize("first", ["plain", "async"])
def test_several_nest_in_the_order_of_their_registration(app: Face, first: str, handler: str) -> None:
    log: list[str] = []
    app.app.around(noting(log, "outer", colour=first))
    app.app.around(noting(log, "inner", colour="async" if first == "plain" else "plain"))

    def work() -> str:
        log.append("works")
        return "done"

    async def awaited() -> str:
        return work()

    app.job(work if handler == "plain" else awaited, name="work")

    done = run(app, "work")

    assert (done.state, done.result) == ("succeeded", "done")
    assert log == [
        "outer enters for work",
        "inner enters for work",
        "works",
        "inner leaves",
        "outer leaves",
    ]


@two_stores
@pytest.mark.parametrize("handler", ["plain", "async"])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_an_exception_passes_through(app: Face, colour: str, handler: str) -> None:
    log: list[str] = []
    app.app.around(noting(log, "it", colour=colour))

    def work() -> None:
        raise Fail("no such order")

    async def awaited() -> None:
        work()

    app.job(work if handler == "plain" else awaited, name="work")

    done = run(app, "work")

    assert (done.state, done.errors[0].message) == ("failed", "no such order")
    assert log == ["it enters for work", "it sees Fail('no such order')", "it leaves"]


@two_stores
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_what_it_sets_is_seen_by_the_handler_only(app: Face, colour: str) -> None:
    seen: list[str] = []

    @contextmanager
    def of_tenant(job: Job) -> Iterator[None]:
        token = tenant.set(job.meta["tenant"])
        yield
        tenant.reset(token)

    @asynccontextmanager
    async def of_tenant_awaited(job: Job) -> AsyncIterator[None]:
        with of_tenant(job):
            yield

    app.app.around(of_tenant if colour == "plain" else of_tenant_awaited)
    app.job(name="plain")(lambda: seen.append(tenant.get()))

    @app.job
    async def awaited() -> None:
        seen.append(tenant.get())

    run(app, "plain", tenant="a")
    run(app, "awaited", tenant="b")

    assert seen == ["a", "b"]
    assert tenant.get("none") == "none"


@two_stores
@pytest.mark.parametrize("when", ["entering", "leaving", "making"])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_its_own_error_is_a_failed_attempt(app: Face, colour: str, when: str) -> None:
    @contextmanager
    def plain(job: Job) -> Iterator[None]:
        if when == "entering":
            raise OSError("no session")
        yield
        if when == "leaving":
            raise OSError("no session")

    @asynccontextmanager
    async def awaited(job: Job) -> AsyncIterator[None]:
        with plain(job):
            yield

    def around(job: Job) -> Any:
        if when == "making":
            raise OSError("no session")
        return (plain if colour == "plain" else awaited)(job)

    app.app.around(around)
    app.job(name="work")(lambda: "done")

    done = run(app, "work")

    assert (done.state, done.attempts) == ("scheduled", 1)
    assert done.errors[0].message == "no session"


@two_stores
def test_one_that_suppresses_the_exception_makes_it_a_success(app: Face) -> None:
    app.app.around(lambda job: suppress(KeyError))
    app.job(name="work")(lambda: {}["x"])

    assert (run(app, "work").state, run(app, "work").result) == ("succeeded", None)


@two_stores
def test_what_is_no_context_manager_is_named(app: Face) -> None:
    @app.app.around
    def session(job: Job) -> Any:
        return "no"

    app.job(name="work")(lambda: 7)

    with pytest.raises(BadRequest, match="goes on a function"):
        app.app.around("session")  # type: ignore[type-var]
    assert "session returned str, not a context manager" in run(app, "work").errors[0].message


@two_stores
def test_a_plain_one_is_entered_in_the_thread_of_a_plain_handler(app: Face) -> None:
    threads: list[int] = []

    @app.app.around
    def note(job: Job) -> Any:
        threads.append(threading.get_ident())
        return nullcontext()

    app.job(name="work")(lambda: threads.append(threading.get_ident()))

    run(app, "work")

    assert len(set(threads)) == 1
