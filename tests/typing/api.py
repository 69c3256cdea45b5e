"""What users see under a strict type checker: run by `make check`, never executed.

Every `type: ignore` below stands on a line that must be an error; `warn_unused_ignores` makes the
check fail should it ever be accepted.
"""

from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import MetaData, Row, Table, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dibs import (
    Claim,
    Context,
    Dibs,
    Fail,
    Job,
    JobState,
    NewJob,
    NewPipeline,
    Pipeline,
    Retry,
    ScheduleInfo,
    Snooze,
    Swept,
    SyncClaim,
    SyncNewPipeline,
    Train,
    Why,
)
from dibs.tables import Claims, claim_rows
from dibs.tables import sync as tables

app = Dibs("memory://")


class Report(DeclarativeBase):
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]


task = Table("task", MetaData())


@app.job
async def send(order_id: int, note: str = "") -> dict[str, int]:
    return {"order": order_id}


@app.job(queue="mail", max_attempts=5, retry=Retry.exponential(base=2, cap=3600), timeout=30)
def print_label(ctx: Context, order_id: int) -> str:
    ctx.chain(send.new(order_id))
    ctx.sync.progress(0.5, "half")
    ctx.sync.progress("half")  # type: ignore[arg-type]
    return ctx.job.kind


@app.job(unique="order-{order_id}")
async def audit(ctx: Context, order_id: UUID, *, deep: bool = False) -> None:
    await ctx.progress(0.5, "half")
    await ctx.complete({"n": 1}, within=object())
    await ctx.fence(object(), "report", key={"id": 7}, column="token")


@app.every("0 6 * * *", tz="Europe/Berlin", missed="skip", args={"order_id": 1}, tags=["daily"])
@app.job
async def recount(order_id: int) -> int:
    return order_id


@app.every(timedelta(minutes=5))
def beat(ctx: Context) -> None: ...


async def schedules() -> None:
    assert_type(await recount.enqueue(1), Job)
    assert_type(await beat.enqueue(), Job)
    assert_type(await app.schedules.list(), list[ScheduleInfo])
    assert_type(app.sync.schedules.list(), list[ScheduleInfo])
    await recount.enqueue("one")  # type: ignore[arg-type]
    app.every("* * * * *", missed="some")  # type: ignore[arg-type]


async def enqueues() -> None:
    assert_type(await send.enqueue(42), Job)
    assert_type(await send.enqueue(order_id=42, note="x"), Job)
    assert_type(await send.using(priority=5, delay=60).enqueue(order_id=42), Job)
    assert_type(send.new(42), NewJob)
    assert_type(send.sync.enqueue(42), Job)
    assert_type(await app.enqueue(send.new(1), NewJob("send", args={"order_id": 3})), list[Job])
    assert_type(app.sync.enqueue(send.new(1)), list[Job])


@app.job(
    retry_on=(ConnectionError,), give_up_on=[ValueError], isolation="process", slot_policy="wait", slot="s"
)
async def sleepy(n: int) -> dict[str, int] | Snooze:
    if n == 1:
        raise Fail("can't work")
    return Snooze(30)


async def results(job: Job) -> None:
    assert_type(await send.wait(job, timeout=30), dict[str, int])
    assert_type(await send.using(priority=1).wait(job.id), dict[str, int])
    assert_type(await print_label.wait("…"), str)
    assert_type(await audit.wait(job), None)
    assert_type(await sleepy.wait(job), dict[str, int] | Snooze)
    await send.wait(7)  # type: ignore[call-overload]


def results_without_a_loop(job: Job) -> None:
    assert_type(send.sync.wait(job, timeout=30), dict[str, int])
    assert_type(print_label.sync.wait(job.id), str)
    assert_type(beat.sync.wait("…"), None)


def wrong_words_are_errors() -> None:
    app.job(slot="s", slot_policy="first")  # type: ignore[call-overload]
    app.job(on_failed="stop")  # type: ignore[call-overload]
    app.job(isolation="thread")  # type: ignore[call-overload]
    app.job(max_attemps=3)  # type: ignore[call-overload]
    app.job(retry_on=("ConnectionError",))  # type: ignore[arg-type]
    send.using(unique="u", on_conflict="drop")  # type: ignore[arg-type]
    NewJob("send", on_cancelled="stop")  # type: ignore[arg-type]
    app.on("finished")  # type: ignore[arg-type]
    app.pipeline("p", on_failed="advance")  # type: ignore[arg-type]


async def wrong_arguments_are_errors() -> None:
    await send.enqueue("forty-two")  # type: ignore[arg-type]
    await send.enqueue()  # type: ignore[call-arg]
    await send.enqueue(1, "x", 2)  # type: ignore[call-arg]
    await send.enqueue(order_id=1, colour="red")  # type: ignore[call-arg]
    send.new("forty-two")  # type: ignore[arg-type]
    send.sync.enqueue("forty-two")  # type: ignore[arg-type]
    send.using(queue="slow").new("forty-two")  # type: ignore[arg-type]


def wrong_options_are_errors() -> None:
    send.using(colour="red")  # type: ignore[call-arg]
    send.using(priority="high")  # type: ignore[arg-type]
    send.using(tags=[1])  # type: ignore[list-item]
    app.every("* * * * *", colour="red")  # type: ignore[call-arg]


async def the_context_is_not_asked_for() -> None:
    assert_type(await print_label.enqueue(42), Job)
    assert_type(await audit.enqueue(UUID(int=1), deep=True), Job)
    assert_type(audit.new(order_id=UUID(int=1)), NewJob)
    await print_label.enqueue("forty-two")  # type: ignore[arg-type]
    await audit.enqueue(42)  # type: ignore[arg-type]


async def claims() -> None:
    claim = await app.claim_job(UUID(int=1), worker="pod-a", lease=60)
    assert_type(claim, Claim | None)
    assert_type(await app.claim(queues=["mail"], kinds=["send"], limit=10), list[Claim])
    claim.succeed()  # type: ignore[union-attr]
    if claim is not None:
        assert_type(claim.job, Job)
        assert_type(claim.token, int)
        await claim.succeed({"n": 1}, then=[send.new(1)])
        async with claim as job:
            assert_type(job, Job)
    assert_type(await app.run_job("…"), Job | None)


def blocking_claims() -> None:
    claim = app.sync.claim_job("…")
    assert_type(claim, SyncClaim | None)
    if claim is not None:
        assert_type(claim.job, Job)
        with claim as job:
            assert_type(job.state, JobState)
        claim.succeed(then=["send"])  # type: ignore[list-item]


async def looks() -> None:
    assert_type(await app.get("…"), Job | None)
    assert_type(await app.find(state="failed", tags=["a"]), list[Job])
    assert_type(await app.counts(), dict[str, int])
    assert_type(await app.wait("…", timeout=5), Job)
    assert_type(await app.why("…"), Why)
    assert_type(app.sync.delete("…"), bool)


async def both_faces_have_the_same_verbs() -> None:
    assert_type(await app.enqueue(send.new(1)), list[Job])
    assert_type(app.sync.enqueue(send.new(1)), list[Job])
    assert_type(app.sync.get("…"), Job | None)
    assert_type(app.sync.find(state="failed", limit=5), list[Job])
    assert_type(app.sync.claim(limit=2), list[SyncClaim])
    assert_type(app.sync.run_job("…"), Job | None)
    assert_type(await app.cancel_many(queue="mail", reason="enough"), int)
    assert_type(app.sync.cancel_many(queue="mail"), int)
    assert_type(await app.pause("mail"), None)
    assert_type(await app.sweep(), Swept)
    assert_type(app.sync.sweep(), Swept)
    assert_type(await app.trains.get("t"), Train | None)
    assert_type(app.sync.trains.list(held=True), list[Train])
    assert_type(await app.slots.current(("a", 1)), Job | None)
    assert_type(app.sync.slots.current("a"), Job | None)
    assert_type(await app.pipelines.get("…"), Pipeline | None)
    assert_type(app.sync.pipelines.cancel("…", "enough"), int)
    assert_type(app.pipeline("p"), NewPipeline)
    assert_type(app.sync.pipeline("p"), SyncNewPipeline)
    assert_type(await app.pipeline("p").enqueue(), list[Job])
    assert_type(app.sync.pipeline("p").enqueue(within=object()), list[Job])
    assert_type(await app.open(), Dibs)


async def wrong_calls_of_verbs_are_errors() -> None:
    await app.find(colour="red")  # type: ignore[call-arg]
    app.sync.find(limit="many")  # type: ignore[arg-type]
    await app.claim(5)  # type: ignore[call-arg, arg-type]
    app.sync.claim_job()  # type: ignore[call-arg]
    await app.limit("mail")  # type: ignore[call-arg]
    app.sync.trains.release(7)  # type: ignore[arg-type]
    app.sync.enqueue("send")  # type: ignore[arg-type]
    print(app.sync.get("…").state)  # type: ignore[union-attr]


async def a_claim_on_either_face(awaited: Claim, blocking: SyncClaim) -> None:
    assert_type(await awaited.renew(60), datetime)
    assert_type(blocking.renew(), datetime)
    assert_type(await awaited.fail("broken", retry=False), None)
    assert_type((awaited.lost, blocking.lease_until), tuple[bool, datetime])
    await awaited.snooze("later")  # type: ignore[arg-type]
    blocking.progress("half")  # type: ignore[arg-type]


async def a_context_on_either_face(ctx: Context) -> None:
    assert_type(await ctx.parents(), list[Job])
    assert_type(ctx.sync.parents(), list[Job])
    await ctx.complete(7)  # type: ignore[call-arg]
    ctx.sync.complete(7)  # type: ignore[call-arg]


async def follows() -> None:
    async for change in app.watch(job_id="…"):
        assert_type(change.job, Job | None)
        assert_type(change.state, JobState | None)
    for change in app.sync.watch(queue="mail"):
        assert_type(change.id, UUID)


async def calling_a_task_runs_the_function() -> None:
    assert_type(await send(42), dict[str, int])


async def rows_of_your_own_tables_have_their_types() -> None:
    awaited, engine = create_async_engine(""), create_engine("")
    ready = Report.status == "ready"
    assert_type(await claim_rows(awaited, Report, ready, {"status": "taken"}, 1), list[Report])
    assert_type(tables.claim_rows(engine, task, task.c.state == "new", {"state": "taken"}, 1), list[Row[Any]])
    claims = Claims(Report, awaited, ready=ready, lease=timedelta(minutes=1))
    assert_type(await claims.claim(10), list[Report])
    async for row in claims.stream():
        assert_type(row, Report)
        await claims.done(row)  # type: ignore[call-arg]
