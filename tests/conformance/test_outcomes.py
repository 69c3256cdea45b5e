"""What a handler says instead of a result, raised or returned, and which exceptions are tried again."""

import asyncio
import contextlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from dibs import BadRequest, Cancel, Fail, Job, NewJob, Snooze
from tests.support.faces import Face

# Decided before a store is asked: two of them stand for all.
two_stores = pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)

OUTCOMES = [Snooze(30), Cancel("not needed"), Fail("card expired")]
ENDS: dict[type[Exception], tuple[str, int, list[str], str | None]] = {
    Snooze: ("scheduled", 0, [], None),
    Cancel: ("cancelled", 1, [], "not needed"),
    Fail: ("failed", 1, ["card expired"], None),
}


def run(app: Face, kind: str, args: dict[str, Any] | None = None) -> Job:
    done: Job = app.run_job(app.enqueue(NewJob(kind, args))[0].id)
    return done


def came_to(job: Job) -> tuple[str, int, list[str], str | None]:
    return job.state, job.attempts, [error.message for error in job.errors], job.message


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def raising_async(error: BaseException) -> Callable[[], Any]:
    async def handler() -> None:
        await asyncio.sleep(0)
        raise error

    return handler


def raising_inside(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: None)
            try:
                raise error
            finally:
                stack.pop_all().close()

    return handler


def raising_in_a_group(*errors: BaseException) -> Callable[[], Any]:
    async def raise_it(error: BaseException) -> None:
        raise error

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(raise_it(error))

    return handler


@two_stores
@pytest.mark.parametrize("way", [raising, raising_async, raising_inside, raising_in_a_group])
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_may_be_raised(app: Face, way: Callable[..., Any], outcome: Exception) -> None:
    app.job(name="says", max_attempts=9)(way(outcome))

    done = run(app, "says")

    assert came_to(done) == ENDS[type(outcome)]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_may_be_returned(app: Face, outcome: Exception) -> None:
    async def says() -> Exception:
        return outcome

    app.job(max_attempts=9)(says)

    assert came_to(run(app, "says")) == ENDS[type(outcome)]


@two_stores
def test_a_raised_fail_says_where_and_a_returned_one_needs_not(app: Face) -> None:
    app.job(name="raises")(raising(Fail("no")))
    app.job(name="returns")(lambda: Fail("no"))

    [raised], [returned] = run(app, "raises").errors, run(app, "returns").errors

    assert (raised.type, returned.type) == ("Fail", "Fail")
    assert "raise error" in (raised.traceback or "")
    assert returned.traceback is None


@two_stores
def test_a_group_with_an_error_beside_an_outcome_is_an_error(app: Face) -> None:
    app.job(name="both")(raising_in_a_group(Snooze(30), ValueError("broken")))
    app.job(name="final")(raising_in_a_group(Fail("no"), ValueError("broken")))

    both, final = run(app, "both"), run(app, "final")

    assert (both.state, both.attempts, both.errors[0].type) == ("scheduled", 1, "ExceptionGroup")
    assert (final.state, final.errors[0].type) == ("failed", "ExceptionGroup")


@two_stores
@pytest.mark.parametrize("outcome", [Snooze("x"), Snooze(-1), Cancel(5), Fail(5)], ids=repr)  # type: ignore[arg-type]
def test_a_raised_outcome_that_makes_no_sense_is_a_failed_attempt(app: Face, outcome: Exception) -> None:
    app.job(name="odd")(raising(outcome))

    done = run(app, "odd")

    assert (done.state, done.attempts, len(done.errors)) == ("scheduled", 1, 1)


@pytest.mark.parametrize("said", [Cancel, Fail])
@pytest.mark.parametrize("reason", ["row \x00 \ud800", "x" * 2_000_000], ids=["hostile", "long"])
def test_an_outcome_holds_whatever_its_reason_is_like(app: Face, said: Any, reason: str) -> None:
    app.job(name="raises")(raising(said(reason)))
    app.job(name="returns")(lambda: said(reason))

    for done in (run(app, "raises"), run(app, "returns")):
        assert done.state == ENDS[said][0]
        assert (done.message or done.errors[0].message)[:4] in ("row ", "xxxx")


def test_an_outcome_ends_a_claim_by_hand(app: Face) -> None:
    app.enqueue(NewJob("mail"))
    claim = app.claim()[0]

    with pytest.raises(Cancel), claim:
        raise Cancel("not needed")

    assert came_to(app.get(claim.job.id)) == ENDS[Cancel]


def test_outcomes_are_values() -> None:
    assert [repr(one) for one in OUTCOMES] == ["Snooze(30)", "Cancel('not needed')", "Fail('card expired')"]
    assert Fail("a") == Fail(reason="a") != Fail("b")
    assert Snooze(30) == Snooze(seconds=30) != Fail("30")
    assert Cancel() == Cancel(None)
    assert {Fail("a"), Fail("a")} == {Fail("a")}
    assert pickle.loads(pickle.dumps(OUTCOMES)) == OUTCOMES


# -- which exceptions are tried again ---------------------------------------------------------------


@two_stores
@pytest.mark.parametrize("colour", [raising, raising_async, raising_in_a_group])
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConnectionResetError(), "scheduled"),  # a subclass counts
        (KeyError("name"), "failed"),
        (BrokenPipeError(), "failed"),  # in both: giving up comes first
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_only_what_retry_on_names_is_tried_again(
    app: Face, colour: Callable[..., Any], error: Exception, state: str
) -> None:
    app.job(name="w", retry_on=(ConnectionError,), give_up_on=(BrokenPipeError,))(colour(error))

    done = run(app, "w")

    assert (done.state, done.attempts, len(done.errors)) == (state, 1, 1)


@two_stores
def test_give_up_on_fails_at_once_and_all_else_is_tried_again(app: Face) -> None:
    app.job(name="gives_up", give_up_on=(ValueError,))(raising(UnicodeError("bad")))
    app.job(name="goes_on", give_up_on=(ValueError,))(raising(KeyError("name")))

    assert run(app, "gives_up").state == "failed"
    assert run(app, "goes_on").state == "scheduled"


@two_stores
def test_one_class_and_an_empty_list_are_taken_as_meant(app: Face) -> None:
    app.job(name="one", retry_on=OSError)(raising(ConnectionError()))
    app.job(name="none", retry_on=[])(raising(ConnectionError()))

    assert run(app, "one").state == "scheduled"
    assert run(app, "none").state == "failed"


@two_stores
@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize(
    "given", ["ConnectionError", [ValueError("x")], (int,), 7, [ValueError, "x"]], ids=repr
)
def test_retry_rules_name_exception_classes(app: Face, option: str, given: Any) -> None:
    with pytest.raises(BadRequest, match=rf"{option}=.*exception classes"):
        app.job(**{option: given})(raising(ValueError()))


# -- arguments that don't fit -----------------------------------------------------------------------


@two_stores
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "argument 'n' is missing"),
        ({"n": "three"}, "argument 'n'.*int.*str"),
        ({"n": 1, "m": 2}, "no argument 'm'"),
        ({"n": 1, "items": ["x"]}, r"argument 'items'\[0\].*int.*str"),
    ],
    ids=["missing", "wrong type", "unknown", "wrong part"],
)
def test_arguments_that_do_not_fit_fail_at_once(app: Face, args: dict[str, Any], words: str) -> None:
    [job] = app.enqueue(NewJob("work", args, max_attempts=9))  # by a process that does not know the kind

    @app.job
    async def work(n: int, items: list[int] | None = None) -> None: ...

    done = app.run_job(job.id)

    assert (done.state, done.attempts) == ("failed", 1)
    [error] = done.errors
    assert re.search(words, error.message)
