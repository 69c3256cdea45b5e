"""One rule: everything on `Dibs` is async, and the same things, blocking, are on `app.sync`."""

import inspect
import typing

import pytest

import dibs
import dibs.testing.sync
from dibs import Claim, Context, Dibs, SyncClaim, SyncContext, SyncDibs, SyncTask, Task, testing
from dibs.app.collections import (
    NewPipeline,
    Pipelines,
    Schedules,
    Slots,
    SyncNewPipeline,
    SyncPipelines,
    SyncSchedules,
    SyncSlots,
    SyncTrains,
    Trains,
)

ONLY_ASYNC = {"sync", "job", "every", "on", "around"}  # registering is the same for both faces
WHOLE = [
    *((Dibs, SyncDibs), (Claim, SyncClaim), (Trains, SyncTrains), (Slots, SyncSlots)),
    *((Pipelines, SyncPipelines), (NewPipeline, SyncNewPipeline), (Schedules, SyncSchedules)),
]
PAIRS = [*WHOLE, (Task, SyncTask), (Context, SyncContext)]


def _public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")} - ONLY_ASYNC


@pytest.mark.parametrize(("face", "twin"), WHOLE, ids=str)
def test_both_faces_have_the_same_names(face: type, twin: type) -> None:
    assert _public(face) == _public(twin)


@pytest.mark.parametrize(("face", "twin"), PAIRS, ids=str)
def test_both_faces_take_the_same_arguments(face: type, twin: type) -> None:
    for name in _public(twin):
        mine, theirs = getattr(face, name), getattr(twin, name)
        if not callable(mine):
            assert type(mine) is type(theirs), name
            continue
        mine, theirs = inspect.signature(mine), inspect.signature(theirs)
        assert [str(p) for p in mine.parameters.values()] == [str(p) for p in theirs.parameters.values()], (
            name
        )
        assert _blocking(str(mine.return_annotation)) == _blocking(str(theirs.return_annotation)), name


@pytest.mark.parametrize(("face", "twin"), PAIRS, ids=str)
def test_one_face_is_awaited_and_the_other_never(face: type, twin: type) -> None:
    for name in _public(twin) - {"traits", "check", "watch", "pipeline", "add"}:
        if callable(getattr(face, name)):
            assert inspect.iscoroutinefunction(getattr(face, name)), name
            assert not inspect.iscoroutinefunction(getattr(twin, name)), name


@pytest.mark.parametrize(("face", "twin"), WHOLE, ids=str)
def test_both_faces_say_what_they_do(face: type, twin: type) -> None:
    for name in _public(twin):
        if callable(getattr(face, name)):
            assert getattr(face, name).__doc__, name
            assert getattr(face, name).__doc__ == getattr(twin, name).__doc__, name


def test_whatever_is_awaited_on_a_context_has_a_blocking_twin() -> None:
    awaited = {name for name in _public(Context) if inspect.iscoroutinefunction(getattr(Context, name))}

    assert awaited == _public(SyncContext)


def test_both_faces_can_be_opened_by_with() -> None:
    assert {"__aenter__", "__aexit__"} <= set(dir(Dibs)) & set(dir(Claim))
    assert {"__enter__", "__exit__"} <= set(dir(SyncDibs)) & set(dir(SyncClaim))


@pytest.mark.parametrize(
    "name",
    """Dibs Context Retry Snooze Cancel Fail NewJob Job JobState JobError Claim DibsError LeaseLost BadRequest
    NotFound Refused NotStale UnknownEngine StoreUnavailable SchemaOutdated UnsupportedConnection
    ClaimInTransaction NotPermitted StoreRefused""".split(),  # noqa: SIM905
)
def test_every_documented_name_imports_from_dibs(name: str) -> None:
    assert hasattr(dibs, name)
    assert name in dibs.__all__


def test_all_names_what_there_is() -> None:
    assert sorted(dibs.__all__) == sorted(set(dibs.__all__))
    assert all(hasattr(dibs, name) for name in dibs.__all__)


def test_trains_and_slots_are_on_both_faces() -> None:
    app = Dibs("memory://")

    assert isinstance(app.trains, Trains)
    assert isinstance(app.sync.trains, SyncTrains)
    assert isinstance(app.slots, Slots)
    assert isinstance(app.sync.slots, SyncSlots)


VERBS = """open close enqueue claim claim_job run_job get find counts wait cancel retry delete
    cancel_many retry_many recover doctor why pause resume limit queues workers sweep prune migrate
    schema_version""".split()  # noqa: SIM905


@pytest.mark.parametrize("verb", VERBS)
def test_every_documented_verb_is_on_both_faces(verb: str) -> None:
    assert inspect.iscoroutinefunction(getattr(Dibs, verb))
    assert callable(getattr(SyncDibs, verb))


def test_a_job_has_exactly_the_documented_fields() -> None:
    fields = """id kind queue args priority state attempts max_attempts run_at enqueued_at claimed_at
        finished_at worker token lease_until train slot is_current unique pipeline_id parent_id progress
        message result errors tags meta is_new""".split()  # noqa: SIM905

    assert list(dibs.Job.__struct_fields__) == fields
    assert list(dibs.JobError.__struct_fields__) == [
        *("attempt", "token", "at", "worker", "type", "message", "traceback")
    ]


def test_the_errors_form_one_tree() -> None:
    errors = [value for name in dibs.__all__ if isinstance(value := getattr(dibs, name), type)]
    outcomes = {dibs.Snooze, dibs.Cancel, dibs.Fail}
    errors = [each for each in errors if issubclass(each, Exception) and each not in outcomes]

    assert all(issubclass(each, dibs.DibsError) for each in errors)
    assert issubclass(dibs.NotStale, dibs.Refused)


def test_the_package_is_typed() -> None:
    assert typing.get_type_hints(Dibs.enqueue)
    assert (__import__("pathlib").Path(dibs.__file__).parent / "py.typed").exists()


def test_watching_is_iterated_over_on_either_face() -> None:
    assert inspect.isasyncgenfunction(Dibs._watch)
    assert inspect.isgeneratorfunction(SyncDibs._watch)


def _blocking(annotation: str) -> str:
    twin = annotation.replace("SyncClaim", "Claim").replace("SyncNewPipeline", "NewPipeline")
    return twin.replace("dibs.app.claims.", "").replace("AsyncIter", "Iter")


def test_the_helpers_for_tests_have_two_faces() -> None:
    assert testing.__all__ == testing.sync.__all__
    faces = (testing, testing.sync)
    different = [name for name in testing.__all__ if len({getattr(face, name) for face in faces}) > 1]
    awaited, blocking = testing.run_pending, testing.sync.run_pending

    assert different == ["run_pending"]
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(blocking)
    options = [list(inspect.signature(each).parameters.values())[1:] for each in (awaited, blocking)]
    assert options[0] == options[1]
