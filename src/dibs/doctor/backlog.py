"""Whether the work is being done."""

import shlex
from collections.abc import Callable, Iterator
from datetime import datetime

from dibs.doctor.facts import Examined, Finding, Level
from dibs.operations.upkeep import WorkerInfo
from dibs.text import numbered, spoken

LONG_WAIT = 60  # seconds
LATE_SWEEP = 5  # seconds: a worker takes back an expired lease within one


def workers(examined: Examined) -> Iterator[Finding]:
    if not examined.workers:
        yield Finding(Level.note, "workers", "none was heard of lately", "start one: dibs work MODULE:APP")
        return
    busy = sum(worker.running for worker in examined.workers)
    places = sum(worker.concurrency for worker in examined.workers)
    yield Finding(Level.ok, "workers", f"{len(examined.workers)}, with {busy} of {places} places busy")


def waiting(examined: Examined) -> Iterator[Finding]:
    """Is what could be claimed being claimed?"""
    paused = {queue.name for queue in examined.queues if queue.paused}
    open_ones = [one for one in examined.backlog if one.queue not in paused]
    if not open_ones:
        yield Finding(Level.ok, "waiting", "no job is waiting for a worker")
        return
    oldest = min(open_ones, key=lambda one: one.since)
    seconds = (examined.now - oldest.since).total_seconds()
    jobs = sum(one.jobs for one in open_ones)
    sentence = f"{jobs:,} ready, the oldest for {spoken(seconds)} in the queue {oldest.queue!r}"
    if seconds < LONG_WAIT:
        yield Finding(Level.ok, "waiting", sentence)
    else:
        advice = "more workers, or a higher --concurrency" if examined.workers else "start a worker"
        yield Finding(Level.warning, "waiting", sentence, advice)


def unknown_kinds(examined: Examined) -> Iterator[Finding]:
    if not examined.workers:
        return
    for queue, kind in examined.lines:
        if not any(_takes(worker, queue, kind) for worker in examined.workers):
            yield Finding(
                Level.warning,
                "kinds",
                f"jobs of kind {kind!r} wait in the queue {queue!r}, and no live worker takes them",
                "start a worker that has this kind and serves this queue, or cancel them",
            )


def _takes(worker: WorkerInfo, queue: str, kind: str) -> bool:
    return kind in worker.kinds and (worker.queues is None or queue in worker.queues)


def expired(examined: Examined) -> Iterator[Finding]:
    late: list[tuple[str, Callable[[Examined], datetime | None]]] = [
        ("a job whose lease ran out {} ago was not taken back", lambda one: one.next_lease),
        ("what was due {} ago, a job or the turn of a slot, was not done", lambda one: one.next_due),
    ]
    for sentence, moment in late:
        at = moment(examined)
        seconds = 0.0 if at is None else (examined.now - at).total_seconds()
        if seconds >= LATE_SWEEP:
            yield Finding(
                Level.warning if examined.workers else Level.note,
                "upkeep",
                sentence.format(spoken(seconds)),
                "look at the workers' logs" if examined.workers else "start a worker: any one does this",
            )


def paused(examined: Examined) -> Iterator[Finding]:
    for queue in examined.queues:
        if queue.paused:
            ready = queue.counts.get("ready", 0)
            yield Finding(
                Level.note,
                "queues",
                f"{queue.name!r} is paused" + (f" with {numbered(ready, 'ready job')}" if ready else ""),
                shlex.join(["dibs", "queues", "resume", queue.name]),
            )


def held(examined: Examined) -> Iterator[Finding]:
    """Trains whose head failed or was cancelled, and was to hold the others: nobody else lets them go."""
    if examined.held:
        name, _ = examined.held[0]
        more = len(examined.held) - 1
        behind = sum(jobs - 1 for _, jobs in examined.held)
        trains = f"{name!r} and {numbered(more, 'more train')} wait" if more else f"{name!r} waits"
        yield Finding(
            Level.note,
            "trains",
            f"{trains} for a person, with {numbered(behind, 'job')} behind",
            "see which and why: dibs trains --held; then dibs jobs retry its head, or dibs trains release it",
        )


def departed(examined: Examined) -> Iterator[Finding]:
    """A move that is going on has some, too; they are gone a moment later."""
    if examined.departed:
        jobs = f"{numbered(examined.departed, 'job')} {'is' if examined.departed == 1 else 'are'}"
        yield Finding(
            Level.warning,
            "move",
            f"{jobs} on the way to another store, and in neither of them to be claimed",
            "if no `dibs move` is running, run the same one again",
        )
