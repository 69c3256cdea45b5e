"""Delete and prune: jobs that are gone for good."""

from datetime import UTC, datetime, timedelta

import pytest

from dibs import BadRequest, NewJob, Refused
from dibs.jobs.ids import first_id_at, new_id
from tests.support.faces import Face, Make, nothing_written


@pytest.mark.parametrize("state", ["ready", "scheduled", "succeeded", "failed", "cancelled"])
def test_a_job_that_is_not_running_is_gone_for_good(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    assert app.delete(job.id) is True

    assert app.get(job.id) is None
    assert sum(app.counts().values()) == 0


def test_a_running_job_is_refused(app: Face, make: Make) -> None:
    claim = make.running(worker="pod-a")

    with nothing_written(app), pytest.raises(Refused, match="pod-a"):
        app.delete(claim.job.id)


def test_deleting_what_is_not_there_says_so(app: Face) -> None:
    assert app.delete(new_id()) is False


def test_a_deleted_job_frees_its_unique_key(app: Face, make: Make) -> None:
    app.delete(make.ready(unique="key").id)

    assert make.ready(unique="key").is_new


# -- Prune --------------------------------------------------------------------------------------


def _old_job(app: Face, days: float, state: str = "succeeded") -> NewJob:
    """A job made and finished so long ago; ids carry the time they were made at."""
    made = datetime.now(UTC) - timedelta(days=days, seconds=5)
    id = first_id_at(int(made.timestamp() * 1000))
    new = NewJob("work", id=type(id)(int=id.int | new_id().int & 0xFFFF_FFFF))
    app.enqueue(new)
    claim = app.claim_job(new.id)
    claim.succeed() if state == "succeeded" else claim.fail("broken", retry=False)
    return new


def test_jobs_that_finished_long_ago_are_removed(app: Face) -> None:
    old = [_old_job(app, 8), _old_job(app, 8, "failed")]
    app.age(8 * 86400)
    kept = _old_job(app, 0)

    pruned = app.prune(timedelta(days=7))

    assert pruned == 2
    assert [app.get(job.id) for job in old] == [None, None]
    assert app.get(kept.id) is not None


def test_only_those_in_the_states_named_are_pruned(app: Face, make: Make) -> None:
    made = {state: make.finished(state) for state in ("succeeded", "failed", "cancelled")}
    app.age(60)

    pruned = app.prune(0, state="succeeded") + app.prune(0, state=["cancelled"])

    assert pruned == 2
    assert {state for state, job in made.items() if app.get(job.id) is not None} == {"failed"}


@pytest.mark.parametrize("state", ["running", "ready", "nonsense"])
def test_what_is_not_finished_cannot_be_named_for_pruning(app: Face, state: str) -> None:
    with pytest.raises(BadRequest):
        app.prune(0, state=state)


def test_a_job_that_was_made_long_ago_but_finished_lately_is_kept(app: Face) -> None:
    job = _old_job(app, 30)

    assert app.prune(timedelta(days=7)) == 0
    assert app.get(job.id) is not None


def test_live_jobs_are_never_pruned(app: Face, make: Make) -> None:
    make.ready()
    make.scheduled(delay=10**8)
    make.running(lease=10**8)
    app.age(10**7)

    with nothing_written(app):
        assert app.prune(0) == 0


def test_a_span_may_be_seconds(app: Face, make: Make) -> None:
    _old_job(app, 1)
    app.age(86400)

    assert app.prune(86_000) == 1


def test_a_job_made_by_a_clock_ahead_of_the_store_is_pruned(app: Face) -> None:
    _old_job(app, -30 / 86400)
    app.age(5)

    assert app.prune(0) == 1


def test_more_than_a_batch_is_pruned(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(1001)))
    app.cancel_many()
    app.age(5)

    assert app.prune(0) == 1001
    assert sum(app.counts().values()) == 0


@pytest.mark.parametrize("span", [-1, "week", float("nan"), None], ids=repr)
def test_a_span_that_is_none_is_refused(app: Face, make: Make, span: object) -> None:
    make.succeeded()

    with nothing_written(app), pytest.raises(BadRequest, match="older_than"):
        app.prune(span)


# -- Many ---------------------------------------------------------------------------------------


def test_all_that_match_are_deleted_but_running_ones(app: Face, make: Make) -> None:
    held = make.running(queue="mail")
    other = make.ready(queue="other")
    for state in ("ready", "scheduled", "succeeded", "failed", "cancelled"):
        getattr(make, state)(queue="mail")

    assert app.delete_many(queue="mail") == 5
    assert {job.id for job in app.find()} == {held.job.id, other.id}
    assert app.delete_many(queue="mail", state="running") == 0


def test_a_train_of_which_all_are_deleted_is_gone(app: Face, make: Make) -> None:
    for _ in range(3):
        make.ready(train="north")

    assert app.delete_many(train="north") == 3
    assert app.trains.get("north") is None


def test_more_than_a_batch_is_deleted(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(1201)))

    assert app.delete_many(state="ready") == 1201
    assert app.delete_many() == 0


def test_an_unknown_filter_deletes_nothing(app: Face, make: Make) -> None:
    make.ready()

    with pytest.raises(BadRequest, match="colour"):
        app.delete_many(colour="red")
    assert len(app.find()) == 1
