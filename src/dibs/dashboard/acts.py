"""What buttons do. The server checks here what the user may change; the page only leaves buttons out."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from dibs.app.dibs import Dibs
from dibs.dashboard.bulk import change, check_search, is_number
from dibs.dashboard.outboxes import redrive
from dibs.dashboard.proof import Proof
from dibs.dashboard.sessions import Visitor
from dibs.errors import BadRequest, NotFound, Refused
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job, NewJob
from dibs.outbox import Outbox

Form = Mapping[str, str]
Said = tuple[str, str | None]
"""What was done, and the page to show then; None for the page of the button."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What acts work on, and the user who asked for them."""

    app: Dibs
    visitor: Visitor
    outbox: Outbox | None
    proof: Proof | None


async def carry_out(desk: Desk, form: Form) -> Said:
    """Do what a form asks for and return what is said of it; refuse what the visitor may not change."""
    act, _, about = form.get("act", "").partition(" ")
    target, _, name = about.partition(" ")
    if act not in ACTS.get(target, ()) or not name:
        raise BadRequest(f"there is no act {act!r} for this")
    filled = {**form, target: name}
    if target in ("message", "store"):
        said = await ACTS[target][act](desk, filled)
    else:
        said = await ACTS[target][act](desk.app, desk.visitor, filled)
    desk.app._core.events.acted(act, name, desk.visitor.name)
    return said


# -- one job ------------------------------------------------------------------------------------


async def _own_job(app: Dibs, visitor: Visitor, form: Form) -> UUID:
    id = parse_id(form["job"])
    job = await app.get(id)
    if job is None or not visitor.scope.allows(job):
        raise NotFound(id)
    return id


async def _retry(app: Dibs, visitor: Visitor, form: Form) -> Said:
    job = await app.retry(await _own_job(app, visitor, form))
    return f"{job.kind} is {job.state} again", None


async def _cancel(app: Dibs, visitor: Visitor, form: Form) -> Said:
    job = await app.cancel(await _own_job(app, visitor, form), form.get("reason") or None)
    return (f"{job.kind} is cancelled" if job.is_finished else f"{job.kind} was asked to stop"), None


async def _recover(app: Dibs, visitor: Visitor, form: Form) -> Said:
    job = await app.recover(await _own_job(app, visitor, form))
    return f"{job.kind} was taken back and is {job.state}", None


async def _delete(app: Dibs, visitor: Visitor, form: Form) -> Said:
    id = await _own_job(app, visitor, form)
    gone = await app.delete(id)
    back = "jobs" if str(id) in form.get("back", "") else None
    return f"the job {id} was {'deleted' if gone else 'gone already'}", back


async def _again(app: Dibs, visitor: Visitor, form: Form) -> Said:
    """Enqueue a job like this one with other arguments."""
    job = await app.get(await _own_job(app, visitor, form))
    assert job is not None
    new = like(job, form.get("args", ""))
    visitor.scope.may_enqueue(app._core.registry.prepare(new))
    [made] = await app.enqueue(new)
    if not visitor.scope.allows(made):
        raise Refused("another job has this unique key")
    return f"{made.kind} was enqueued", f"jobs/{made.id}"


def like(job: Job, args: str) -> NewJob:
    try:
        given: Any = msgspec.json.decode(args)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"the arguments are not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest('the arguments must be a JSON object, like {"order_id": 42}')
    return NewJob(
        job.kind,
        args=given,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        train=job.train,
        slot=job.slot,
        tags=job.tags,
        meta=job.meta,
    )


async def _all_that_match(app: Dibs, visitor: Visitor, form: Form) -> Said:
    q = form["search"]
    check_search(q, visitor)
    return await change(app, form["act"].partition("-")[0], q, form, visitor.scope.narrowed()), None


# -- queues, trains, pipelines, messages --------------------------------------------------------


async def _pause(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_queue(form["queue"])
    await app.pause(form["queue"])
    return f"the queue {form['queue']!r} is paused", None


async def _resume(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_queue(form["queue"])
    await app.resume(form["queue"])
    return f"the queue {form['queue']!r} goes on", None


async def _limit(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_queue(form["queue"])
    text = form.get("limit", "").strip()
    if text and not is_number(text):
        raise BadRequest(f"limit {text[:20]!r} is not a number; leave it empty for none")
    await app.limit(form["queue"], int(text) if text else None)
    return f"the queue {form['queue']!r} has {f'a limit of {text}' if text else 'no limit'}", None


async def _release(app: Dibs, visitor: Visitor, form: Form) -> Said:
    name = form["train"]
    train = await app.trains.get(name)
    if train is None or (
        visitor.scope.filter and (train.head is None or not visitor.scope.allows(train.head))
    ):
        raise NotFound(name)
    if not await app.trains.release(name):
        raise Refused(f"the train {name!r} is not held: there is nothing to release")
    return f"the train {name!r} goes on", None


async def _run_schedule(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    job = await app.schedules.run_now(form["schedule"])
    return f"{job.kind} was enqueued", None


async def _pause_schedule(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    await app.schedules.pause(form["schedule"])
    return f"the schedule {form['schedule']!r} is paused", None


async def _resume_schedule(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    await app.schedules.resume(form["schedule"])
    return f"the schedule {form['schedule']!r} goes on", None


async def _delete_schedule(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    await app.schedules.delete(form["schedule"])
    return f"the schedule {form['schedule']!r} was deleted", None


async def _cancel_pipeline(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    changed = await app.pipelines.cancel(form["pipeline"])
    return f"{changed:,} jobs are cancelled or were asked to stop", None


async def _retry_pipeline(app: Dibs, visitor: Visitor, form: Form) -> Said:
    visitor.scope.only_all()
    changed = await app.pipelines.retry(form["pipeline"])
    return f"{changed:,} jobs run again", None


async def _redrive(desk: Desk, form: Form) -> Said:
    desk.visitor.scope.only_all()
    message, broker = form["message"][:36], form["message"][37:] or None
    return await redrive(desk.app, desk.outbox, message, broker), None


async def _verify(desk: Desk, form: Form) -> Said:
    desk.visitor.scope.only_all()
    if desk.proof is None:
        raise Refused("this page may not run the check: start it with dibs serve --allow-verify")
    desk.proof.begin()
    return "the check has begun", None


ACTS: dict[str, dict[str, Callable[..., Awaitable[Said]]]] = {
    "job": {"retry": _retry, "cancel": _cancel, "recover": _recover, "delete": _delete, "again": _again},
    "search": dict.fromkeys(("retry-all", "cancel-all", "delete-all"), _all_that_match),
    "queue": {"pause": _pause, "resume": _resume, "limit": _limit},
    "train": {"release": _release},
    "schedule": {
        "run": _run_schedule,
        "pause": _pause_schedule,
        "resume": _resume_schedule,
        "delete": _delete_schedule,
    },
    "pipeline": {"cancel": _cancel_pipeline, "retry": _retry_pipeline},
    "message": {"redrive": _redrive},
    "store": {"verify": _verify},
}
