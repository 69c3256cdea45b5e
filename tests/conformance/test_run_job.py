"""run_job: claim, handler, heartbeat and settle, here and now."""

import asyncio
import dataclasses
import threading
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Optional
from uuid import UUID

import pydantic
import pytest

from dibs import (
    BadRequest,
    Cancel,
    Context,
    Fail,
    LeaseLost,
    NewJob,
    Refused,
    Retry,
    Snooze,
    SyncClaim,
)
from dibs.app.verbs import Claimed
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make, nothing_written
from tests.support.internals import age, store_of


@dataclasses.dataclass
class Address:
    street: str
    since: date


class Profile(pydantic.BaseModel):
    name: str
    joined: datetime


def test_a_plain_handler_runs_and_its_value_is_the_result(app: Face) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    job = app.run_job(app.enqueue_task(double, 21).id)

    assert (job.state, job.result, job.attempts) == ("succeeded", 42, 1)


def test_an_async_handler_runs_and_its_value_is_the_result(app: Face) -> None:
    @app.job
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    job = app.run_job(str(app.enqueue_task(double, n=21).id))

    assert (job.state, job.result) == ("succeeded", 42)


def test_a_handler_gets_the_types_it_names(app: Face) -> None:
    seen: dict[str, Any] = {}
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    given = {
        "address": Address("Main St", date(2020, 2, 29)),
        "profile": Profile(name="ann", joined=moment),
        "moment": moment,
        "id": UUID(int=7 << 76),
        "price": Decimal("1.10"),
        "pause": timedelta(seconds=90),
        "names": ("a", "b"),
        "by_day": {date(2026, 1, 1): 3},
        "profiles": [Profile(name="bob", joined=moment)],
    }

    @app.job
    def keep(
        address: Address,
        profile: Profile,
        moment: datetime,
        id: UUID,
        price: Decimal,
        pause: timedelta,
        names: tuple[str, ...],
        by_day: dict[date, int],
        profiles: list[Profile],
    ) -> None:
        seen.update(locals())

    done = app.run_job(app.enqueue_task(keep, **given).id)

    assert done.state == "succeeded", done.errors
    assert {name: seen[name] for name in given} == given


def test_a_handler_without_annotations_gets_json(app: Face) -> None:
    seen = []

    @app.job
    def keep(a, b=2, **more):  # type: ignore[no-untyped-def]
        seen.append((a, b, more))

    app.run_job(app.enqueue_task(keep, {"x": [1]}, c=3).id)

    assert seen == [({"x": [1]}, 2, {"c": 3})]


def test_a_union_of_types_is_taken_too(app: Face) -> None:
    seen = []

    @app.job
    def keep(when: datetime | str, who: Profile | None = None, n: int | float | None = None) -> None:
        seen.append((when, who, n))

    done = app.run_job(app.enqueue_task(keep, "soon", who=Profile(name="a", joined=datetime.now(UTC))).id)

    assert done.state == "succeeded", done.errors
    assert seen[0][0] == "soon"
    assert isinstance(seen[0][1], Profile)


def test_a_default_stays_the_handlers_own(app: Face) -> None:
    seen = []

    @app.job
    def keep(n: int = 7, names: list[str] | None = None) -> None:
        seen.append((n, names))

    app.run_job(app.enqueue_task(keep).id)

    assert seen == [(7, None)]


def test_a_context_is_handed_in_wherever_it_is_asked_for(app: Face) -> None:
    seen = []

    @app.job
    def first(ctx: Context, n: int) -> None:
        seen.append((ctx.job.kind, ctx.token, n, ctx.lost))
        ctx.check()

    @app.job
    async def last(n: int, context: Context) -> None:
        seen.append((context.job.kind, context.token, n, context.lost))

    one, two = app.run_job(app.enqueue_task(first, 1).id), app.run_job(app.enqueue_task(last, 2).id)

    assert seen == [("first", one.token, 1, False), ("last", two.token, 2, False)]


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_a_context_may_be_left_out_by_those_who_call_the_function(app: Face, colour: str) -> None:
    async def work(n: int, ctx: Context | None = None) -> Any:
        return None if ctx is None else ctx.job.args

    def plain(n: int, ctx: Optional[Context] = None) -> Any:  # noqa: UP045
        return None if ctx is None else ctx.job.args

    task = app.job(work if colour == "async" else plain)
    done = app.run_job(app.enqueue_task(task, 7).id)

    assert done.result == {"n": 7}
    assert plain(7) is None


class Adder:
    """Its attributes are its own, whatever a task calls its own."""

    def __init__(self, more: int) -> None:
        self.kind = self.options = self.enqueue = self.more = more

    def __call__(self, ctx: Context, n: int) -> int:
        return n + self.more


class AsyncAdder(Adder):
    async def __call__(self, ctx: Context, n: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return n + self.more


def _add(ctx: Context, more: int, n: int) -> int:
    return n + more


async def _add_async(ctx: Context, more: int, n: int) -> int:
    return n + more


@pytest.mark.parametrize(
    "handler",
    [Adder(5), AsyncAdder(5), partial(_add, more=5), partial(_add_async, more=5), partial(Adder(5))],
    ids=["object", "async object", "partial", "async partial", "partial object"],
)
def test_a_handler_may_be_anything_that_can_be_called(app: Face, handler: Any) -> None:
    add = app.job(name="add")(handler)

    done = app.run_job(app.enqueue_task(add, n=2).id)

    assert (done.kind, done.state, done.result) == ("add", "succeeded", 7)


def test_an_async_handler_notes_its_progress(app: Face) -> None:
    @app.job
    async def work(ctx: Context) -> None:
        await ctx.progress(0.4, "parsing")

    done = app.run_job(app.enqueue_task(work).id)

    assert done.state == "succeeded", done.errors
    assert (done.progress, done.message) == (1.0, "parsing")


def test_chained_jobs_appear_with_success(app: Face) -> None:
    child = NewJob("child")

    @app.job
    def parent(ctx: Context) -> None:
        ctx.chain(child)

    done = app.run_job(app.enqueue_task(parent).id)

    job = app.get(child.id)
    assert (job.parent_id, job.pipeline_id, done.pipeline_id) == (done.id, done.id, done.id)


def test_chained_jobs_of_a_failed_attempt_never_appear(app: Face) -> None:
    @app.job
    def parent(ctx: Context) -> None:
        ctx.chain(NewJob("child"))
        raise ValueError("broken")

    app.run_job(app.enqueue_task(parent).id)

    assert app.find(kind="child") == []


def test_a_chained_job_that_can_not_be_stored_fails_the_attempt(app: Face) -> None:
    @app.job
    def parent(ctx: Context) -> None:
        ctx.chain(NewJob("child", args={"x": float("nan")}))

    done = app.run_job(app.enqueue_task(parent).id)

    assert (done.state, len(done.errors)) == ("scheduled", 1)


# -- What a handler may end with ----------------------------------------------------------------


def test_an_exception_is_a_failed_attempt_with_its_traceback(app: Face) -> None:
    @app.job(retry=Retry.fixed(60))
    def broken() -> None:
        raise ValueError("no such order")

    done = app.run_job(app.enqueue_task(broken).id)

    [error] = done.errors
    assert (done.state, done.attempts) == ("scheduled", 1)
    assert (error.type, error.message, error.attempt) == ("ValueError", "no such order", 1)
    assert "broken" in error.traceback


def test_the_last_attempt_fails_the_job(app: Face) -> None:
    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no such order")

    assert app.run_job(app.enqueue_task(broken).id).state == "failed"


def test_snooze_costs_no_attempt(app: Face) -> None:
    app.job(name="later")(lambda: Snooze(30))

    done = app.run_job(app.enqueue(NewJob("later"))[0].id)

    assert (done.state, done.attempts, done.errors) == ("scheduled", 0, [])


def test_cancel_ends_the_job_with_its_reason(app: Face) -> None:
    app.job(name="never")(lambda: Cancel("not needed"))

    done = app.run_job(app.enqueue(NewJob("never"))[0].id)

    assert (done.state, done.message) == ("cancelled", "not needed")


def test_fail_ends_the_job_without_another_try(app: Face) -> None:
    app.job(name="broken", max_attempts=9)(lambda: Fail("no such order"))

    done = app.run_job(app.enqueue(NewJob("broken"))[0].id)

    assert (done.state, done.errors[0].message) == ("failed", "no such order")


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), "a\x00b", "x" * 2_000_000, Snooze(-1), Snooze("x"), Cancel(5)],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]!r}",
)  # fmt: skip
def test_a_value_that_can_not_be_stored_is_a_failed_attempt(app: Face, value: object) -> None:
    app.job(name="odd")(lambda: value)

    done = app.run_job(app.enqueue(NewJob("odd"))[0].id)

    assert (done.state, done.attempts, len(done.errors)) == ("scheduled", 1, 1)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")

    __repr__ = __str__


def _cyclic() -> Exception:
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error
    return error


HOSTILE = {
    "unspeakable": Unspeakable,
    "huge": lambda: ValueError("x" * 10_000_000),
    "surrogate": lambda: ValueError("\ud800 \x00"),
    "cyclic": _cyclic,
    "exit": lambda: SystemExit(3),
    "group": lambda: ExceptionGroup("many", [ValueError("x")] * 100),
    "odd name": lambda: type("E", (Exception,), {"__qualname__": "\ud800\x00" + "x" * 10_000})("y"),
    "stop": lambda: StopIteration(5),
}


@pytest.mark.parametrize("make_error", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_exception_is_recorded_like_any_other(app: Face, make_error: Any) -> None:
    @app.job
    async def hostile() -> None:
        raise make_error()

    done = app.run_job(app.enqueue_task(hostile).id)

    [error] = done.errors
    assert (done.state, done.attempts) == ("scheduled", 1)
    assert len(error.message) + len(error.type) + len(error.traceback or "") < 50_000


def test_a_bottomless_recursion_is_recorded_like_any_other(app: Face) -> None:
    @app.job
    def deep() -> None:
        deep()

    done = app.run_job(app.enqueue_task(deep).id)

    assert (done.state, done.errors[0].type) == ("scheduled", "RecursionError")


def test_arguments_that_no_longer_fit_fail_the_job(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", args={"order": "x"}))

    @app.job
    def send(order_id: int) -> None: ...

    done = app.run_job(job.id)

    assert (done.state, done.attempts) == ("failed", 1)
    assert "order" in done.errors[0].message


# -- Who may run what ---------------------------------------------------------------------------


def test_a_kind_without_a_handler_is_refused_and_unchanged(app: Face, make: Make) -> None:
    job = make.ready("unknown")

    with nothing_written(app), pytest.raises(Refused, match="unknown"):
        app.run_job(job.id)


def test_an_unknown_job_is_none(app: Face) -> None:
    assert app.run_job(new_id()) is None


@pytest.mark.parametrize("state", ["scheduled", "succeeded", "cancelled"])
def test_a_job_that_is_not_for_the_taking_is_none(app: Face, make: Make, state: str) -> None:
    app.job(name="work")(lambda: None)
    job = make.finished(state)

    with nothing_written(app):
        assert app.run_job(job.id) is None


def test_a_job_that_somebody_holds_is_none(app: Face, make: Make) -> None:
    app.job(name="work")(lambda: None)
    claim = make.running()

    with nothing_written(app):
        assert app.run_job(claim.job.id) is None


# -- While it runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_the_lease_is_renewed_while_the_handler_runs(app: Face, colour: str) -> None:
    def plain() -> None:
        time.sleep(1.8)

    async def awaited() -> None:
        time.sleep(1)  # blocks the loop: the heartbeat must not live there
        await asyncio.sleep(0.8)

    app.job(name="slow", lease=1.5)(plain if colour == "plain" else awaited)

    done = app.run_job(app.enqueue(NewJob("slow"))[0].id)

    assert (done.state, done.attempts, done.errors) == ("succeeded", 1, [])


def test_an_async_handler_that_takes_too_long_is_a_failed_attempt(app: Face) -> None:
    @app.job(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(30)

    began = time.monotonic()
    done = app.run_job(app.enqueue_task(slow).id)

    assert time.monotonic() - began < 10
    assert (done.state, done.attempts, done.errors[0].type) == ("scheduled", 1, "TimeoutError")


def test_an_async_handler_of_a_cancelled_job_is_stopped(app: Face) -> None:
    started = threading.Event()

    @app.job(lease=1.5)
    async def slow() -> None:
        started.set()
        await asyncio.sleep(30)

    job = app.enqueue_task(slow)
    asker = threading.Thread(target=lambda: started.wait(5) and app.app.sync.cancel(job.id, "not needed"))
    asker.start()
    began = time.monotonic()
    done = app.run_job(job.id)
    asker.join()

    assert time.monotonic() - began < 10
    assert (done.state, done.message) == ("cancelled", "not needed")


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_handler_that_lost_its_job_settles_nothing(app: Face, colour: str) -> None:
    started = threading.Event()

    def plain(ctx: Context) -> None:
        started.set()
        while not ctx.lost:
            time.sleep(0.01)

    async def awaited(ctx: Context) -> None:
        started.set()
        await asyncio.sleep(30)

    app.job(name="slow", lease=0.3)(plain if colour == "plain" else awaited)
    [job] = app.enqueue(NewJob("slow"))
    thief = threading.Thread(target=lambda: started.wait(5) and _take_back(app, job.id))
    thief.start()
    with pytest.raises(LeaseLost, match=str(job.id)):
        app.run_job(job.id)
    thief.join()

    assert app.get(job.id).state == "ready"
    assert [error.message for error in app.get(job.id).errors] == ["worker died"]


@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_an_interrupt_gives_the_job_back(app: Face) -> None:
    @app.job
    def interrupted() -> None:
        raise KeyboardInterrupt

    job = app.enqueue_task(interrupted)
    with pytest.raises(KeyboardInterrupt):
        app.run_job(job.id)

    assert (app.get(job.id).state, app.get(job.id).attempts) == ("ready", 0)


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_cancelled_run_gives_the_job_back(app: Face) -> None:
    started = asyncio.Event()

    @app.job
    async def slow() -> None:
        started.set()
        await asyncio.sleep(30)

    job = app.enqueue_task(slow)

    async def cancelled() -> None:
        task = asyncio.ensure_future(app.app.run_job(job.id))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    app.wait_for(cancelled())

    assert (app.get(job.id).state, app.get(job.id).attempts) == ("ready", 0)


@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("verb", ["run_job", "claim_job", "claim"])
def test_who_is_cancelled_while_a_claim_is_under_way_leaves_nothing_leased(
    app: Face, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def never() -> None:
        raise AssertionError

    job, store = app.enqueue_task(never), store_of(app.app)
    ask, claimed = store.run_async, asyncio.Event()

    async def answer_late(operation: Any, within: Any = None) -> Any:
        answer = await ask(operation, within)
        if not claimed.is_set() and isinstance(answer, Claimed) and answer.held:
            claimed.set()
            await asyncio.sleep(0.05)  # the answer is on its way
        return answer

    async def cancelled() -> None:
        verbs = {"run_job": app.app.run_job, "claim_job": app.app.claim_job}
        asking = app.app.claim() if verb == "claim" else verbs[verb](job.id)
        task = asyncio.ensure_future(asking)
        await claimed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with monkeypatch.context() as patch:
        patch.setattr(store, "run_async", answer_late)
        app.wait_for(cancelled())

    assert (app.get(job.id).state, app.get(job.id).attempts) == ("ready", 0)


@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_an_async_handler_is_not_run_blocking_inside_a_loop(app: Face) -> None:
    @app.job
    async def never() -> None:
        raise AssertionError

    job = app.enqueue_task(never)

    async def inside() -> None:
        with pytest.raises(BadRequest, match=r"await app\.run_job\(…\) here"):
            app.app.sync.run_job(job.id)

    with nothing_written(app):
        asyncio.run(inside())


def test_a_handler_may_settle_its_job_by_itself(app: Face) -> None:
    @app.job
    async def own(ctx: Context) -> str:
        await asyncio.to_thread(SyncClaim(ctx._claim._held).snooze, 30)
        return "ignored"

    done = app.run_job(app.enqueue_task(own).id)

    assert (done.state, done.result) == ("scheduled", None)


def _take_back(app: Face, id: UUID) -> None:
    """Let its lease run out and sweep, faster than it is renewed."""
    while app.app.sync.get(id).state == "running":
        age(app.app, 1)
        app.app.sync.sweep()
