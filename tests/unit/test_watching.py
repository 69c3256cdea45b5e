"""One look for all who watch, however many; and nobody's slowness is anybody else's."""

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from dibs import Change, Dibs, NewJob, StoreUnavailable
from dibs.app import watching
from dibs.app.watching import MOST_PENDING, PollInterval, Subscription
from dibs.engines.memory.engine import MemoryStore
from dibs.jobs.ids import new_id
from dibs.jobs.job import Job
from dibs.operations.scripts import Rows, Step
from dibs.operations.watch import fingerprint, version, watch_target
from tests.support.internals import core_of


class CountingStore(MemoryStore):
    """A store that remembers which questions it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.looks = 0
        self.away = False

    def run(self, operation: Any, within: Any = None) -> Any:
        self.looks += 1
        return super().run(operation, within)

    def _execute(self, step: Step) -> Rows:
        self.asked[step.question] += 1
        if self.away:
            raise StoreUnavailable("gone for a moment")
        return super()._execute(step)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def app(store: CountingStore) -> Dibs:
    app = Dibs("memory://")
    core_of(app).use(store)
    return app


def _changes(*ids: object) -> list[Change]:
    return [Change(name="gone", id=id, job=None) for id in ids]  # type: ignore[arg-type]


def test_a_hundred_watchers_cost_the_store_no_more_than_one(app: Dibs, store: CountingStore) -> None:
    jobs = app.sync.enqueue(*(NewJob("work") for _ in range(100)))
    wakes = [threading.Event() for _ in jobs]
    with ExitStack() as watchers:
        for job, wake in zip(jobs, wakes, strict=True):
            topic = watch_target(job.id, None, None)
            watchers.enter_context(core_of(app).watching.watched(topic, wake.set))
        assert all(wake.wait(30) for wake in wakes)
        before = Counter(store.asked), store.looks
        while store.looks < before[1] + 4:
            threading.Event().wait(0.05)
        looks = store.looks - before[1]

        asked = store.asked - before[0]
        assert set(asked) == {"glance"}
        assert asked["glance"] <= looks + 1
    app.sync.close()


def test_the_thread_ends_with_the_last_who_watches(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LINGER", 0.01)
    [job] = app.sync.enqueue(NewJob("work"))
    changes = app.sync.watch(job_id=job.id)
    next(changes)
    [thread] = [each for each in threading.enumerate() if each.name == "dibs-watching"]

    changes.close()  # type: ignore[attr-defined]

    thread.join(30)
    assert not thread.is_alive()
    assert core_of(app).watching.watchers == 0


def test_a_store_that_is_away_for_a_moment_ends_no_watch_and_is_mentioned_once(
    app: Dibs, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    [job] = app.sync.enqueue(NewJob("work"))
    changes = app.sync.watch(job_id=job.id)
    next(changes)
    store.away, before = True, store.asked["glance"]
    while store.asked["glance"] < before + 2:
        threading.Event().wait(0.01)
    store.away = False

    app.sync.cancel(job.id)

    assert [change.state for change in changes] == ["cancelled"]
    assert caplog.text.count("can't be read") == 1
    app.sync.close()


def test_something_unexpected_ends_the_watch_with_its_error(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "poll_once", lambda *_: 1 / 0)
    [job] = app.sync.enqueue(NewJob("work"))

    with pytest.raises(ZeroDivisionError):
        next(app.sync.watch(job_id=job.id))
    app.sync.close()


def test_who_stops_watching_half_way_leaves_nothing(app: Dibs) -> None:
    async def look_once() -> None:
        async with app:
            [job] = await app.enqueue(NewJob("work"))
            async for _ in app.watch(job_id=job.id):
                break
            while core_of(app).watching.watchers:
                await asyncio.sleep(0.01)

    asyncio.run(look_once())


def test_of_each_job_only_the_latest_change_waits() -> None:
    one, other = new_id(), new_id()
    subscription = Subscription(None, lambda: None)  # type: ignore[arg-type]

    subscription.put(_changes(one, other))
    subscription.put(_changes(one))

    assert subscription.take() == (_changes(one, other), False)


def test_who_watches_is_woken_once_it_is_known_that_there_is_nothing() -> None:
    wakes: list[bool] = []
    subscription = Subscription(None, lambda: wakes.append(subscription.begun))  # type: ignore[arg-type]
    assert not subscription.begun

    subscription.begin([])

    assert wakes == [True]
    assert subscription.take() == ([], False)


def test_a_slow_reader_is_told_anew_instead_of_all_it_missed() -> None:
    subscription = Subscription(None, lambda: None)  # type: ignore[arg-type]
    subscription.is_new = False

    subscription.put(_changes(new_id()))
    subscription.put(_changes(*(new_id() for _ in range(MOST_PENDING))))

    assert subscription.fell_behind
    assert subscription.is_new
    assert subscription.take() == ([], False)


def test_many_changes_at_once_are_no_sign_of_slowness() -> None:
    subscription = Subscription(None, lambda: None)  # type: ignore[arg-type]

    subscription.put(_changes(*(new_id() for _ in range(2 * MOST_PENDING))))

    assert not subscription.fell_behind
    assert len(subscription.take()[0]) == 2 * MOST_PENDING


def test_looks_become_rarer_while_nothing_happens_and_quick_when_something_does() -> None:
    pace = PollInterval()
    quiet = []
    for _ in range(20):
        pace.begin()
        quiet.append(pace.pauses(changed=False, busy=False)[1])
    pace.begin()

    assert quiet == sorted(quiet)
    assert quiet[-1] == watching.SLOWEST_PAUSE
    assert pace.pauses(changed=True, busy=False)[1] < quiet[-1]


def test_a_version_is_of_one_standing_of_one_job() -> None:
    app = Dibs("memory://")
    one, other = app.sync.enqueue(NewJob("work"), NewJob("work"))
    running = app.sync.claim_job(one.id)
    assert running is not None

    def number(job: Job) -> int:
        return version(job.id, fingerprint(job))

    assert number(one) == number(one)
    assert len({number(job) for job in (one, other, running.job)}) == 3
