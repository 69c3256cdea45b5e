"""Moving between stores: everything of one, once, in another; here from and to the store of memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from dibs import BadRequest, Dibs, Job, NewJob, Refused
from dibs.jobs.job import read_stored
from dibs.moving import MoveReport, UnmovedJob, give_back_sync, look, look_sync, move, move_sync
from dibs.moving.stores import Side, Stores
from dibs.operations.scripts import Step
from tests.support.faces import Face, Make
from tests.support.internals import begin_schedule, run_script, store_of
from tests.support.moves import (
    ELSEWHERE,
    ids,
    left_behind,
    move_that_dies,
    move_that_hears_nothing_at_first,
    put,
    settle,
    stored,
)


@pytest.fixture
def other() -> Iterator[Dibs]:
    app = Dibs("memory://")
    yield app
    app.sync.close()


def carry(app: Face, source: Dibs, target: Dibs, **how: Any) -> MoveReport:
    """On the face that the test is about."""
    if app.colour == "sync":
        return move_sync(source, target, **how)
    return app.wait_for(move(source, target, **how))


def of_every_sort(app: Face, make: Make) -> list[Job]:
    """Jobs in every state but running, with something in every column."""
    options: dict[str, Any] = {
        "queue": "mail 📮",
        "priority": -7,
        "args": {"to": 'a "quoted" \\ name ' + "é" * 300, "n": [1, 2.5, None]},
        "tags": ["a", "b"],
        "meta": {"why": "{}"},
        "max_attempts": 9,
    }
    retried = make.running(unique="key", **options)
    retried.progress(0.25, "a quarter")
    retried.fail("not yet")
    chained = make.running(**options)
    chained.succeed({"sum": 3}, then=[NewJob("child", unique="child")])
    far = datetime(2199, 12, 31, 23, 59, 59, 123456, tzinfo=UTC)
    jobs = [
        make.ready(**options),
        make.ready(on_failed="hold", on_cancelled="hold"),
        make.ready(run_at=far),
        make.scheduled(unique="later"),
        make.succeeded(result="well", unique="done"),
        make.failed(reason="broken\nin two lines"),
        make.cancelled(reason="enough"),
    ]
    return [*jobs, app.get(retried.job.id), app.get(chained.job.id)]


# -- What is moved ------------------------------------------------------------------------------


def test_everything_of_every_job_is_the_same_in_the_other_store(app: Face, make: Make, other: Dibs) -> None:
    of_every_sort(app, make)
    before, seen = stored(app.app), app.find(limit=100)

    there = carry(app, app.app, other)
    in_other, seen_there = stored(other), other.sync.find(limit=100)
    back = carry(app, other, app.app)

    assert in_other == before
    assert seen_there == seen
    assert stored(app.app) == before
    assert app.find(limit=100) == seen
    for done in (there, back):
        assert sum(done.jobs.values()) == len(before) == 10
        assert (done.known, done.refused, done.problems) == (0, [], [])
        assert sum(done.source.values()) == 0
    assert left_behind(app.app, other) == []


def test_jobs_are_claimed_in_the_same_order_as_before(app: Face, make: Make, other: Dibs) -> None:
    jobs = [make.ready(priority=n % 3, kind=f"kind {n % 2}", queue=f"queue {n % 4}") for n in range(12)]

    carry(app, other, app.app)
    carry(app, app.app, other)
    carry(app, other, app.app)

    order = sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))
    assert [claim.job.id for claim in app.claim(limit=20)] == [job.id for job in order]


def test_settings_of_queues_and_last_ticks_go_along(app: Face, make: Make, other: Dibs) -> None:
    tick = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
    other.sync.pause("mail")
    other.sync.limit("slow", 3)
    other.sync.enqueue(NewJob("work", queue="mail"))
    for name in ("nightly", "hourly"):
        store_of(other).run(lambda _, name=name: begin_schedule(name, tick))

    done = carry(app, other, app.app)
    carry(app, other, app.app)

    assert {queue.name: (queue.paused, queue.limit) for queue in app.queues()} == {
        "mail": (True, None),
        "slow": (False, 3),
    }
    assert {one.name: one.last_tick for one in app.schedules.list()} == {"nightly": tick, "hourly": tick}
    assert (done.queues, done.schedules) == (2, 2)
    assert app.claim() == []
    app.resume("mail")
    assert len(app.claim()) == 1


def test_a_queue_that_was_resumed_in_the_target_stays_so(app: Face, other: Dibs) -> None:
    other.sync.enqueue(NewJob("work", queue="mail", train="t"))
    other.sync.pause("mail")
    first = carry(app, other, app.app)
    app.resume("mail")
    app.enqueue(NewJob("work", queue="mail"))

    again = carry(app, other, app.app)
    resumed = len(app.claim(limit=5))
    other.sync.enqueue(NewJob("work", queue="mail", train="t"))
    more = carry(app, other, app.app)

    assert (first.paused, again.paused, more.paused) == (["mail"], [], ["mail"])
    assert resumed == 2
    assert app.queues()[0].paused


def test_what_the_target_has_set_itself_stays(app: Face, other: Dibs) -> None:
    early, late = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)
    other.sync.limit("slow", 3)
    app.limit("slow", 8)
    for store, tick in ((other, early), (app.app, late)):
        store_of(store).run(lambda _, tick=tick: begin_schedule("nightly", tick))

    carry(app, other, app.app)

    assert [queue.limit for queue in app.queues()] == [8]
    assert [one.last_tick for one in app.schedules.list()] == [late]


def test_a_later_claim_has_a_greater_token_also_in_another_store(app: Face, make: Make, other: Dibs) -> None:
    for _ in range(5):
        other.sync.enqueue(NewJob("work"))
    for _ in range(20):
        for claim in other.sync.claim(limit=5):
            claim.release()
    greatest = max(claim.token for claim in _released(other.sync.claim(limit=5)))

    carry(app, other, app.app)

    claims = app.claim(limit=5)
    assert len(claims) == 5
    assert min(claim.token for claim in claims) > greatest
    assert len({claim.token for claim in claims}) == 5


def _released(claims: list[Any]) -> list[Any]:
    for claim in claims:
        claim.release()
    return claims


def test_more_than_one_batch_is_moved_whole(app: Face, other: Dibs) -> None:
    jobs = app.enqueue(*(NewJob(f"kind {n % 7}", args={"n": n}) for n in range(1500)))
    told: list[tuple[int, int]] = []

    done = carry(app, app.app, other, told=lambda now, of: told.append((now, of)))

    assert ids(other) == {job.id for job in jobs}
    assert done.jobs == {"ready": 1500}
    assert told[-1] == (1500, 1500)
    assert told == sorted(told)


# -- Running jobs -------------------------------------------------------------------------------


def test_running_jobs_are_left_to_their_holders_if_told_so(app: Face, make: Make, other: Dibs) -> None:
    claim = make.running()
    waiting = make.ready()

    done = carry(app, app.app, other, running="leave")

    assert ids(other) == {waiting.id}
    assert (done.source["running"], done.problems) == (1, [])
    claim.succeed("well")
    assert app.get(claim.job.id).state == "succeeded"


def test_running_jobs_are_waited_for(app: Face, make: Make, other: Dibs) -> None:
    claims = [make.running(), make.running()]
    make.ready()
    seen = threading.Event()

    def told(now: int, _: int) -> None:
        if now == 1 and not seen.is_set():
            seen.set()
            settled = app.app.sync.get(claims[0].job.id)
            assert settled is not None
            _succeed(app.app, claims)

    done = carry(app, app.app, other, told=told)

    assert seen.is_set()
    assert done.jobs == {"ready": 1, "succeeded": 2}
    assert done.problems == []
    assert other.sync.counts()["succeeded"] == 2


def _succeed(app: Dibs, claims: list[Any]) -> None:
    """From another thread, as another process would."""
    thread = threading.Thread(target=lambda: settle(app, claims, "succeeded"))
    thread.start()
    thread.join()


def _ask(app: Dibs, question: str, **params: Any) -> Any:
    def script() -> Any:
        return (yield Step(question, params))

    return run_script(app, script)


def test_a_job_whose_holder_died_is_not_waited_for_in_vain(app: Face, make: Make, other: Dibs) -> None:
    claim = make.expired()

    done = carry(app, app.app, other)

    [job] = other.sync.find()
    assert (job.id, job.state) == (claim.job.id, "ready")
    assert [error.message for error in job.errors] == ["worker died"]
    assert done.problems == []


def test_when_the_time_is_up_the_move_says_what_still_runs(app: Face, make: Make, other: Dibs) -> None:
    make.running()

    done = carry(app, app.app, other, timeout=0)

    assert done.problems == ["1 job still ran when the time was up; run the move again later"]


# -- Once and only once -------------------------------------------------------------------------


def test_a_job_on_its_way_is_for_nobody_and_can_be_given_back(app: Face, make: Make) -> None:
    job = make.ready(unique="key")
    ended = make.succeeded()

    rows = put(app, "depart", store=ELSEWHERE, after=None, limit=10)

    assert [row["id"] for row in rows] == sorted([job.id, ended.id])
    assert read_stored(rows[0]["job"]).unique_key == "key"
    assert (app.claim(), app.claim_job(job.id), app.get(job.id), app.get(ended.id)) == ([], None, None, None)
    assert [row["id"] for row in put(app, "departed", limit=10)] == sorted([job.id, ended.id])
    assert give_back_sync(app.app) == 2
    assert put(app, "departed", limit=10) == []
    assert [claim.job.id for claim in app.claim(limit=5)] == [job.id]
    assert app.get(ended.id) == ended


def test_a_job_that_is_enqueued_again_while_it_is_away_departs_again(app: Face) -> None:
    new = NewJob("work", {"n": 1})
    app.enqueue(new)
    put(app, "depart", store=ELSEWHERE, after=None, limit=10)
    app.enqueue(new)

    [row] = put(app, "depart", store=ELSEWHERE, after=None, limit=10)

    assert row["id"] == new.id
    assert [noted["id"] for noted in put(app, "departed", limit=10)] == [new.id]
    assert app.get(new.id) is None


def test_a_running_job_does_not_depart(app: Face, make: Make) -> None:
    claim = make.running()

    assert put(app, "depart", store=ELSEWHERE, after=None, limit=10) == []
    claim.succeed()


def test_who_may_not_depart_keeps_nobody_behind_it_here(app: Face) -> None:
    *_, last = app.enqueue(*(NewJob("work", train="t") for _ in range(3)), NewJob("work"))

    rows = put(app, "depart", store=ELSEWHERE, after=None, limit=1)

    assert [row["id"] for row in rows] == [last.id]


def test_as_many_depart_as_asked_though_others_may_not(app: Face) -> None:
    _, first, _, second = app.enqueue(
        NewJob("work", train="t"), NewJob("work"), NewJob("work", train="t"), NewJob("work")
    )

    rows = put(app, "depart", store=ELSEWHERE, after=None, limit=2)

    assert [row["id"] for row in rows] == [first.id, second.id]


def test_jobs_depart_in_the_order_of_their_ids_and_no_more_than_asked(app: Face, make: Make) -> None:
    jobs = [make.ready(kind=f"kind {n % 3}") if n % 2 else make.succeeded() for n in range(7)]
    first, *_, last = order = sorted(job.id for job in jobs)

    some = put(app, "depart", store=ELSEWHERE, after=None, limit=3)
    more = put(app, "depart", store=ELSEWHERE, after=order[4], limit=3)

    assert [row["id"] for row in some] == order[:3]
    assert [row["id"] for row in more] == order[5:]
    assert {first, last}.isdisjoint(job.id for job in app.find())


def test_what_arrives_again_is_known_though_it_was_done_and_deleted_since(app: Face, other: Dibs) -> None:
    [job] = other.sync.enqueue(NewJob("work"))
    [row] = _ask(other, "depart", store=ELSEWHERE, after=None, limit=1)
    source = uuid4()

    [first] = put(app, "arrive", store=source, jobs=[row["job"]])
    [claim] = app.claim()
    claim.succeed()
    app.delete(job.id)
    [again] = put(app, "arrive", store=source, jobs=[row["job"]])
    put(app, "landed", way="in", store=source, ids=[job.id])

    assert (first["is_new"], first["holder"]) == (True, job.id)
    assert (again["is_new"], again["holder"]) == (False, job.id)
    assert app.find() == []


def test_a_job_that_the_target_has_already_stays_as_it_is_there(app: Face, other: Dibs) -> None:
    new = NewJob("work")
    other.sync.enqueue(new)
    app.enqueue(new)
    [claim] = app.claim()
    claim.succeed("done here")

    done = carry(app, other, app.app)

    assert (done.jobs, done.known, done.problems) == ({}, 1, [])
    assert app.get(new.id).result == "done here"
    assert other.sync.find() == []


def test_a_job_whose_unique_key_is_taken_stays_and_is_named(app: Face, make: Make, other: Dibs) -> None:
    holder = make.ready(unique="key")
    [kept] = other.sync.enqueue(NewJob("work", unique="key"))
    [goes] = other.sync.enqueue(NewJob("work", unique="free"))

    done = carry(app, other, app.app)

    assert done.refused == [UnmovedJob(id=kept.id, unique="key", holder=holder.id)]
    assert len(done.problems) == 1
    assert str(kept.id) in done.problems[0]
    assert str(holder.id) in done.problems[0]
    assert ids(other) == {kept.id}
    assert ids(app.app) == {holder.id, goes.id}
    [claim] = [claim for claim in app.claim(limit=5) if claim.job.id == holder.id]
    claim.succeed()
    assert carry(app, other, app.app).problems == []
    assert ids(app.app) == {holder.id, goes.id, kept.id}


# -- From every engine to every other --------------------------------------------------------------

FROM_ONE_TO_ANOTHER = [
    *itertools.permutations(["memory", "sqlite", "postgresql", "mariadb", "redis"], 2),
    *(pair for one in ("mariadb", "redis") for pair in itertools.permutations([one, "mysql"])),
]


@pytest.fixture
def there(to: str, empty_store: Callable[[str], str], app: Face) -> Iterator[Dibs]:
    """A store of another engine, used on the face of the test."""
    target = Dibs(empty_store(to))
    yield target
    target.sync.close()
    if app.colour == "async":
        app.wait_for(target.close())


@pytest.mark.parametrize(("engine", "to"), FROM_ONE_TO_ANOTHER)
def test_from_one_engine_to_another_everything_stays_the_same(app: Face, make: Make, there: Dibs) -> None:
    of_every_sort(app, make)
    [job, *_] = app.find(limit=100)
    before = stored(app.app)

    done = carry(app, app.app, there)

    assert (sum(done.jobs.values()), done.problems) == (len(before), [])
    assert stored(there) == before
    assert ids(app.app) == set()
    assert there.sync.get(job.id) == job
    assert left_behind(app.app, there) == []


@pytest.mark.parametrize(("engine", "to"), FROM_ONE_TO_ANOTHER)
def test_from_one_engine_to_another_nothing_is_lost_on_the_way(
    app: Face, make: Make, there: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target fails in the middle, whatever the reason; the next move goes on."""
    of_every_sort(app, make)
    before = stored(app.app)
    question = Stores.question

    def fail_to_arrive(stores: Stores, side: Side, name: str, **params: Any) -> Any:
        return question(stores, side, name, **params) if name != "arrive" else 1 // 0

    with monkeypatch.context() as broken:
        broken.setattr(Stores, "question", fail_to_arrive)
        with pytest.raises(ZeroDivisionError):
            carry(app, app.app, there)
    on_the_way = {row["id"] for row in left_behind(app.app)}
    assert on_the_way == {job.id for job in before}

    done = carry(app, app.app, there)

    assert done.problems == []
    assert stored(there) == before
    assert ids(app.app) == set()
    assert left_behind(app.app, there) == []


@pytest.fixture
def here(url: str) -> Iterator[Dibs]:
    """An app that only blocks, for tests about both stores; with a few jobs of all sorts."""
    app = Dibs(url)
    with_key, later, ended = app.sync.enqueue(
        NewJob("work", unique="key"), NewJob("work", delay=60), NewJob("ends", queue="mail")
    )
    [claim] = app.sync.claim(kinds=["ends"])
    claim.succeed("well", then=[NewJob("child")])
    assert len({with_key.id, later.id, ended.id}) == 3
    yield app
    app.sync.close()


@pytest.mark.parametrize("outwards", [True, False], ids=["from", "to"])
def test_a_move_that_dies_anywhere_and_is_run_again_loses_and_doubles_nothing(
    here: Dibs, other: Dibs, outwards: bool
) -> None:
    """Once for every question that a move asks: die before it, look, run again, look, move back."""
    before = stored(here)
    source, target = (here, other) if outwards else (other, here)
    if not outwards:
        move_sync(here, other)
    done, deaths = None, 0

    while done is None:
        done = move_that_dies(source, target, deaths.__eq__)
        ours, theirs = ids(source), ids(target)
        on_the_way = {row["id"] for row in left_behind(source)}
        assert ours.isdisjoint(theirs | on_the_way)
        assert ours | theirs | on_the_way == {job.id for job in before}
        if done is None:
            deaths += 1
            done_later = move_sync(source, target)
            assert done_later.problems == []
            assert stored(target) == before
            assert ids(source) == set()
            assert left_behind(source, target) == []
            move_sync(target, source)

    assert deaths > 15
    assert stored(target) == before


def test_a_job_that_was_done_and_deleted_while_the_mover_was_dead_is_not_moved_again(
    app: Face, other: Dibs
) -> None:
    [job] = other.sync.enqueue(NewJob("work"))
    assert move_that_dies(other, app.app, lambda _: app.get(job.id) is not None) is None
    [claim] = app.claim()
    claim.succeed()
    app.delete(job.id)

    done = carry(app, other, app.app)

    assert app.find() == other.sync.find() == []
    assert (done.jobs, done.known) == ({}, 1)


def test_a_move_whose_answers_get_lost_loses_and_doubles_nothing(here: Dibs, other: Dibs) -> None:
    before = stored(here)

    move_that_hears_nothing_at_first(here, other)
    there = stored(other)
    move_that_hears_nothing_at_first(other, here)

    assert there == before == stored(here)
    assert ids(other) == set()
    assert left_behind(here, other) == []


def test_of_two_movers_at_once_one_is_refused_and_nothing_is_doubled(here: Dibs, other: Dibs) -> None:
    here.sync.enqueue(*(NewJob("work", args={"n": n}) for n in range(500)))
    before = ids(here)
    working, go_on = threading.Event(), threading.Event()

    def hold(*_: int) -> None:
        working.set()
        assert go_on.wait(60)

    first: list[MoveReport] = []
    mover = threading.Thread(target=lambda: first.append(move_sync(here, other, told=hold)))
    mover.start()
    try:
        assert working.wait(60)
        with pytest.raises(Refused, match="is moving the same store already"):
            move_sync(here, other)
    finally:
        go_on.set()
        mover.join()

    assert first[0].problems == []
    assert (ids(here), ids(other)) == (set(), before)
    assert sum(first[0].target.values()) == len(before)
    assert left_behind(here, other) == []


def test_two_movers_that_start_at_the_same_moment_double_nothing(here: Dibs, other: Dibs) -> None:
    here.sync.enqueue(*(NewJob("work", args={"n": n}) for n in range(500)))
    before, gate = ids(here), threading.Barrier(2)

    def start() -> str:
        gate.wait()
        try:
            return str(move_sync(here, other).problems)
        except Refused:
            return "refused"

    with ThreadPoolExecutor(2) as movers:
        ends = [mover.result() for mover in [movers.submit(start) for _ in range(2)]]

    assert set(ends) <= {"[]", "refused"}
    assert "[]" in ends
    assert (ids(here), ids(other)) == (set(), before)
    assert left_behind(here, other) == []


# -- Trains and slots -----------------------------------------------------------------------------


def test_who_waits_in_a_train_or_for_a_slot_goes_only_while_its_queue_is_paused(
    app: Face, make: Make, other: Dibs
) -> None:
    """Else the next one would be let go in the source, beside the one before it in the target."""
    plain, gated, ended = make.ready(queue="mail"), make.ready(queue="mail"), make.succeeded(queue="mail")
    _put_on_a_train(app, gated, ended)

    first = carry(app, app.app, other)
    there = ids(other)
    app.pause("mail")
    second = carry(app, app.app, other)

    assert there == {ended.id, plain.id}
    [problem] = first.problems
    assert problem.startswith("1 job of the queue 'mail' stayed, in trains or for slots")
    assert (second.jobs, second.problems) == ({"ready": 1}, [])
    moved = other.sync.get(gated.id)
    assert moved is not None
    assert moved.train == "dest"
    assert other.sync.claim() == []


def test_a_look_before_a_move_says_who_would_stay(app: Face, other: Dibs) -> None:
    app.enqueue(NewJob("send", queue="mail"), *(NewJob("send", queue="mail", train="a") for _ in range(3)))
    app.enqueue(*(NewJob("send", queue="paused", slot="s") for _ in range(2)))
    app.pause("paused")

    planned = look_sync(app.app, other)

    assert planned.staying == {"mail": 3}
    moved = carry(app, app.app, other)
    assert planned.jobs == moved.jobs == {"ready": 2, "blocked": 1}


def test_of_a_train_longer_than_one_question_everybody_is_counted_as_waiting(app: Face, other: Dibs) -> None:
    app.enqueue(*[NewJob("send", queue="mail", train="a") for _ in range(1001)])

    moved = carry(app, app.app, other)

    [problem] = moved.problems
    assert problem.startswith("1,001 jobs of the queue 'mail' stayed, in trains or for slots")


def test_the_order_of_a_train_is_kept_from_store_to_store(app: Face, other: Dibs) -> None:
    jobs = app.enqueue(*(NewJob("work", train="dest", queue="mail", priority=n) for n in range(4)))
    first = app.claim_job(jobs[0].id)
    first.fail("the first is last now", retry=False)
    app.retry(jobs[0].id)
    app.pause("mail")

    carry(app, app.app, other)
    carry(app, other, app.app)
    app.resume("mail")

    order = []
    while claims := app.claim(limit=10):
        [claim] = claims
        order.append(claim.job.id)
        claim.succeed()
    assert order == [jobs[1].id, jobs[2].id, jobs[3].id, jobs[0].id]
    assert app.trains.get("dest") is None


def test_of_a_slot_at_most_one_goes_after_a_move(app: Face, other: Dibs) -> None:
    jobs = app.enqueue(*(NewJob("work", slot="csv", queue="mail") for _ in range(3)))
    app.pause("mail")

    carry(app, app.app, other)
    carry(app, other, app.app)
    app.resume("mail")

    done = []
    while claims := app.claim(limit=10):
        [claim] = claims
        done.append(claim.job.id)
        claim.succeed()
    assert done == [job.id for job in jobs]


def test_when_the_first_of_a_train_has_departed_the_next_is_its_head(app: Face) -> None:
    first, second = app.enqueue(*(NewJob("work", train="dest", queue="mail") for _ in range(2)))
    app.pause("mail")

    put(app, "depart", store=ELSEWHERE, after=None, limit=1)

    assert app.get(first.id) is None
    assert app.get(second.id).state == "ready"


def test_when_who_had_the_turn_in_a_slot_has_departed_the_next_has_it(app: Face) -> None:
    _, second = app.enqueue(*(NewJob("work", slot="csv", queue="mail") for _ in range(2)))
    app.pause("mail")

    put(app, "depart", store=ELSEWHERE, after=None, limit=1)

    assert app.get(second.id).state == "ready"


def test_a_train_that_has_departed_leaves_no_trace(app: Face) -> None:
    app.enqueue(*(NewJob("work", train="dest", queue="mail") for _ in range(3)))
    app.pause("mail")

    put(app, "depart", store=ELSEWHERE, after=None, limit=10)

    assert app.trains.list() == []


def test_who_comes_back_to_its_train_waits_for_who_runs_there_by_now(app: Face) -> None:
    app.enqueue(*(NewJob("work", train="dest", queue="mail") for _ in range(2)))
    app.pause("mail")
    put(app, "depart", store=ELSEWHERE, after=None, limit=10)
    app.resume("mail")
    app.enqueue(NewJob("work", train="dest", queue="mail"))
    [claim] = app.claim(limit=10)

    give_back_sync(app.app)

    assert app.claim(limit=10) == []
    claim.succeed()
    assert len(_done_one_by_one(app)) == 2


def test_who_comes_to_a_train_where_others_wait_has_a_place_of_its_own(app: Face) -> None:
    jobs = app.enqueue(*(NewJob("work", train="dest", queue="mail") for _ in range(3)))
    app.pause("mail")
    put(app, "depart", store=ELSEWHERE, after=None, limit=10)
    later = app.enqueue(*(NewJob("work", train="dest", queue="mail") for _ in range(2)))

    give_back_sync(app.app)
    app.resume("mail")

    done = _done_one_by_one(app)
    assert sorted(done) == sorted(job.id for job in [*jobs, *later])
    assert [id for id in done if id in {job.id for job in jobs}] == [job.id for job in jobs]
    assert [id for id in done if id in {job.id for job in later}] == [job.id for job in later]


def test_who_is_not_taken_in_costs_nobody_else_its_place_on_the_train(app: Face, other: Dibs) -> None:
    holder, deleted, later = app.enqueue(
        *(NewJob("work", train="dest", unique=unique) for unique in ("key", None, None))
    )
    app.delete(deleted.id)
    stays, comes = other.sync.enqueue(
        *(NewJob("work", train="dest", unique=unique) for unique in ("key", None))
    )
    other.sync.pause("default")

    moved = carry(app, other, app.app)
    app.resume("default")

    assert [one.id for one in moved.refused] == [stays.id]
    assert _done_one_by_one(app) == [holder.id, comes.id, later.id]


def _done_one_by_one(app: Face) -> list[UUID]:
    """Claimed again while each runs: nobody else may go then."""
    done = []
    while claims := app.claim(limit=10):
        [claim] = claims
        app.sweep()
        assert app.claim(limit=10) == []
        done.append(claim.job.id)
        claim.succeed()
    return done


@pytest.mark.parametrize("paused", [True, False])
def test_a_held_train_stays_with_the_person_it_waits_for(app: Face, other: Dibs, paused: bool) -> None:
    hold: dict[str, Any] = {"train": "dest", "queue": "mail", "on_failed": "hold"}
    head, _, last, _ = app.enqueue(*(NewJob("work", **hold) for _ in range(3)), NewJob("work"))
    app.claim_job(head.id).fail("no", retry=False)
    app.cancel(last.id)
    if paused:
        app.pause("mail")

    planned = look_sync(app.app, other)
    held = carry(app, app.app, other)
    app.trains.release("dest")
    app.pause("mail")
    released = carry(app, app.app, other)

    assert planned.jobs == held.jobs == {"ready": 1, "cancelled": 1}
    [problem] = held.problems
    assert planned.held == held.problems
    assert problem.startswith(f"2 jobs of the train 'dest' stay: job {head.id} failed and holds them; ")
    assert "`dibs trains release dest`" in problem
    assert f"`dibs jobs retry {head.id}`" in problem
    assert planned.staying == {}
    assert (released.jobs, released.problems) == ({"ready": 1, "failed": 1}, [])


def _put_on_a_train(app: Face, *jobs: Job) -> None:
    """By hand, also where trains can't be enqueued: out of the store, and in again with a train."""
    rows = put(app, "depart", store=ELSEWHERE, after=None, limit=10)
    put(app, "landed", way="out", store=ELSEWHERE, ids=[row["id"] for row in rows])
    for row in rows:
        gate = {"train": "dest", "position": 1} if row["id"] in {job.id for job in jobs} else {}
        text = msgspec.json.encode({**msgspec.json.decode(row["job"]), **gate}).decode()
        put(app, "arrive", store=ELSEWHERE, jobs=[text])
    put(app, "landed", way="in", store=ELSEWHERE, ids=None)


# -- Refusals -----------------------------------------------------------------------------------


def test_a_store_is_not_moved_to_itself(app: Face, make: Make) -> None:
    job = make.ready()

    with pytest.raises(Refused, match="the same store"):
        carry(app, app.app, app.app)

    assert ids(app.app) == {job.id}


def test_a_half_moved_store_goes_where_it_was_going_first(app: Face, make: Make, other: Dibs) -> None:
    job = make.ready()
    put(app, "depart", store=ELSEWHERE, after=None, limit=1)

    with pytest.raises(Refused, match="1 job of the source is on its way elsewhere"):
        carry(app, app.app, other)
    with pytest.raises(Refused, match="1 job of the target is on its way to another store"):
        carry(app, other, app.app)

    give_back_sync(app.app)
    assert carry(app, app.app, other).jobs == {"ready": 1}
    assert ids(other) == {job.id}


def test_a_look_changes_nothing_and_says_what_would_be_moved(app: Face, make: Make, other: Dibs) -> None:
    make.ready()
    make.running()
    make.succeeded(queue="mail")
    app.pause("mail")
    before = app.find()

    sync = app.colour == "sync"
    planned = look_sync(app.app, other) if sync else app.wait_for(look(app.app, other))

    assert planned.jobs == {"ready": 1, "succeeded": 1}
    assert (planned.running, planned.queues, planned.schedules) == (1, 1, 0)
    assert sum(planned.target.values()) == 0
    assert app.find() == before


def test_bad_input_is_refused_before_anything_is_moved(app: Face, make: Make, other: Dibs) -> None:
    job = make.ready()

    with pytest.raises(BadRequest, match="use 'wait' or 'leave'"):
        carry(app, app.app, other, running="kill")
    with pytest.raises(BadRequest, match="timeout"):
        carry(app, app.app, other, timeout=-1)

    assert ids(app.app) == {job.id}
