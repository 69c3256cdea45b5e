"""Both faces of an app behind one blocking handle, so that every test is written once.

The sync face is `app.sync` itself. The async face runs each coroutine of `Dibs` and `Claim` on one
event loop that the handle owns, and wraps the claims it answers in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest

from dibs import Claim, Dibs, Job, NewJob, Task
from dibs.app.collections import NewPipeline, Pipelines, Schedules, Slots, Trains
from dibs.clock import SECOND
from dibs.operations import upkeep
from dibs.operations.scripts import Step
from tests.support.internals import run_script, store_of

T = TypeVar("T")


class Face:
    """One app as a test uses it: what `Dibs` offers, blocking, and a few powers over the store."""

    colour: str

    def __init__(self, app: Dibs) -> None:
        self.app = app

    @property
    def job(self) -> Callable[..., Any]:
        return self.app.job

    @property
    def every(self) -> Callable[..., Any]:
        return self.app.every

    def age(self, seconds: float) -> None:
        """Let time pass: everything in the store becomes this much older."""
        self.ask(lambda: upkeep.age(round(seconds * SECOND)))

    def now(self) -> Any:
        """The store's clock."""
        return self.ask(_now)

    def ask(self, operation: Callable[[], Any]) -> Any:
        """Run an operation that has no public name."""
        raise NotImplementedError

    def enqueue_task(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> Job:
        raise NotImplementedError

    def race(self, times: int, verb: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call one verb several times at once; errors are answered, not raised."""
        raise NotImplementedError

    def race_all(self, *calls: tuple[str, Any], succeeds: Any = None) -> list[Any]:
        """Call several verbs, each with its argument, all at once, while this claim succeeds.

        Errors are answered, not raised.
        """
        raise NotImplementedError

    def race_to_ask(self, *operations: Callable[[], Any]) -> list[Any]:
        """Run operations that have no public name all at once."""
        raise NotImplementedError

    def race_to_succeed(self, claims: list[Any]) -> None:
        """Settle all of these at once."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError


class SyncFace(Face):
    colour = "sync"

    def ask(self, operation: Callable[[], Any]) -> Any:
        return run_script(self.app, operation)

    def enqueue_task(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> Job:
        return task.sync.enqueue(*args, **kwargs)

    def wait_for(self, value: Any) -> Any:
        """The value itself; on the other face, what the awaitable comes to."""
        return value

    def race(self, times: int, verb: str, *args: Any, **kwargs: Any) -> list[Any]:
        gate = threading.Barrier(times)

        def call(_: int) -> Any:
            gate.wait()
            return _outcome(lambda: getattr(self, verb)(*args, **kwargs))

        with ThreadPoolExecutor(times) as threads:
            return list(threads.map(call, range(times)))

    def race_all(self, *calls: tuple[str, Any], succeeds: Any = None) -> list[Any]:
        made = [partial(getattr(self, verb), argument) for verb, argument in calls]
        made += [] if succeeds is None else [succeeds.succeed]
        gate = threading.Barrier(len(made))

        def make(call: Callable[[], Any]) -> Any:
            gate.wait()
            return _outcome(call)

        with ThreadPoolExecutor(len(made)) as threads:
            return list(threads.map(make, made))

    def race_to_ask(self, *operations: Callable[[], Any]) -> list[Any]:
        gate = threading.Barrier(len(operations))

        def ask(operation: Callable[[], Any]) -> Any:
            gate.wait()
            return self.ask(operation)

        with ThreadPoolExecutor(len(operations)) as threads:
            return list(threads.map(ask, operations))

    def race_to_succeed(self, claims: list[Any]) -> None:
        gate = threading.Barrier(len(claims))

        def succeed(claim: Any) -> None:
            gate.wait()
            claim.succeed()

        with ThreadPoolExecutor(len(claims)) as threads:
            list(threads.map(succeed, claims))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app.sync, name)


class AsyncFace(Face):
    colour = "async"

    def __init__(self, app: Dibs, runner: asyncio.Runner) -> None:
        super().__init__(app)
        self._loop = runner.get_loop()

    def ask(self, operation: Callable[[], Any]) -> Any:
        return self.wait_for(store_of(self.app).run_async(lambda _: operation()))

    def enqueue_task(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> Job:
        return self.wait_for(task.enqueue(*args, **kwargs))

    def wait_for(self, value: Awaitable[T]) -> T:
        """What the awaitable comes to, on this face's loop."""
        return self._loop.run_until_complete(value)

    def race(self, times: int, verb: str, *args: Any, **kwargs: Any) -> list[Any]:
        async def all_at_once() -> list[Any]:
            calls = [getattr(self.app, verb)(*args, **kwargs) for _ in range(times)]
            return await asyncio.gather(*calls, return_exceptions=True)

        return [_blocking(self, value) for value in self.wait_for(all_at_once())]

    def race_all(self, *calls: tuple[str, Any], succeeds: Any = None) -> list[Any]:
        async def all_at_once() -> list[Any]:
            made = [getattr(self.app, verb)(argument) for verb, argument in calls]
            made += [] if succeeds is None else [succeeds._claim.succeed()]
            return await asyncio.gather(*made, return_exceptions=True)

        return [_blocking(self, value) for value in self.wait_for(all_at_once())]

    def race_to_ask(self, *operations: Callable[[], Any]) -> list[Any]:
        async def all_at_once() -> list[Any]:
            asked = [store_of(self.app).run_async(lambda _, ask=ask: ask()) for ask in operations]
            return await asyncio.gather(*asked)

        return self.wait_for(all_at_once())

    def race_to_succeed(self, claims: list[Any]) -> None:
        async def all_at_once() -> None:
            await asyncio.gather(*(claim._claim.succeed() for claim in claims))

        self.wait_for(all_at_once())

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        return Part(self, self.app.pipeline(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return _blocking(self, getattr(self.app, name))


class Waiting:
    """A claim of the async face whose coroutines are waited for."""

    def __init__(self, face: AsyncFace, claim: Claim) -> None:
        self._face = face
        self._claim = claim

    def __getattr__(self, name: str) -> Any:
        return _blocking(self._face, getattr(self._claim, name))

    def __enter__(self) -> Job:
        return self._face.wait_for(self._claim.__aenter__())

    def __exit__(self, *raised: Any) -> None:
        self._face.wait_for(self._claim.__aexit__(*raised))


class Part:
    """`app.trains` and the like of the async face, whose coroutines are waited for."""

    def __init__(self, face: AsyncFace, part: Trains | Slots | Pipelines | Schedules | NewPipeline) -> None:
        self._face = face
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return _blocking(self._face, getattr(self._part, name))


def _blocking(face: AsyncFace, value: Any) -> Any:
    if inspect.iscoroutinefunction(value):
        return lambda *args, **kwargs: _blocking(face, face.wait_for(value(*args, **kwargs)))
    if isinstance(value, Claim):
        return Waiting(face, value)
    if isinstance(value, Trains | Slots | Pipelines | Schedules):
        return Part(face, value)
    if isinstance(value, list):
        return [_blocking(face, each) for each in value]
    return value


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def _now() -> Any:
    [row] = yield Step("now", {})
    return row["now"]


@contextlib.contextmanager
def open_face(colour: str, url: str, **settings: Any) -> Iterator[Face]:
    """A handle of that colour on an app of its own, closed at the end."""
    app = Dibs(url, **settings)
    if colour == "sync":
        try:
            yield SyncFace(app)
        finally:
            app.sync.close()
        return
    with asyncio.Runner() as runner:
        face = AsyncFace(app, runner)
        try:
            yield face
        finally:
            face.wait_for(app.close())


class Make:
    """Jobs in the state a test wants; what does not matter is filled in."""

    def __init__(self, app: Face) -> None:
        self._app = app

    def ready(self, kind: str = "work", **options: Any) -> Job:
        [job] = self._app.enqueue(NewJob(kind, **options))
        return job

    def scheduled(self, kind: str = "work", *, delay: float = 3600, **options: Any) -> Job:
        return self.ready(kind, delay=delay, **options)

    def running(
        self, kind: str = "work", *, worker: str = "holder", lease: float = 60, **options: Any
    ) -> Any:
        """The claim that holds the job."""
        claim = self._app.claim_job(self.ready(kind, **options).id, worker=worker, lease=lease)
        assert claim is not None
        return claim

    def expired(self, kind: str = "work", **options: Any) -> Any:
        """A claim whose lease has just run out, and nobody has noticed yet."""
        claim = self.running(kind, lease=0.1, **options)
        self._app.age(0.2)
        return claim

    def asked_to_cancel(self, kind: str = "work", *, reason: str | None = None, **options: Any) -> Any:
        claim = self.running(kind, **options)
        self._app.cancel(claim.job.id, reason)
        return claim

    def succeeded(self, kind: str = "work", *, result: Any = None, **options: Any) -> Job:
        claim = self.running(kind, **options)
        claim.succeed(result)
        return self._app.get(claim.job.id)

    def failed(self, kind: str = "work", *, reason: str = "broken", **options: Any) -> Job:
        claim = self.running(kind, **options)
        claim.fail(reason, retry=False)
        return self._app.get(claim.job.id)

    def cancelled(self, kind: str = "work", *, reason: str | None = None, **options: Any) -> Job:
        return self._app.cancel(self.ready(kind, **options).id, reason)

    def finished(self, state: str, **options: Any) -> Job:
        return getattr(self, state)(**options)


def needs(app: Face, trait: str) -> None:
    """Leave the test out where the store says that it can't do this."""
    if not getattr(app.traits, trait):
        pytest.skip(f"this store is not one that {trait}")


@contextlib.contextmanager
def nothing_written(app: Face) -> Iterator[None]:
    """Whatever happens inside, the store is the same before and after."""
    before = app.find(limit=1000)
    yield
    assert app.find(limit=1000) == before
