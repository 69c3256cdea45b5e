"""A worker counts what it does, and writes it once a minute and at its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dibs import Dibs, Fail, NewJob, Retry, Worker
from dibs.operations.minutes import minute_of
from dibs.operations.scripts import Step
from tests.support.internals import store_of
from tests.support.workers import drain


def _written(app: Dibs, monkeypatch: Any) -> list[dict[str, Any]]:
    """What is written from now on."""
    store, written = store_of(app), []
    run = store.run_async

    async def noting(operation: Any, *rest: Any) -> Any:
        def noted(tries: Any) -> Any:
            script = operation(tries)
            answer = None
            try:
                step: Step = next(script)
                while True:
                    if step.question == "add_to_minute":
                        written.append(step.params)
                    answer = yield step
                    step = script.send(answer)
            except StopIteration as end:
                return end.value

        return await run(noted, *rest)

    monkeypatch.setattr(store, "run_async", noting)
    return written


async def test_what_a_worker_did_is_in_the_stats_of_the_store(app: Dibs) -> None:
    @app.job(queue="mail", max_attempts=2, retry=Retry.fixed(0))
    async def send(how: str) -> None:
        if how == "raise":
            raise ValueError("broken")
        if how == "fail":
            raise Fail("no way")

    @app.job
    def print_it() -> None: ...

    await app.enqueue(send.new("succeed"), send.new("raise"), send.new("fail"), print_it.new())
    await drain(app)

    by_kind = {each.kind: (each.done, each.failed) for each in await app.stats(by="kind")}
    [mail] = await app.stats("mail", by="queue", width=3600)
    assert by_kind == {"send": (1, 3), "print_it": (1, 0)}
    assert (mail.latency.total, mail.duration.total) == (4, 4)
    assert 0 <= (mail.duration.percentile(1) or 60) < 60
    assert sum(each.done for each in await app.stats(since=72 * 3600)) == 2


async def test_a_thousand_jobs_are_one_row(app: Dibs, monkeypatch: Any) -> None:
    @app.job
    async def work() -> None: ...

    written = _written(app, monkeypatch)
    await app.enqueue(*(NewJob("work") for _ in range(1000)))
    began = await _now(app)
    await drain(app)

    minutes = minute_of(await _now(app)) - minute_of(began) + 1
    assert {line["kind"] for line in written} == {"work"}
    for width in (1, 15):
        done = [line["done"] for line in written if line["width"] == width]
        assert sum(done) == 1000
        assert len(done) <= minutes


async def test_counts_are_written_when_their_minute_is_over(app: Dibs, monkeypatch: Any) -> None:
    @app.job
    async def work() -> None: ...

    await app.enqueue(work.new())
    worker = Worker(app)
    minutes = worker._upkeep._minutes
    monkeypatch.setattr(minutes, "write_rest", _nothing)
    await worker.run(until_idle=True)
    written = _written(app, monkeypatch)
    minutes._minute = minute_of(now := _quarter_before(await _now(app)))

    await minutes.write_if_due(now)
    assert written == []
    await minutes.write_if_due(now + timedelta(minutes=1))
    assert [(line["width"], line["done"]) for line in written] == [(1, 1)]
    await minutes.write_if_due(now + timedelta(minutes=2))
    assert len(written) == 1
    await minutes.write_if_due(now + timedelta(minutes=16))
    assert [(line["width"], line["done"]) for line in written] == [(1, 1), (15, 1)]


def _quarter_before(now: Any) -> Any:
    return now.replace(minute=now.minute // 15 * 15)


async def _nothing() -> None: ...


async def _now(app: Dibs) -> Any:
    def ask() -> Any:
        [row] = yield Step("now", {})
        return row["now"]

    return await store_of(app).run_async(lambda _: ask())
