"""Fork: a child of a process that used the store works, and its parent goes on."""

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dibs import Dibs, NewJob
from tests.support.faces import Make, SyncFace
from tests.support.internals import store_of

pytestmark = [
    pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql", "redis"], indirect=True),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def _in_child(work: Callable[[], None]) -> int:
    """Run this in a forked child; answer its exit code."""
    if (child := os.fork()) == 0:
        # A child that hangs must end, and not by the handler of the test's own timeout.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pool(app: Dibs, colour: str) -> str:
    """What holds the connections of this colour, as monkeypatch names it."""
    store: Any = store_of(app)
    owner = getattr(store, "_file", None) or getattr(store, f"_{colour}")
    return f"{type(owner).__module__}.{type(owner).__name__}"


def _lost(self: Any) -> None:
    raise AssertionError("this process had a connection, and it is gone")


def test_parent_and_child_share_the_store_through_the_blocking_face(url: str) -> None:
    with Dibs(url).sync as app:
        [job] = app.enqueue(NewJob("work"))

        def work() -> None:
            claim = app.claim_job(job.id)
            assert claim is not None
            claim.succeed("by the child")
            app.close()

        assert _in_child(work) == 0
        done = app.get(job.id)
        assert done is not None
        assert done.result == "by the child"
        assert app.enqueue(NewJob("work"))[0].is_new


def test_parent_and_child_share_the_store_through_the_async_face(url: str) -> None:
    app = Dibs(url)

    async def use(close: bool) -> None:
        await app.enqueue(NewJob("work"))
        assert len(await app.claim()) == 1
        if close:
            await app.close()

    with asyncio.Runner() as runner:
        runner.run(use(close=False))

        assert _in_child(lambda: asyncio.run(use(close=True))) == 0
        runner.run(use(close=True))


def test_a_child_that_exits_without_closing_does_no_harm(url: str) -> None:
    with Dibs(url).sync as app:
        app.enqueue(NewJob("work"))

        codes = [_in_child(lambda: None), _in_child(lambda: app.counts() and None)]

        assert codes == [0, 0]
        assert app.counts()["ready"] == 1


def test_a_claim_of_the_parent_is_kept_while_children_come_and_go(url: str) -> None:
    app = Dibs(url)
    claim = Make(SyncFace(app)).running(lease=1.5)

    with claim:
        codes = [_in_child(lambda: app.sync.counts() and None) for _ in range(3)]

    job = app.sync.get(claim.job.id)
    app.sync.close()
    assert codes == [0, 0, 0]
    assert job is not None
    assert job.state == "succeeded"


def test_a_child_keeps_claims_of_its_own(url: str) -> None:
    app = Dibs(url)
    first = Make(SyncFace(app)).running(lease=1.5)
    [second] = app.sync.enqueue(NewJob("work"))

    def work() -> None:
        import time

        claim = app.sync.claim_job(second.id, lease=1.5)
        assert claim is not None
        with claim:
            time.sleep(1.8)
            app.sync.sweep()
        app.sync.close()

    with first:
        code = _in_child(work)

    job = app.sync.get(second.id)
    app.sync.close()
    assert code == 0
    assert job is not None
    assert (job.state, job.errors) == ("succeeded", [])


def test_a_child_that_only_closes_leaves_the_connections_to_its_parent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Dibs(url)
    with asyncio.Runner() as runner:
        runner.run(app.counts())
        app.sync.counts()

        codes = [_in_child(app.sync.close), _in_child(lambda: asyncio.run(app.close()))]

        monkeypatch.setattr(f"{_pool(app, 'sync')}._connect", _lost)
        monkeypatch.setattr(f"{_pool(app, 'async')}._connect", _lost)
        app.sync.counts()
        runner.run(app.counts())
        runner.run(app.close())
    assert codes == [0, 0]


def test_a_child_does_not_wait_for_what_threads_of_its_parent_hold(url: str) -> None:
    app, holding, over = Dibs(url, pool_size=1), threading.Event(), threading.Event()
    app.sync.counts()

    def hold() -> None:
        with _way_in(app):
            holding.set()
            over.wait()

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(hold)
        holding.wait()
        code = _in_child(lambda: app.sync.counts() and None)
        over.set()

    held.result()
    app.sync.close()
    assert code == 0


def _way_in(app: Dibs) -> Any:
    """What a call has while it is under way."""
    store: Any = store_of(app)
    return store._file._lock if hasattr(store, "_file") else store._sync._places


def test_a_child_works_while_threads_of_its_parent_are_in_the_store(url: str) -> None:
    app, over = Dibs(url), threading.Event()

    def use() -> None:
        while not over.is_set():
            app.sync.counts()

    with ThreadPoolExecutor(2) as threads:
        using = [threads.submit(use) for _ in range(2)]
        codes = [_in_child(lambda: app.sync.counts() and None) for _ in range(20)]
        over.set()

    assert [one.result() for one in using] == [None, None]
    assert codes == [0] * 20
    app.sync.close()
