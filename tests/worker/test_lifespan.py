"""What a lifespan yields is `ctx.state`: entered before the first claim, left after the last handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from dibs import BadRequest, Context, Dibs, Worker
from tests.support.workers import Apps, drain, state_of, wait_until, working


class Story:
    """A lifespan that records what happens around it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.apps: list[Dibs] = []
        self.fails_at: str | None = None
        self.hangs_at: str | None = None

    @asynccontextmanager
    async def awaited(self, app: Dibs) -> AsyncIterator[dict[str, int]]:
        self.apps.append(app)
        await self._at("enter")
        try:
            yield {"clients": 3}
        finally:
            await self._at("leave")

    @contextmanager
    def plain(self, app: Dibs) -> Iterator[dict[str, int]]:
        self.apps.append(app)
        self.lines.append("enter")
        yield {"clients": 3}
        self.lines.append("leave")

    async def _at(self, place: str) -> None:
        self.lines.append(place)
        if place == self.hangs_at:
            await asyncio.sleep(60)
        if place == self.fails_at:
            raise RuntimeError(f"no database at {place}")


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.mark.parametrize("colour", ["awaited", "plain"])
@pytest.mark.parametrize("handler", ["awaited", "plain"])
async def test_handlers_find_in_the_context_what_the_lifespan_yields(
    apps: Apps, story: Story, colour: str, handler: str
) -> None:
    app = apps(lifespan=getattr(story, colour))

    async def awaited(ctx: Context) -> None:
        story.lines.append(f"job with {ctx.state['clients']}")

    def plain(ctx: Context) -> None:
        story.lines.append(f"job with {ctx.state['clients']}")

    task = app.job(name="work")(awaited if handler == "awaited" else plain)
    await app.enqueue(task.new(), task.new())

    await drain(app)

    assert story.lines == ["enter", "job with 3", "job with 3", "leave"]
    assert story.apps == [app]


async def test_without_a_lifespan_there_is_no_state(app: Dibs) -> None:
    seen: list[Any] = []

    @app.job
    async def work(ctx: Context) -> None:
        seen.append(ctx.state)

    await work.enqueue()
    await drain(app)

    assert seen == [None]


async def test_each_run_of_a_worker_enters_anew(apps: Apps, story: Story) -> None:
    app = apps(lifespan=story.awaited)
    app.job(lambda: None, name="work")
    worker = Worker(app)

    await worker.run(until_idle=True)
    await worker.run(until_idle=True)

    assert story.lines == ["enter", "leave", "enter", "leave"]


async def test_a_lifespan_that_can_not_be_entered_ends_the_worker_before_it_claimed(
    apps: Apps, story: Story
) -> None:
    story.fails_at = "enter"
    app = apps(lifespan=story.awaited)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    with pytest.raises(RuntimeError, match="no database"):
        await drain(app)

    untouched = await app.get(job.id)
    assert (untouched.state, untouched.attempts, untouched.token) == ("ready", 0, None)


async def test_an_error_on_leaving_is_raised_when_everything_is_settled(apps: Apps, story: Story) -> None:
    story.fails_at = "leave"
    app = apps(lifespan=story.awaited)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    with pytest.raises(RuntimeError, match="leave"):
        await drain(app)

    assert await state_of(app, job) == "succeeded"


@pytest.mark.parametrize("ending", ["stop", "stop twice", "cancel"])
async def test_however_a_worker_ends_the_lifespan_is_left_after_the_last_handler(
    apps: Apps, story: Story, ending: str
) -> None:
    app = apps(lifespan=story.awaited)
    started = asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            story.lines.append("handler ended")

    job = await work.enqueue()
    worker = Worker(app, grace=0.1)
    running = asyncio.create_task(worker.run())
    await started.wait()
    if ending == "cancel":
        running.cancel()
    else:
        worker.stop()
    if ending == "stop twice":
        worker.stop()
    await asyncio.wait([running], timeout=5)

    assert running.cancelled() == (ending == "cancel")
    assert story.lines == ["enter", "handler ended", "leave"]
    assert await state_of(app, job) == "ready"


async def test_a_stop_ends_a_lifespan_that_takes_long_to_enter(apps: Apps, story: Story) -> None:
    story.hangs_at = "enter"
    app = apps(lifespan=story.awaited)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: story.lines == ["enter"])
    worker.stop()
    await asyncio.wait_for(running, 3)

    assert (await app.get(job.id)).token is None


async def test_a_second_stop_ends_a_lifespan_that_takes_long_to_leave(apps: Apps, story: Story) -> None:
    story.hangs_at = "leave"
    app = apps(lifespan=story.awaited)
    app.job(lambda: None, name="work")
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: story.lines == ["enter"])

    worker.stop()
    await wait_until(lambda: story.lines == ["enter", "leave"])
    assert not running.done()
    worker.stop()
    await asyncio.wait_for(running, 3)


async def test_something_that_is_no_context_manager_is_refused(apps: Apps) -> None:
    async def forgotten(app: Dibs) -> AsyncIterator[None]:
        yield

    app = apps(lifespan=forgotten)
    app.job(lambda: None, name="work")

    with pytest.raises(BadRequest, match="asynccontextmanager"):
        await drain(app)


# -- run_job ------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("colour", ["awaited", "plain"])
@pytest.mark.parametrize("handler", ["awaited", "plain"])
async def test_run_job_enters_the_lifespan_around_its_job(
    apps: Apps, story: Story, face: str, colour: str, handler: str
) -> None:
    app = apps(lifespan=getattr(story, colour))

    async def awaited(ctx: Context) -> int:
        story.lines.append("job")
        return ctx.state["clients"]

    def plain(ctx: Context) -> int:
        story.lines.append("job")
        return ctx.state["clients"]

    task = app.job(name="work")(awaited if handler == "awaited" else plain)
    job = await task.enqueue()

    done = await _run_job(app, face, job.id)

    assert (done.state, done.result) == ("succeeded", 3)
    assert story.lines == ["enter", "job", "leave"]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("handler", ["awaited", "plain"])
async def test_run_job_claims_nothing_when_the_lifespan_can_not_be_entered(
    apps: Apps, story: Story, face: str, handler: str
) -> None:
    story.fails_at = "enter"
    app = apps(lifespan=story.awaited)

    async def awaited() -> None: ...

    task = app.job(name="work")(awaited if handler == "awaited" else lambda: None)
    job = await task.enqueue()

    with pytest.raises(RuntimeError, match="no database"):
        await _run_job(app, face, job.id)

    assert (await app.get(job.id)).token is None


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_handler_can_use_what_lives_on_the_loop_of_the_lifespan(apps: Apps, face: str) -> None:
    loops: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Dibs) -> AsyncIterator[asyncio.AbstractEventLoop]:
        loops.append(asyncio.get_running_loop())
        yield asyncio.get_running_loop()

    app = apps(lifespan=lifespan)

    @app.job
    async def awaited(ctx: Context) -> bool:
        return asyncio.get_running_loop() is ctx.state

    @app.job
    def plain(ctx: Context) -> int:
        return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 7), ctx.state).result(5)

    first, second = await app.enqueue(awaited.new(), plain.new())

    assert (await _run_job(app, face, first.id)).result is True
    assert (await _run_job(app, face, second.id)).result == 7


async def test_a_worker_and_run_job_beside_it_have_lifespans_of_their_own(apps: Apps, story: Story) -> None:
    app = apps(lifespan=story.awaited)

    @app.job
    async def work() -> None: ...

    @app.job(queue="by hand")
    async def other() -> None: ...

    async with working(app, queues=["default"]):
        await wait_until(lambda: story.lines == ["enter"])
        await app.run_job((await other.enqueue()).id)
        assert story.lines == ["enter", "enter", "leave"]

    assert story.lines == ["enter", "enter", "leave", "leave"]


async def _run_job(app: Dibs, face: str, id: Any) -> Any:
    if face == "async":
        return await app.run_job(id)
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(app.sync.run_job(id))
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=run)  # a thread without a loop, as blocking programs have
    thread.start()
    await asyncio.to_thread(thread.join)
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]
