"""Run pending jobs inline, as a worker would, and let the test have the exceptions."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs import BadRequest, Context, Dibs, Fail, Job, NewJob, Retry, Snooze
from dibs.testing import AttemptFailed, EndlessJobs, VirtualClock, sync
from tests.support.faces import Face, Make

RunPending = Callable[..., list[Job]]


def test_ready_jobs_run_in_the_order_a_worker_takes_them(app: Face, run_pending: RunPending) -> None:
    @app.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.job
    def shout(name: str) -> str:
        return name.upper()

    app.enqueue_task(greet, "first")
    app.enqueue_task(shout.using(priority=5), "urgent")
    app.enqueue_task(greet, "last")

    ran = run_pending()

    assert [(job.state, job.result) for job in ran] == [
        ("succeeded", "URGENT"),
        ("succeeded", "hello first"),
        ("succeeded", "hello last"),
    ]


def test_what_jobs_enqueue_runs_too(app: Face, run_pending: RunPending) -> None:
    @app.job
    async def split(ctx: Context, parts: int) -> None:
        ctx.chain(*[part.new(n) for n in range(parts)])

    @app.job
    def part(n: int) -> int:
        return n

    app.enqueue_task(split, 3)

    assert [job.kind for job in run_pending()] == ["split", "part", "part", "part"]


def test_nothing_ready_runs_nothing(app: Face, run_pending: RunPending) -> None:
    app.job(name="never")(lambda: None)

    assert run_pending() == []


def test_jobs_of_unknown_kinds_and_paused_queues_are_left(
    app: Face, make: Make, run_pending: RunPending
) -> None:
    app.job(name="known")(lambda: "done")
    unknown, paused = make.ready("unknown"), make.ready("known", queue="closed")
    app.pause("closed")

    assert run_pending() == []
    assert {app.get(unknown.id).state, app.get(paused.id).state} == {"ready"}


def test_only_the_queues_that_are_named_are_run(app: Face, make: Make, run_pending: RunPending) -> None:
    app.job(name="known")(lambda: "done")
    mail, other = make.ready("known", queue="mail"), make.ready("known", queue="other")

    assert [job.id for job in run_pending(queues=["mail"])] == [mail.id]
    assert app.get(other.id).state == "ready"


# -- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_an_exception_of_a_handler_is_the_tests(app: Face, run_pending: RunPending, colour: str) -> None:
    def plain(order_id: int) -> None:
        raise KeyError("no such order")

    async def awaited(order_id: int) -> None:
        plain(order_id)

    task = app.job(name="send")(awaited if colour == "async" else plain)
    job = app.enqueue_task(task, 7)

    with pytest.raises(KeyError, match="no such order") as raised:
        run_pending()

    [note] = raised.value.__notes__
    assert "in send {'order_id': 7}" in note
    assert "attempt 1 of 3" in note
    assert raised.traceback[-1].name == "plain"
    failed = app.get(job.id)
    assert (failed.state, failed.attempts, failed.errors[0].type) == ("scheduled", 1, "KeyError")


def test_errors_can_be_settled_as_in_production(
    app: Face, run_pending: RunPending, clock: VirtualClock
) -> None:
    tries = []

    @app.job(retry=Retry.fixed(60), max_attempts=2)
    async def fragile() -> None:
        tries.append(1)
        raise ValueError("broken")

    app.job(name="solid")(lambda: "fine")
    app.enqueue_task(fragile)
    app.enqueue(NewJob("solid"))

    assert [job.state for job in run_pending(raise_errors=False)] == ["scheduled", "succeeded"]
    assert run_pending(raise_errors=False) == []  # the back-off has not passed
    clock.advance(minutes=2)
    [job] = run_pending(raise_errors=False)
    assert (job.state, len(job.errors), len(tries)) == ("failed", 2, 2)


def test_what_a_handler_returns_is_no_error(app: Face, make: Make, run_pending: RunPending) -> None:
    app.job(name="fails")(lambda: Fail("this can't work"))
    app.job(name="snoozes")(lambda: Snooze(60))
    make.ready("fails")
    make.ready("snoozes")

    assert [job.state for job in run_pending()] == ["failed", "scheduled"]


def test_an_outcome_that_a_handler_raises_is_no_error_either(app: Face, run_pending: RunPending) -> None:
    @app.job
    def says(outcome: str) -> None:
        raise {"fail": Fail("this can't work"), "snooze": Snooze(60)}[outcome]

    app.enqueue_task(says, "fail")
    app.enqueue_task(says, "snooze")

    assert [job.state for job in run_pending()] == ["failed", "scheduled"]


def test_a_timeout_is_raised_though_the_handler_never_raised_it(app: Face, run_pending: RunPending) -> None:
    @app.job(timeout=0.05)
    async def endless() -> None:
        await asyncio.sleep(60)

    app.enqueue_task(endless)

    with pytest.raises(AttemptFailed, match=r"(?s)TimeoutError.*in endless"):
        run_pending()


def test_a_result_that_cant_be_stored_is_raised(app: Face, make: Make, run_pending: RunPending) -> None:
    app.job(name="odd")(lambda: {"an": object()})
    make.ready("odd")

    with pytest.raises(AttemptFailed, match="result"):
        run_pending()


# -- Limits -------------------------------------------------------------------------------------


def test_jobs_that_never_end_are_found_out(app: Face, run_pending: RunPending) -> None:
    @app.job
    async def again(ctx: Context, n: int = 0) -> None:
        ctx.chain(again.new(n + 1))

    app.enqueue_task(again)

    with pytest.raises(EndlessJobs, match=r"20 jobs ran \(again 20×\) and again \{'n': 20\} is ready"):
        run_pending(limit=20)

    assert app.counts() | {"ready": 1, "running": 0, "succeeded": 20} == app.counts()
    [left] = app.find(state="ready")
    assert left.attempts == 0


def test_as_many_jobs_as_the_limit_are_fine(app: Face, make: Make, run_pending: RunPending) -> None:
    app.job(name="known")(lambda: "done")
    for _ in range(3):
        make.ready("known")

    assert len(run_pending(limit=3)) == 3


def test_an_app_without_jobs_is_refused(app: Face, run_pending: RunPending) -> None:
    with pytest.raises(BadRequest, match="no jobs are registered"):
        run_pending()


def test_the_blocking_one_says_what_to_use_in_an_event_loop() -> None:
    async def test() -> None:
        sync.run_pending(Dibs("memory://"))

    with pytest.raises(BadRequest, match="await it"):
        asyncio.run(test())


def test_a_job_for_a_process_of_its_own_runs_here(app: Face, run_pending: RunPending) -> None:
    here: list[Any] = []

    @app.job(isolation="process")
    def heavy() -> None:
        here.append("ran")

    app.enqueue_task(heavy)

    assert [job.state for job in run_pending()] == ["succeeded"]
    assert here == ["ran"]
