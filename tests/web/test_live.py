"""Live pages: one look for all browsers that follow a page, within a budget of questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dibs import Dibs, NewJob
from dibs.app.scopes import Scope
from dibs.dashboard import live
from dibs.dashboard.checkup import Checkup
from dibs.dashboard.live import Looks
from dibs.dashboard.pages import PAGES, View
from dibs.dashboard.sessions import Visitor
from tests.support.internals import core_of

FIELDS = frozenset(("args", "result", "errors", "meta"))


def view_of(app: Dibs, name: str, id: str | None = None) -> View:
    return View(app, PAGES[name], id, {}, Visitor("write", Scope({}), FIELDS), None, Checkup(app), None)


@asynccontextmanager
async def followers(looks: Looks, view: View, number: int) -> AsyncIterator[list[asyncio.Queue[str]]]:
    """Follow a page as so many browsers do; each has a queue of what it was sent."""
    news: list[asyncio.Queue[str]] = [asyncio.Queue() for _ in range(number)]

    async def follow(queue: asyncio.Queue[str]) -> None:
        async for part in looks.stream(view, None).body_iterator:
            queue.put_nowait(bytes(part).decode() if not isinstance(part, str) else part)

    tasks = [asyncio.create_task(follow(queue)) for queue in news]
    try:
        yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        for look in looks._looks.values():
            assert look.task is not None
            look.task.cancel()


async def event(queue: asyncio.Queue[str], name: str) -> str:
    async with asyncio.timeout(30):
        while f"event: {name}" not in (text := await queue.get()):
            pass
    return text


def counted(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the questions that the app asks its store."""
    store, asked = core_of(app).store, [0]
    ask = store.run_async

    async def count(*args: Any) -> Any:
        asked[0] += 1
        return await ask(*args)

    monkeypatch.setattr(store, "run_async", count)
    return asked


def steps(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each question of the scripts that the app runs: about one statement each."""
    store, asked = core_of(app).store, []
    run = store.run_async

    def noting(operation: Any) -> Any:
        def script(*given: Any) -> Any:
            running, answer = operation(*given), None
            while True:
                try:
                    step = running.send(answer)
                except StopIteration as end:
                    return end.value
                asked.append(step.question)
                answer = yield step

        return script

    monkeypatch.setattr(store, "run_async", lambda operation, *more: run(noting(operation), *more))
    return asked


def test_fifty_browsers_cost_no_more_questions_than_one(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        asked, looks = counted(app, monkeypatch), Looks()
        async with followers(looks, view_of(app, ""), 50) as news:
            for queue in news:
                await event(queue, "changed")
            before = asked[0]
            await asyncio.sleep(4.5)

        assert before < 40
        assert asked[0] - before <= 26  # two looks of a page that asks a dozen

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["jobs", "jobs/", "queues", "slots", "pipelines/", "workers"])
def test_fifty_different_pages_ask_at_most_three_questions_a_second(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pipeline = app.sync.pipeline("p")
    pipeline.add(NewJob("load", slot="s"), after=[pipeline.add(NewJob("extract", slot="s"))])
    [_, waiting] = pipeline.enqueue()
    id = {"jobs/": waiting.id, "pipelines/": pipeline.id}.get(name)
    asked, looks, look = steps(app, monkeypatch), Looks(), live.PageLook(view_of(app, name, id and str(id)))

    asyncio.run(look.read(0.0))

    looks._looks = {str(number): look for number in range(50)}
    assert 50 * len(asked) / looks._pause(look, 0.0) <= 3


def test_every_browser_learns_that_something_changed_and_only_then(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SHORTEST", 0.05)
    monkeypatch.setattr(live, "QUESTIONS_PER_SECOND", 100.0)

    async def scenario() -> None:
        async with followers(Looks(), view_of(app, "jobs"), 3) as news:
            seen = {await event(queue, "changed") for queue in news}
            await asyncio.sleep(0.3)
            assert all(queue.empty() for queue in news)
            await app.enqueue(NewJob("greet"))

            assert {await event(queue, "changed") for queue in news}.isdisjoint(seen)

    asyncio.run(scenario())


def test_a_browser_that_is_late_gets_what_the_look_has_read(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        looks, view = Looks(), view_of(app, "health")
        async with followers(looks, view, 1) as [news]:
            await event(news, "changed")
            looks._looks[view.key].read_at -= 10  # as long as the store or the browser takes when it is busy
            asked = counted(app, monkeypatch)

            await looks.read(view, fresh=False)

        assert asked == [0]

    asyncio.run(scenario())


def test_the_stream_of_another_tenants_job_is_that_of_no_job(app: Dibs) -> None:
    [job] = app.sync.enqueue(NewJob("greet", tags=["tenant-1"]))
    tenant = Visitor("write", Scope({"tags": ["tenant-2"]}), FIELDS)

    async def told(id: object) -> str:
        async with followers(Looks(), replace(view_of(app, "jobs/", str(id)), visitor=tenant), 1) as [news]:
            return await event(news, "changed")

    assert asyncio.run(told(job.id)) == asyncio.run(told(NewJob("greet").id))


def test_a_stream_ends_by_itself_so_that_the_right_to_it_is_asked_again(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAM_LASTS", 0.2)

    async def scenario() -> int:
        looks = Looks()
        parts = [part async for part in looks.stream(view_of(app, "jobs"), None).body_iterator]
        for look in looks._looks.values():
            assert look.task is not None
            look.task.cancel()
        return len(parts)

    assert asyncio.run(scenario()) >= 1
