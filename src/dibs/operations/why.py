"""Why is this job not running? One sentence, and a code that programs can match."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dibs.errors import NotFound
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import Job, JobError, job_from_row
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Rows, Script, Step
from dibs.operations.upkeep import takes, workers
from dibs.text import numbered, spoken

NO_WORKER = "no worker has been heard of lately"
WHAT_TO_DO = "start one with `dibs work MODULE:APP`, or claim by hand"


@dataclass(frozen=True, slots=True)
class Why:
    """`code` is one of: scheduled train slot parent paused limit no_worker ready running finished.
    Example: `print(await app.why(job.id))`"""

    code: str
    sentence: str
    others: tuple[UUID, ...] = ()
    """The other jobs in the sentence: the one it waits for, and the one that that one waits for."""
    quotes: tuple[str, ...] = ()
    """The errors in the sentence, each with the colon before it."""

    @property
    def discreet(self) -> str:
        """The sentence for users that may not know of other jobs."""
        return _DISCREET[self.code] if self.others or self.code == "limit" else self.sentence

    @property
    def without_errors(self) -> str:
        """The sentence for users that may not see errors."""
        sentence = self.sentence
        for quote in self.quotes:
            sentence = sentence.replace(quote, "", 1)
        return sentence

    def __str__(self) -> str:
        return self.sentence


_DISCREET = {
    "parent": "it waits for another job",
    "train": "it is behind another job of its train",
    "slot": "its slot is held by another job",
    "limit": "as many jobs of its queue are running as may",
}
LONGEST_QUOTE = 200  # characters


HOPS = 3  # a job that waits for one that waits for one …: so many are named in one sentence


def explain(id: UUID, silence: int) -> Script[Why]:
    """Explain why a job is not running; a worker silent for longer than this (µs) does not count."""
    rows = yield Step("explain", {"job": id})
    if not rows:
        raise NotFound(id)
    return (yield from _explained(job_from_row(rows[0]), rows[0], silence, HOPS))


def _explained(job: Job, about: Row, silence: int, hops: int) -> Script[Why]:
    if job.state == JobState.blocked:
        waits = yield from _unmet_parents(job, silence, hops)
        return waits or (yield from _job_ahead(job, silence, hops))
    why = judge(job, about)
    if why.code == "finished" and job.train is not None:
        return (yield from _holding_train(job, job.train, why))
    if why.code == "ready":
        return (yield from _no_worker_could(job, why, silence))
    if not _awaits_sweep(job, why, about["now"]):
        return why
    return (yield from _no_worker_sweeps(why, silence, job))


def _unmet_parents(job: Job, silence: int, hops: int) -> Script[Why | None]:
    """Name the parent that has not succeeded and needs an operator most."""
    edges = (yield Step("parents", {"jobs": [job.id]})) if may_have_steps(job.pipeline_id) else ()
    unmet = [edge["parent"] for edge in edges if not edge["met"]]
    if not unmet:
        return None
    rows = yield Step("get", {"ids": unmet})
    parents = sorted((job_from_row(row) for row in rows), key=lambda one: (not one.is_finished, one.id))
    if not parents:
        gone = f"it waits for job {unmet[0]}, which is gone; cancel it, or retry it then"
        return Why("parent", gone, (unmet[0],))
    others = f" and {len(unmet) - 1} more" if len(unmet) > 1 else ""
    first = parents[0]
    if first.is_finished:
        ended = f"which {_finished(first)[3:]}; retry that job"
        sentence = f"it waits for job {first.id} ({first.kind}), {ended}"
        return Why("parent", sentence, (first.id,), _quotes(first))
    waits = Why("parent", f"it waits for job {first.id} ({first.kind}){others}", (first.id,))
    return (yield from _with_state_of(waits, first, silence, hops))


def _holding_train(job: Job, train: str, why: Why) -> Script[Why]:
    """Say so if its train is held by this ended job."""
    [gate] = (yield from _gate("train", train)) or [{"held": False}]
    if not gate["held"] or gate["head"] != job.id:
        return why
    return replace(why, sentence=f"{why}; its train {train!r} waits for it: retry it, or release the train")


def _gate(sort: str, name: str | None) -> Script[Rows]:
    return (yield Step("gates", {"sort": sort, "names": [name], "held": False, "after": None, "limit": 1}))


def _job_ahead(job: Job, silence: int, hops: int) -> Script[Why]:
    sort, name = ("train", job.train) if job.train is not None else ("slot", job.slot)
    rows = yield from _gate(sort, name)
    found = yield Step("get", {"ids": [row["head"] for row in rows if row["head"] is not None]})
    ahead = [job_from_row(row) for row in found if row["id"] != job.id]
    held = any(row["held"] for row in rows)
    why = _behind_train(job, ahead, held) if sort == "train" else _behind_slot(job, ahead)
    if not ahead:
        return (yield from _no_worker_sweeps(why, silence))
    return why if held else (yield from _with_state_of(why, ahead[0], silence, hops))


def _behind_train(job: Job, ahead: Sequence[Job], held: bool) -> Why:
    if not ahead:
        return Why("train", f"it is next on the train {job.train!r} and goes at the next sweep")
    [head] = ahead
    if held:
        return Why(
            "train",
            f"its train {job.train!r} is held by job {head.id} ({head.kind}), which {_finished(head)[3:]}; "
            "retry that job or release the train",
            (head.id,),
            _quotes(head),
        )
    return Why("train", f"it is behind job {head.id} ({head.kind}) of its train {job.train!r}", (head.id,))


def _behind_slot(job: Job, ahead: Sequence[Job]) -> Why:
    if not ahead:
        return Why("slot", f"it is next in the slot {job.slot!r} and goes at the next sweep")
    [other] = ahead
    return Why("slot", f"the slot {job.slot!r} is held by job {other.id} ({other.kind})", (other.id,))


def _with_state_of(why: Why, other: Job, silence: int, hops: int) -> Script[Why]:
    """Add the state of the job that is waited for, and what it waits for itself."""
    rows = yield Step("explain", {"job": other.id})
    if not rows:  # it has gone since
        return why
    about, now = rows[0], rows[0]["now"]
    other = job_from_row(about)
    stands, needs = f"which is {other.state}", None
    if other.state == JobState.running:
        stands = f"which is running at {other.worker}{_ending(other, about['cancel_reason'], now)}"
        if _is_late(other, now):
            stands = str((yield from _no_worker_sweeps(Why("running", stands), silence, other)))
    elif other.state == JobState.scheduled and other.run_at > now and not about["paused"]:
        stands += f" until {_time(other.run_at)}"
    elif hops and not other.is_finished:
        needs = yield from _explained(other, about, silence, hops - 1)
    if needs is None or needs.code == "ready":
        return replace(why, sentence=f"{why}, {stands}")
    others, quotes = (*why.others, *needs.others), (*why.quotes, *needs.quotes)
    return Why(why.code, f"{why}, {stands}: {needs}", others, quotes)


def _no_worker_could(job: Job, why: Why, silence: int) -> Script[Why]:
    """Say so if no live worker would claim this ready job."""
    here = yield from workers(silence)
    if not here:
        return Why("no_worker", f"{why}, but {NO_WORKER}: {WHAT_TO_DO}")
    if any(takes(worker, job.queue, job.kind) for worker in here):
        return why
    knows = any(job.kind in worker.kinds for worker in here)
    what = f"serves the queue {job.queue!r}" if knows else f"knows the kind {job.kind!r}"
    return Why("no_worker", f"it is ready, but of {numbered(len(here), 'live worker')} none {what}")


def _no_worker_sweeps(why: Why, silence: int, late: Job | None = None) -> Script[Why]:
    """Say so if no worker is there to sweep; the holder of a late job was last seen before it was late."""
    here = yield from workers(silence)
    if any(late is None or worker.name != late.worker or _is_late(late, worker.seen_at) for worker in here):
        return why
    none = "no other worker has been heard of lately" if here else NO_WORKER
    return replace(why, sentence=f"{why}, but {none} that would sweep: {WHAT_TO_DO}")


def _awaits_sweep(job: Job, why: Why, now: datetime) -> bool:
    return _is_late(job, now) if why.code == "running" else why.code == "scheduled" and job.run_at <= now


def judge(job: Job, about: Row) -> Why:
    """Say why, from what the store knows of the job, its queue, and the time."""
    now: datetime = about["now"]
    if job.is_finished:
        return Why("finished", _finished(job), quotes=_quotes(job))
    if job.state == JobState.running:
        return Why("running", _running(job, about["cancel_reason"], now))
    if about["paused"]:
        return Why("paused", f"the queue {job.queue!r} is paused; resume it to let its jobs run")
    if job.state == JobState.scheduled and job.run_at > now:
        again = f" (attempt {job.attempts} of {job.max_attempts} failed)" if job.attempts else ""
        return Why(
            "scheduled", f"it is scheduled until {_time(job.run_at)}, in {_span(job.run_at - now)}{again}"
        )
    if about["max_running"] is not None and about["running"] >= about["max_running"]:
        return Why(
            "limit",
            f"the queue {job.queue!r} may run {about['max_running']} at a time and "
            f"runs {about['running']} now",
        )
    if job.state == JobState.scheduled:
        return Why("scheduled", "it is due and becomes ready at the next sweep")
    return Why("ready", f"it has been ready for {_span(now - job.run_at)} and waits for a claim")


def _finished(job: Job) -> str:
    when = "" if job.finished_at is None else f" at {_time(job.finished_at)}"
    if job.state == JobState.failed:
        last = _quote(job.errors[-1]) if job.errors else ": no reason was recorded"
        ended = ", not tried again" if 0 < job.attempts < job.max_attempts else ""
        return f"it failed{when} after {job.attempts} of {job.max_attempts} attempts{ended}{last}"
    if job.state == JobState.cancelled:
        return f"it was cancelled{when}" + (f": {job.message}" if job.message else "")
    return f"it succeeded{when}"


def _quotes(job: Job) -> tuple[str, ...]:
    return (_quote(job.errors[-1]),) if job.state == JobState.failed and job.errors else ()


def _quote(error: JobError) -> str:
    """Return type and message on one line; the whole message may be thousands of characters long."""
    message = " ".join(error.message.split())
    text = f"{error.type}: {message}" if message else error.type
    return f": {text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + '…'}"


def _running(job: Job, asked: str | None, now: datetime) -> str:
    long = "" if job.claimed_at is None else f" for {_span(now - job.claimed_at)}"
    sentence = f"it has been running at {job.worker}{long}, attempt {job.attempts} of {job.max_attempts}"
    if job.lease_until is not None and job.lease_until > now:
        sentence += f"; its lease ends in {_span(job.lease_until - now)} unless it is renewed"
    return sentence + _ending(job, asked, now)


def _ending(job: Job, asked: str | None, now: datetime) -> str:
    """Return what will end the run: a cancel that was asked for, or a lease that ran out."""
    ending = "" if asked is None else f"; it was asked to stop{f' ({asked})' if asked else ''}"
    if job.lease_until is not None and job.lease_until <= now:
        does = "takes it back" if asked is None else "cancels it"
        ending += f"; its lease ran out {_span(now - job.lease_until)} ago, the next sweep {does}"
    return ending


def _is_late(job: Job, now: datetime) -> bool:
    return job.lease_until is not None and job.lease_until <= now


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _span(span: timedelta) -> str:
    return spoken(span.total_seconds())
