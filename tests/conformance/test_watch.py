"""Watch: changes of a job, a pipeline, a queue, as they happen; first of all, how it stands."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dibs import BadRequest, Change, NewJob, NotFound
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make

PATIENCE = 60


class Watch:
    """What `watch` tells, one change at a time, on either face."""

    def __init__(self, app: Face, **topic: Any) -> None:
        self._app = app
        self._changes = app.watch(**topic)

    def next(self) -> Change:
        if self._app.colour == "sync":
            return next(self._changes)
        return self._app.wait_for(asyncio.wait_for(anext(self._changes), PATIENCE))

    def until(self, wanted: Callable[[Change], bool]) -> list[Change]:
        """The changes up to the first that is wanted."""
        heard = [self.next()]
        while not wanted(heard[-1]):
            heard.append(self.next())
        return heard

    def rest(self) -> list[Change]:
        heard = []
        try:
            while True:
                heard.append(self.next())
        except (StopIteration, StopAsyncIteration):
            return heard

    def close(self) -> None:
        if self._app.colour == "sync":
            self._changes.close()
        else:
            self._app.wait_for(self._changes.aclose())


@contextmanager
def watching(app: Face, **topic: Any) -> Iterator[Watch]:
    with closing(Watch(app, **topic)) as watch:
        yield watch


def test_a_watched_job_is_told_first_as_it_stands_and_then_at_every_step(app: Face, make: Make) -> None:
    job = make.ready(args={"n": 1})

    with watching(app, job_id=job.id) as watch:
        first = watch.next()
        claim = app.claim_job(job.id)
        taken = watch.next()
        claim.progress(0.4, "parsing")
        further = watch.next()
        claim.succeed({"rows": 7})
        last = watch.rest()

    assert (first.name, first.id, first.job.state, first.job.args) == ("now", job.id, "ready", {"n": 1})
    assert (taken.name, taken.state, taken.job.token) == ("changed", "running", claim.token)
    assert (further.progress, further.message) == (0.4, "parsing")
    assert [(change.state, change.job.result) for change in last] == [("succeeded", {"rows": 7})]
    assert last[0].job == app.get(job.id)


@pytest.mark.parametrize("how", ["succeed", "fail"])
def test_the_last_event_says_what_the_store_says(app: Face, make: Make, how: str) -> None:
    job = make.ready(slot=("report", 7), pipeline_id=new_id())
    queue_watch, pipeline_watch = Watch(app), Watch(app, pipeline_id=job.pipeline_id)
    with watching(app, job_id=job.id) as watch, closing(queue_watch), closing(pipeline_watch):
        assert not [each.next() for each in (queue_watch, pipeline_watch, watch)][-1].job.is_current
        claim = app.claim_job(job.id)
        claim.progress(0.9, "row 9 of 10")
        claim.succeed() if how == "succeed" else claim.fail("broken", retry=False)
        told = [each.until(_is_over)[-1].job for each in (watch, pipeline_watch, queue_watch)]
        rest = watch.rest()

    assert told == [app.get(job.id)] * 3
    assert told[0].is_current
    assert told[0].progress == (1.0 if how == "succeed" else 0.9)
    assert rest == []


def _is_over(change: Change) -> bool:
    return change.job is not None and change.job.is_finished


def test_a_job_that_succeeded_is_all_done(app: Face, make: Make) -> None:
    claim = make.running()
    claim.progress(0.4, "parsing")
    claim.succeed(7)

    assert app.wait(claim.job.id, timeout=PATIENCE).progress == 1.0
    assert [job.progress for job in app.find(state="succeeded")] == [1.0]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_is_told_once_and_that_is_all(app: Face, make: Make, state: str) -> None:
    job = make.finished(state)

    with watching(app, job_id=str(job.id)) as watch:
        assert watch.rest() == [Change(name="now", id=job.id, job=job)]


def test_what_others_did_is_told_too(app: Face, make: Make, open_app: Callable[..., Face]) -> None:
    if not app.traits.shared:
        pytest.skip("this store is one process's own")
    job, other = make.ready(), open_app()

    with watching(app, job_id=job.id) as watch:
        watch.next()
        other.cancel(job.id, "not needed")
        [last] = watch.rest()

    assert (last.state, last.message) == ("cancelled", "not needed")


def test_a_job_that_comes_back_is_told_as_often_as_it_does(app: Face, make: Make) -> None:
    claim = make.running()

    with watching(app, job_id=claim.job.id) as watch:
        states = [watch.next().state]
        claim.fail("broken")
        states.append(watch.next().state)
        app.retry(claim.job.id)
        states.append(watch.next().state)
        app.cancel(claim.job.id)
        states += [change.state for change in watch.rest()]

    assert states == ["running", "scheduled", "ready", "cancelled"]


def test_a_job_that_is_deleted_is_told_to_be_gone(app: Face, make: Make) -> None:
    job = make.ready()

    with watching(app, job_id=job.id) as watch:
        watch.next()
        app.delete(job.id)

        assert watch.rest() == [Change(name="gone", id=job.id, job=None)]


@pytest.mark.parametrize("topic", ["job_id", "pipeline_id"])
def test_what_was_never_there_can_not_be_watched(app: Face, topic: str) -> None:
    id = new_id()

    with watching(app, **{topic: id}) as watch, pytest.raises(NotFound, match=f"{topic[:-3]} {id}"):
        watch.next()


def test_a_pipeline_is_watched_with_the_children_that_join_it(app: Face, make: Make) -> None:
    first = make.running("extract")
    child = NewJob("load")
    stranger = make.ready()
    first.succeed(then=[NewJob("check")])
    [check] = app.claim(kinds=["check"])

    with watching(app, pipeline_id=first.job.id) as watch:
        begun = [watch.next(), watch.next()]
        check.succeed(then=[child])
        watch.until(lambda change: (change.id, change.state) == (child.id, "ready"))
        app.claim_job(child.id).succeed()
        last = watch.rest()

    assert [(change.name, change.id) for change in begun] == [("now", first.job.id), ("now", check.job.id)]
    assert (last[-1].id, last[-1].state) == (child.id, "succeeded")
    assert stranger.id not in {change.id for change in [*begun, *last]}


def test_a_queue_is_watched_with_the_jobs_that_come_and_go(app: Face, make: Make) -> None:
    waiting, elsewhere = make.ready(queue="mail"), make.ready(queue="other")

    with watching(app, queue="mail") as watch:
        begun = watch.next()
        new = make.ready(queue="mail")
        watch.until(lambda change: change.id == new.id)
        app.claim_job(waiting.id).succeed()
        heard = watch.until(lambda change: (change.id, change.state) == (waiting.id, "succeeded"))
        app.delete(new.id)
        heard += watch.until(lambda change: change.name == "gone")

    assert (begun.name, begun.id) == ("now", waiting.id)
    assert heard[-1].id == new.id
    assert elsewhere.id not in {change.id for change in heard}


def test_jobs_that_come_and_end_between_two_looks_are_told(app: Face, make: Make) -> None:
    with watching(app, queue="mail") as watch:
        make.ready(queue="mail")
        watch.next()
        quick = [make.succeeded(queue="mail") for _ in range(20)]
        missing = {job.id for job in quick}
        while missing:
            change = watch.next()
            if change.state == "succeeded":
                missing.remove(change.id)


def test_all_of_the_store_is_watched_when_nothing_is_named(app: Face, make: Make) -> None:
    jobs = [make.ready(queue=queue) for queue in ("one", "two")]

    with watching(app) as watch:
        assert {watch.next().id, watch.next().id} == {job.id for job in jobs}


def test_two_who_watch_the_same_each_hear_all_of_it(app: Face, make: Make) -> None:
    job = make.ready()

    with watching(app, job_id=job.id) as one:
        one.next()
        claim = app.claim_job(job.id)
        one.next()
        with watching(app, job_id=job.id) as other:
            late = other.next()
            claim.succeed()

            assert (late.name, late.state) == ("now", "running")
            assert [change.state for change in other.rest()] == ["succeeded"]
        assert [change.state for change in one.rest()] == ["succeeded"]


@pytest.mark.parametrize(
    "topic", [{"job_id": "x"}, {"pipeline_id": 3}, {"queue": ""}, {"queue": "a\n"}], ids=repr
)
def test_what_is_no_name_or_id_can_not_be_watched(app: Face, topic: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        app.watch(**topic)


def test_only_one_thing_is_watched_at_a_time(app: Face, make: Make) -> None:
    with pytest.raises(BadRequest, match="one thing"):
        app.watch(job_id=make.ready().id, queue="default")


def test_closing_the_app_ends_the_watch(app: Face, make: Make) -> None:
    with watching(app, job_id=make.ready().id) as watch:
        watch.next()
        app.close()

        assert watch.rest() == []
