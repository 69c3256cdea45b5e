"""Get, find and counts: what is there, newest first, finished jobs included."""

from uuid import UUID

import pytest

from dibs import BadRequest, JobState, NewJob
from dibs.jobs.ids import new_id
from tests.support.faces import Face, Make


def _ids(jobs: list) -> list[UUID]:
    return [job.id for job in jobs]


@pytest.fixture
def one_of_each(make: Make) -> dict[str, UUID]:
    jobs = {"ready": make.ready().id, "scheduled": make.scheduled().id, "running": make.running().job.id}
    return jobs | {state: make.finished(state).id for state in ("succeeded", "failed", "cancelled")}


def test_a_job_is_found_by_its_id_in_every_state(app: Face, one_of_each: dict[str, UUID]) -> None:
    states = {state: app.get(id).state for state, id in one_of_each.items()}

    assert states == {state: state for state in one_of_each}
    assert all(app.get(str(id)) == app.get(id) for id in one_of_each.values())


def test_an_unknown_job_is_none(app: Face) -> None:
    assert app.get(new_id()) is None


def test_the_newest_are_found_first_finished_ones_included(app: Face, one_of_each: dict[str, UUID]) -> None:
    assert _ids(app.find()) == sorted(one_of_each.values(), reverse=True)


def test_found_jobs_are_whole(app: Face, make: Make) -> None:
    job = make.failed(args={"n": 1}, tags=["a"], meta={"m": 2})

    assert app.find() == [job]


def test_fifty_are_found_unless_more_are_asked_for(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(60)))

    assert len(app.find()) == 50
    assert len(app.find(limit=100)) == 60
    assert len(app.find(limit=7)) == 7


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_of_nothing_finds_nothing(app: Face, make: Make, limit: int) -> None:
    make.ready()

    assert app.find(limit=limit) == []


@pytest.mark.parametrize("limit", ["5", 1001, None, 2.5], ids=repr)
def test_a_limit_that_is_no_number_is_refused(app: Face, limit: object) -> None:
    with pytest.raises(BadRequest, match="limit") as refused:
        app.find(limit=limit)

    assert "-1000000000" not in str(refused.value)


def test_pages_follow_each_other_without_gap_or_overlap(app: Face, make: Make) -> None:
    for n in range(10):
        make.succeeded() if n % 3 else make.ready()
    pages, after = [], None

    while page := app.find(limit=4, after=after):
        pages.append(_ids(page))
        after = page[-1].id

    assert [len(page) for page in pages] == [4, 4, 2]
    assert [id for page in pages for id in page] == _ids(app.find())


def test_new_jobs_do_not_disturb_the_pages(app: Face, make: Make) -> None:
    old = [make.ready().id for _ in range(4)]
    first = app.find(limit=2)
    make.ready()

    second = app.find(limit=2, after=str(first[-1].id))

    assert _ids(first) + _ids(second) == sorted(old, reverse=True)


def test_jobs_are_found_by_state(app: Face, one_of_each: dict[str, UUID]) -> None:
    for state, id in one_of_each.items():
        assert _ids(app.find(state=state)) == _ids(app.find(state=JobState(state))) == [id]
    assert app.find(state="blocked") == []


def test_several_states_may_be_asked_for(app: Face, one_of_each: dict[str, UUID]) -> None:
    found = app.find(state=["failed", JobState.ready])

    assert set(_ids(found)) == {one_of_each["failed"], one_of_each["ready"]}


@pytest.mark.parametrize(
    "states",
    [["failed"], ["cancelled", "failed"], ["failed", "ready"], ["ready"], ["succeeded", "cancelled"]],
    ids="+".join,
)
def test_jobs_of_several_states_come_page_by_page_newest_first(
    app: Face, make: Make, states: list[str]
) -> None:
    ended = ("failed", "succeeded", "cancelled", "cancelled", "failed", "succeeded", "failed", "cancelled")
    jobs = [job for state in ended for job in (make.finished(state, tags=["a"]), make.ready(tags=["a"]))]
    make.finished("failed"), make.finished("cancelled"), make.ready()
    newest_first = [job.id for job in reversed(jobs) if job.state in states]

    pages, after = [], None
    while page := _ids(app.find(state=states, tags=["a"], limit=2, after=after)):
        pages += page
        after = page[-1]

    assert pages == newest_first


@pytest.mark.parametrize("state", ["tired", ["ready", "tired"], 5], ids=repr)
def test_a_state_that_does_not_exist_is_refused(app: Face, state: object) -> None:
    with pytest.raises(BadRequest):
        app.find(state=state)


def test_jobs_are_found_by_queue_and_kind(app: Face, make: Make) -> None:
    job, done = make.ready("send", queue="mail"), make.succeeded("send", queue="mail")
    other_kind, other_queue = make.ready("print", queue="mail"), make.ready("send", queue="slow")

    assert _ids(app.find(queue="mail")) == [other_kind.id, done.id, job.id]
    assert _ids(app.find(kind="send")) == [other_queue.id, done.id, job.id]
    assert _ids(app.find(queue="mail", kind="send")) == [done.id, job.id]


def test_jobs_are_found_by_pipeline(app: Face, make: Make) -> None:
    pipeline = new_id()
    job, done = make.ready(pipeline_id=pipeline), make.succeeded(pipeline_id=pipeline)
    make.ready()

    assert _ids(app.find(pipeline_id=pipeline)) == _ids(app.find(pipeline_id=str(pipeline)))
    assert _ids(app.find(pipeline_id=pipeline)) == [done.id, job.id]


def test_jobs_are_found_by_all_of_the_tags(app: Face, make: Make) -> None:
    both, one = make.ready(tags=["a", "b", "c"]), make.succeeded(tags=["a"])
    make.ready()

    assert _ids(app.find(tags=["a"])) == _ids(app.find(tags="a")) == [one.id, both.id]
    assert _ids(app.find(tags=["b", "a"])) == [both.id]
    assert app.find(tags=["a", "z"]) == []
    assert len(app.find(tags=[])) == 3


def test_a_tag_is_matched_whole(app: Face, make: Make) -> None:
    make.ready(tags=['a"b', "50%", "under_score"])

    assert len(app.find(tags=['a"b', "50%"])) == 1
    assert app.find(tags=["a"]) == app.find(tags=["50_"]) == []


@pytest.mark.parametrize("filter", [{"queue": "nobody's"}, {"kind": "?"}, {"train": "t"}], ids=repr)
def test_what_matches_nothing_finds_nothing(app: Face, make: Make, filter: dict) -> None:
    make.ready()

    assert app.find(**filter) == []


@pytest.mark.parametrize(
    "filter",
    [
        {"queue": 5},
        {"queue": "a\x00b"},
        {"kind": "\ud800"},
        {"tags": [5]},
        {"tags": ["a\x00b"]},
        {"tags": 5},
        {"pipeline_id": "x"},
        {"after": "x"},
    ],
    ids=repr,
)
def test_a_filter_that_can_match_nothing_by_its_form_is_refused(app: Face, filter: dict) -> None:
    with pytest.raises(BadRequest):
        app.find(**filter)


# -- Counts -------------------------------------------------------------------------------------


def test_an_empty_store_counts_nothing_in_every_state(app: Face) -> None:
    assert app.counts() == {state.value: 0 for state in JobState}


def test_every_state_is_counted(app: Face, make: Make, one_of_each: dict[str, UUID]) -> None:
    make.ready()
    make.succeeded()

    counts = app.counts()

    assert counts == {
        "scheduled": 1, "blocked": 0, "ready": 2, "running": 1, "succeeded": 2, "failed": 1, "cancelled": 1,
    }  # fmt: skip
    assert all(type(state) is str for state in counts)


def test_one_queue_is_counted_alone(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    make.succeeded(queue="mail")
    make.ready(queue="slow")

    counts = app.counts(queue="mail")

    assert (counts["ready"], counts["succeeded"], sum(counts.values())) == (1, 1, 2)
    assert app.counts("mail") == counts
    assert sum(app.counts("nobody's").values()) == 0


@pytest.mark.parametrize("queue", [5, "a\x00b", "\ud800", ""], ids=repr)
def test_a_queue_that_can_not_be_is_refused(app: Face, queue: object) -> None:
    with pytest.raises(BadRequest):
        app.counts(queue=queue)
