"""OpenTelemetry: enqueue and run are one trace, in any process; nothing is traced without `instrument`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dibs import BadRequest, Context, Dibs, NewJob, Retry, Snooze, Worker
from dibs.integrations.opentelemetry import instrument, running
from tests.support.faces import Face
from tests.support.internals import core_of


class Watched:
    """An app of one test, and all spans and metrics that OpenTelemetry got of it."""

    def __init__(self, url: str) -> None:
        self.app = Dibs(url)
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.stop = self.instrument()

    def instrument(self) -> Any:
        return instrument(self.app, tracer_provider=self.tracers, meter_provider=self._meters)

    def work(self) -> None:
        async def drain() -> None:
            await Worker(self.app).run(until_idle=True)
            await self.app.close()

        asyncio.run(drain())

    def spans(self, start: str = "") -> list[Any]:
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(start)]

    def numbers(self) -> dict[str, float]:
        """Return every metric with its kind, outcome and count."""
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            _label(metric.name, point.attributes): getattr(point, "value", getattr(point, "count", None))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


def _label(name: str, attributes: Any) -> str:
    about = (str(value) for key, value in sorted(attributes.items()) if key != "dibs.queue")
    return " ".join([name, *about])


@pytest.fixture
def watched(url: str) -> Iterator[Watched]:
    watched = Watched(url)
    yield watched
    watched.app.sync.close()


@pytest.mark.parametrize("face", ["sync"])
def test_the_trace_of_an_enqueue_goes_on_where_the_job_runs(app: Face, watched: Watched, face: str) -> None:
    seen: list[Any] = []

    @watched.app.job
    async def work(n: int) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    with watched.tracers.get_tracer("the user's").start_as_current_span("request"):
        job = work.using(meta={"mine": 1}).sync.enqueue(1)
    watched.work()

    [request], [sent], [ran] = (watched.spans(name) for name in ("request", "enqueue work", "run work"))
    assert sent.parent.span_id == request.context.span_id
    assert ran.parent.span_id == sent.context.span_id == ran.links[0].context.span_id
    assert {span.context.trace_id for span in (sent, ran)} == {request.context.trace_id}
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert seen == [ran.context.span_id]
    assert ran.attributes["messaging.message.id"] == str(job.id) == sent.attributes["messaging.message.id"]
    assert (ran.attributes["dibs.attempt"], ran.attributes["dibs.outcome"]) == (1, "succeeded")
    assert job.meta["mine"] == 1
    assert set(job.meta["otel"]) == {"traceparent"}


@pytest.fixture
def here() -> Iterator[Watched]:
    watched = Watched("memory://")
    yield watched
    watched.app.sync.close()


def test_plain_functions_and_run_job_are_traced_too(here: Watched) -> None:
    inside: list[Any] = []

    @here.app.job
    def plain() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    plain.sync.enqueue()
    here.work()
    here.app.sync.run_job(plain.sync.enqueue().id)

    ran = here.spans("run plain")
    assert inside == [span.context.span_id for span in ran]
    assert len({span.context.trace_id for span in ran}) == 2


def test_a_failed_attempt_says_so_and_the_next_one_joins_the_trace(here: Watched) -> None:
    @here.app.job(max_attempts=2)
    def broken() -> None:
        raise ValueError("no such order")

    job = broken.sync.enqueue()
    for _ in range(2):
        here.app.sync.run_job(job.id)
        here.app.sync.retry(job.id)

    [sent] = here.spans("enqueue")
    ran = here.spans("run broken")
    assert [span.parent.span_id for span in ran] == [sent.context.span_id] * 2
    assert [span.status.status_code for span in ran] == [StatusCode.ERROR] * 2
    assert ran[0].status.description == "no such order"
    assert ran[0].events[0].attributes["exception.type"] == "ValueError"
    assert "exception.stacktrace" in ran[0].events[0].attributes


def test_follow_up_jobs_stay_in_the_trace(here: Watched) -> None:
    @here.app.job
    async def child() -> None: ...

    @here.app.job
    async def parent(ctx: Context) -> None:
        ctx.chain(child.new())

    parent.sync.enqueue()
    here.work()

    [sent], [ran] = here.spans("enqueue"), here.spans("run child")
    assert ran.context.trace_id == sent.context.trace_id


def test_a_claim_by_hand_can_be_traced(here: Watched) -> None:
    here.app.sync.enqueue(NewJob("work"), NewJob("other"))
    [claim] = here.app.sync.claim(kinds=["work"])

    with running(claim.job, here.tracers.get_tracer("mine")):
        claim.succeed()

    [sent], [ran] = here.spans("enqueue"), here.spans("run work")
    assert (ran.parent.span_id, sent.attributes["messaging.batch.message_count"]) == (sent.context.span_id, 2)


def test_everything_that_happens_is_counted(here: Watched) -> None:
    @here.app.job(max_attempts=2)
    async def flaky(ctx: Context) -> Any:
        if ctx.job.attempts == 1 and not ctx.job.errors:
            raise ValueError("once")
        return None

    @here.app.job
    async def lazy() -> Snooze:
        return Snooze(3600)

    jobs = [flaky.sync.enqueue(), lazy.sync.enqueue()]
    here.app.sync.run_job(jobs[0].id)
    here.app.sync.retry(jobs[0].id)
    here.work()

    counted = here.numbers()
    assert counted["dibs.jobs.enqueued flaky"] == counted["dibs.jobs.enqueued lazy"] == 1
    assert counted["dibs.jobs.claimed flaky"] == counted["dibs.jobs.wait flaky"] == 2
    assert counted["dibs.jobs.settled flaky retried"] == counted["dibs.jobs.duration flaky retried"] == 1
    assert counted["dibs.jobs.settled flaky succeeded"] == 1
    assert counted["dibs.jobs.settled lazy snoozed"] == 1


def test_what_was_not_asked_for_leaves_no_trace(here: Watched) -> None:
    with pytest.raises(BadRequest, match="instrumented already"):
        here.instrument()
    here.stop()
    other = Dibs("memory://").sync

    [job], [elsewhere] = here.app.sync.enqueue(NewJob("work")), other.enqueue(NewJob("work"))

    assert (job.meta, elsewhere.meta, here.spans()) == ({}, {}, [])
    assert core_of(here.app).around is None
    here.instrument()()
    other.close()


def test_a_job_with_foreign_otel_meta_still_runs(here: Watched) -> None:
    @here.app.job
    def work() -> str:
        return "done"

    for meta in ({"otel": "mine"}, {"otel": {"traceparent": "nonsense"}}):
        job = work.using(meta=meta).sync.enqueue()

        assert job.meta == meta
        assert here.app.sync.run_job(job.id).result == "done"
    assert [span.links for span in here.spans("run")] == [(), ()]


def test_jobs_of_a_train_are_traced_like_any_other(here: Watched) -> None:
    @here.app.job(train="to {place}")
    async def deliver(place: str) -> None: ...

    jobs = [deliver.sync.enqueue("Rome") for _ in range(2)]
    here.work()

    assert [here.app.sync.get(job.id).state for job in jobs] == ["succeeded"] * 2
    assert len({span.context.trace_id for span in here.spans("run deliver")}) == 2


def test_spans_and_metrics_have_one_word_for_an_outcome(here: Watched) -> None:
    @here.app.job(max_attempts=2, retry=Retry.fixed(0))
    async def breaks() -> None:
        raise ValueError("broken")

    breaks.sync.enqueue()
    here.work()

    assert [span.attributes["dibs.outcome"] for span in here.spans("run breaks")] == ["retried", "failed"]
