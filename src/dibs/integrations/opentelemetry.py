"""OpenTelemetry: a span for every enqueue and every run, in one trace, and metrics of what happens to jobs.

    instrument(app)

The job carries the trace in its `meta` under `"otel"`: a W3C `traceparent`, as a request would. The worker
that runs the job continues the trace, in another process, on another machine, a day later.
"""

import importlib.util

if importlib.util.find_spec("opentelemetry") is None:
    raise ModuleNotFoundError(
        "dibs.integrations.opentelemetry needs OpenTelemetry: pip install 'dibs[otel]'", name="opentelemetry"
    )


from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import msgspec
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from dibs.app.dibs import Dibs
from dibs.app.registry import Registry
from dibs.errors import BadRequest
from dibs.events import NAMES, Event
from dibs.faces import Calls
from dibs.jobs.job import NEW_JOB_COLUMNS, Job, NewJob
from dibs.jobs.options import DEFAULTS
from dibs.jobs.states import Outcome, Raised, Retry, settle
from dibs.operations.enqueue import NewRow

__all__ = ["instrument", "running"]

KEY = "otel"  # in a job's meta
META = NEW_JOB_COLUMNS.index("meta")
SYSTEM = {"messaging.system": "dibs"}

_Enqueue = Callable[[Sequence[NewJob], Any], Calls[list[Job]]]


def instrument(
    app: Dibs,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Callable[[], None]:
    """Trace and measure this app from now on; call the returned function to stop.

    The global providers are the default.
    """
    core = app._core
    if core.around is not None:
        raise BadRequest(
            "this app is instrumented already: call what instrument() returned before doing it again"
        )
    tracer = trace.get_tracer("dibs", tracer_provider=tracer_provider)
    untraced = core.registry
    core.registry = TracedRegistry(
        **{field.name: getattr(untraced, field.name) for field in fields(untraced)}
    )
    core.around = lambda job: running(job, tracer, core.registry.options(job.kind).retry)
    for face in (app, app.sync):  # their class and other apps stay as they are
        face._enqueue = _traced(tracer, face._enqueue)  # type: ignore[assignment,method-assign]
    stop_measuring = core.events.subscribe(
        JobInstruments(metrics.get_meter("dibs", meter_provider=meter_provider)), NAMES
    )

    def stop() -> None:
        core.registry, core.around = untraced, None
        del app._enqueue, app.sync._enqueue
        stop_measuring()

    return stop


# -- Spans --------------------------------------------------------------------------------------


def _traced(tracer: trace.Tracer, enqueue: _Enqueue) -> _Enqueue:
    def traced(new_jobs: Sequence[NewJob], within: Any) -> Calls[list[Job]]:
        with _enqueueing(tracer, new_jobs):
            return (yield from enqueue(new_jobs, within))

    return traced


def _enqueueing(tracer: trace.Tracer, new_jobs: Sequence[NewJob]) -> Any:
    kinds = sorted({str(getattr(new, "kind", new)) for new in new_jobs})
    about: dict[str, Any] = {
        **SYSTEM,
        "messaging.operation.type": "send",
        "messaging.batch.message_count": len(new_jobs),
        "dibs.kinds": kinds,
    }
    if len(new_jobs) == 1 and isinstance(new_jobs[0], NewJob):
        about["messaging.message.id"] = str(new_jobs[0].id)
    name = f"enqueue {kinds[0]}" if len(kinds) == 1 else "enqueue"
    return tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=about)


class TracedRegistry(Registry):
    """A registry that puts the current trace into every job it prepares."""

    __slots__ = ()

    def prepare(self, new: NewJob, parent: Job | None = None) -> NewRow:
        row = super().prepare(new, parent)
        carrier = _carrier(parent)
        if not carrier:
            return row
        meta = msgspec.json.decode(row[META])
        traced = msgspec.json.encode({KEY: carrier, **meta}).decode()
        return (*row[:META], traced, *row[META + 1 :])


def _carrier(parent: Job | None) -> Mapping[str, str]:
    """Return the current trace, or the parent's: a chained job is stored after its parent's span ended."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier if carrier or parent is None else _carried(parent)


def _carried(job: Job) -> Mapping[str, str]:
    carried = job.meta.get(KEY)
    return carried if isinstance(carried, dict) else {}


@contextmanager
def running(
    job: Job, tracer: trace.Tracer | None = None, retry: Retry = DEFAULTS.retry
) -> Iterator[Callable[[Outcome], Outcome]]:
    """Open the span of one attempt, in the trace of its enqueue: for jobs that you claim by hand.

    with running(claim.job): ...
    """
    sent = propagate.extract(_carried(job))
    origin = trace.get_current_span(sent).get_span_context()
    about: dict[str, Any] = {
        **SYSTEM,
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "dibs.kind": job.kind,
        "dibs.attempt": job.attempts,
        "dibs.token": job.token or 0,
    }
    with (tracer or trace.get_tracer("dibs")).start_as_current_span(
        f"run {job.kind}",
        context=sent,
        kind=SpanKind.CONSUMER,
        attributes=about,
        links=[Link(origin)] if origin.is_valid else (),
    ) as span:
        yield lambda outcome: _with_outcome(span, job, outcome, retry)


def _with_outcome(span: Span, job: Job, outcome: Outcome, retry: Retry) -> Outcome:
    """Add the outcome to the span, in the same word as in the metrics and the store."""
    settled = settle(job.attempts, job.max_attempts, outcome, retry, chance=0.5)
    span.set_attribute("dibs.outcome", settled.settled_as)
    if isinstance(outcome, Raised):
        error = outcome.error
        span.set_status(Status(StatusCode.ERROR, error["message"]))
        about = {"exception.type": error["type"], "exception.message": error["message"]}
        trace_text = {} if error["traceback"] is None else {"exception.stacktrace": error["traceback"]}
        span.add_event("exception", {**about, **trace_text})
    return outcome


# -- Metrics ------------------------------------------------------------------------------------


COUNTED = {
    "enqueued": "Jobs that were stored.",
    "claimed": "Attempts that were begun.",
    "settled": "Attempts that ended, by outcome.",
    "lost": "Claims that were no longer held.",
}
TIMED = {
    "wait": "How long jobs were ready before they were claimed.",
    "duration": "How long attempts took, from claim to settlement.",
}


class JobInstruments:
    """The counters and histograms of an app, fed by its events."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counters = {
            name: meter.create_counter(f"dibs.jobs.{name}", unit="{job}", description=text)
            for name, text in COUNTED.items()
        }
        self._times = {
            name: meter.create_histogram(f"dibs.jobs.{name}", unit="s", description=text)
            for name, text in TIMED.items()
        }

    def __call__(self, event: Event) -> None:
        for job in event.jobs if event.name in COUNTED else ():
            about = {"dibs.kind": job.kind, "dibs.queue": job.queue}
            match event.name:
                case "settled":
                    about["dibs.outcome"] = event.about["as"]
                    self._time("duration", event.about["seconds"], about)
                case "claimed" if job.claimed_at is not None:
                    self._time("wait", (job.claimed_at - job.run_at).total_seconds(), about)
                case "enqueued" if not job.is_new:
                    continue
            self._counters[event.name].add(1, about)

    def _time(self, name: str, seconds: float | None, about: Mapping[str, str]) -> None:
        if seconds is not None:
            self._times[name].record(max(seconds, 0.0), about)
