"""Whether the work is being done: workers, waiting jobs, upkeep, pauses, held trains."""

import shlex
from collections.abc import Callable, Iterator
from datetime import datetime

from dibs.doctor.facts import Finding, Level, StoreFacts, note, ok, warning
from dibs.operations.upkeep import takes
from dibs.text import numbered, spoken

LONG_WAIT = 60  # seconds
LATE_SWEEP = 5  # seconds: a worker takes back an expired lease within one


def workers(examined: StoreFacts) -> Iterator[Finding]:
    if not examined.workers:
        yield note("workers", "none had a heartbeat lately", "start one: dibs work MODULE:APP")
        return
    busy = sum(worker.running for worker in examined.workers)
    room = sum(worker.concurrency for worker in examined.workers)
    yield ok("workers", f"{len(examined.workers)}, running {busy} of at most {room} jobs")


def waiting(examined: StoreFacts) -> Iterator[Finding]:
    """Tell whether the jobs that could be claimed are being claimed."""
    paused = {queue.name for queue in examined.queues if queue.paused}
    unserved = {queue for queue, _ in examined.pairs} - set(_served(examined))
    open_ones = [one for one in examined.backlog if one.queue not in paused | unserved]
    if not open_ones:
        yield ok("waiting", "no job is waiting for a worker")
        return
    oldest = min(open_ones, key=lambda one: one.since)
    seconds = (examined.now - oldest.since).total_seconds()
    jobs = sum(one.jobs for one in open_ones)
    sentence = f"{jobs:,} ready, the oldest for {spoken(seconds)} in the queue {oldest.queue!r}"
    if seconds < LONG_WAIT:
        yield ok("waiting", sentence)
    else:
        advice = "more workers, or a higher --concurrency" if examined.workers else "start a worker"
        yield warning("waiting", sentence, advice)


def _served(examined: StoreFacts) -> Iterator[str]:
    """Return the queues with ready jobs that a live worker takes; without a worker, all."""
    for queue, kind in examined.pairs:
        if not examined.workers or any(takes(worker, queue, kind) for worker in examined.workers):
            yield queue


def unknown_kinds(examined: StoreFacts) -> Iterator[Finding]:
    if not examined.workers:
        return
    for queue, kind in examined.pairs:
        if not any(takes(worker, queue, kind) for worker in examined.workers):
            yield warning(
                "kinds",
                f"jobs of kind {kind!r} wait in the queue {queue!r}, and no live worker takes them",
                "start a worker that has this kind and serves this queue, or cancel them",
            )


def expired(examined: StoreFacts) -> Iterator[Finding]:
    late: list[tuple[str, Callable[[StoreFacts], datetime | None]]] = [
        ("a lease ran out {} ago and its job was not taken back", lambda one: one.next_lease),
        ("what was due {} ago, a job or the end of an offer, was not done", lambda one: one.next_due),
    ]
    for sentence, time_of in late:
        at = time_of(examined)
        seconds = 0.0 if at is None else (examined.now - at).total_seconds()
        if seconds >= LATE_SWEEP:
            yield Finding(
                Level.warning if examined.workers else Level.note,
                "upkeep",
                sentence.format(spoken(seconds)),
                "read the workers' logs" if examined.workers else "start a worker: any one does this",
            )


def paused(examined: StoreFacts) -> Iterator[Finding]:
    for queue in examined.queues:
        if queue.paused:
            ready = queue.counts.get("ready", 0)
            yield note(
                "queues",
                f"{queue.name!r} is paused" + (f" with {numbered(ready, 'ready job')}" if ready else ""),
                shlex.join(["dibs", "queues", "resume", queue.name]),
            )


def held(examined: StoreFacts) -> Iterator[Finding]:
    """Report trains that an operator must release: their head failed or was cancelled, and holds them."""
    if examined.held:
        name, _ = examined.held[0]
        more = len(examined.held) - 1
        behind = sum(jobs - 1 for _, jobs in examined.held)
        trains = f"{name!r} and {numbered(more, 'more train')} wait" if more else f"{name!r} waits"
        yield note(
            "trains",
            f"{trains} for an operator, with {numbered(behind, 'job')} behind",
            "see which and why: dibs trains --held; then dibs jobs retry its head, or dibs trains release it",
        )


def departed(examined: StoreFacts) -> Iterator[Finding]:
    """Report jobs on their way to another store; while a move runs there are always some."""
    if examined.departed:
        jobs = f"{numbered(examined.departed, 'job')} {'is' if examined.departed == 1 else 'are'}"
        yield warning(
            "move",
            f"{jobs} on the way to another store, and can be claimed in neither",
            "if no `dibs move` is running, run the same one again",
        )
