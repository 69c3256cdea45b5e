"""What may go wrong at trains and slots when many are there at once: cases, each with what it saw."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from dibs import Dibs, NewJob
from dibs.jobs.ids import first_id_at
from tests.support.fault_cases import AT_ONCE_SECONDS, Scene, _nothing_changed, _zombie, enqueue, locked
from tests.support.fault_stores import Place, answers_within, exchange, together
from tests.support.internals import age

__all__ = ["Scene"]


def _states(app: Dibs, jobs: Sequence[Any]) -> list[str]:
    found = [app.sync.get(job.id) for job in jobs]
    return ["gone" if job is None else job.state.value for job in found]


def _put(app: Dibs, **options: Any) -> Any:
    [job] = app.sync.enqueue(NewJob("work", **options))
    return job


def _drained(app: Dibs, many: int) -> list[Any]:
    """The ids of a train's jobs in the order in which they could be claimed, one at a time."""
    order: list[Any] = []
    while claims := app.sync.claim(limit=10):
        if len(claims) > 1:
            raise AssertionError(f"{len(claims)} jobs of one train were claimed at once")
        order.append(claims[0].job.id)
        claims[0].succeed()
    if len(order) != many:
        raise AssertionError(f"stuck: {len(order)} of {many} jobs came")
    return order


@contextlib.contextmanager
def transaction(place: Place, isolation: str = "read committed") -> Iterator[Any]:
    """A transaction of the caller's own; what is not committed is undone."""
    with contextlib.closing(psycopg.connect(place.url)) as connection:
        connection.execute(f"set transaction isolation level {isolation}")
        yield connection


@contextlib.contextmanager
def slow_commit(place: Place, app: Dibs) -> Iterator[Any]:
    """To enqueue within, committed a moment after the last word; None where a store knows no such thing."""
    if not app.traits.joins_caller:
        yield None
        return
    with contextlib.closing(_begun(place)) as connection:
        yield connection
        time.sleep(0.02)  # others come meanwhile, and must wait
        connection.commit()


def _begun(place: Place) -> Any:
    connection = place.connect()
    connection.execute("begin immediate" if place.kind == "sqlite" else "begin")
    return connection


# -- Enqueue ------------------------------------------------------------------------------------


def producers_make_one_head(place: Place, *, producers: int = 8, each: int = 2) -> str | None:
    """Many put jobs on one train at the same moment, some of them in slow transactions of their own."""
    apps = place.apps(producers)

    def produce(nth: int) -> list[Any]:
        if nth % 4:
            return [_put(apps[nth], train="t").id for _ in range(each)]
        with slow_commit(place, apps[nth]) as within:
            put = [apps[nth].sync.enqueue(NewJob("work", train="t"), within=within) for _ in range(2)]
        return [job.id for [job] in put]

    by_producer = together(*((lambda nth=nth: produce(nth)) for nth in range(producers)))
    total = sum(map(len, by_producer))
    counts = apps[0].sync.counts()
    if (counts["ready"], counts["blocked"]) != (1, total - 1):
        return f"heads: {counts['ready']} are ready and {counts['blocked']} blocked, of {total}"
    if apps[0].traits.joins_caller:
        [(places, jobs)] = place.sql("select count(distinct position), count(*) from dibs_jobs")
        if places != jobs:
            return f"places: {jobs} jobs have {places} places"
    order = _drained(apps[0], total)
    for ids in by_producer:
        if [id for id in order if id in set(ids)] != ids:
            return "order: a producer's jobs did not come in the order of their enqueue"
    return None


def producers_of_a_slot_make_one_turn(
    place: Place, *, producers: int = 8, policy: str = "wait"
) -> str | None:
    _put_by_many(place, producers, slot="s", slot_policy=policy)
    app = place.app()
    counts = {state: many for state, many in app.sync.counts().items() if many}
    others = {"replace": {"cancelled": producers - 1}, "drop": {}}.get(policy, {"blocked": producers - 1})
    if counts != {"ready": 1, **others}:
        return f"turns: {counts}, of {producers}"
    _drained(app, 1 + counts.get("blocked", 0))
    return None


def producers_of_a_key_store_one_job(place: Place, *, producers: int = 8, **options: Any) -> str | None:
    jobs = _put_by_many(place, producers, unique="key", **options)
    stored = sum(place.app().sync.counts().values())
    answered = len({job.id for job in jobs})
    new = sum(job.is_new for job in jobs)
    if (stored, answered, new) != (1, 1, 1):
        return f"{stored} are stored, {answered} were answered, {new} of them as new"
    return None


def _put_by_many(place: Place, producers: int, **options: Any) -> list[Any]:
    """A job each at the same moment, every fourth in a slow transaction of its own."""
    apps = place.apps(producers)

    def produce(nth: int) -> Any:
        if nth % 4:
            return _put(apps[nth], **options)
        with slow_commit(place, apps[nth]) as within:
            [job] = apps[nth].sync.enqueue(NewJob("work", **options), within=within)
        return job

    return together(*((lambda nth=nth: produce(nth)) for nth in range(producers)))


def an_open_producer_is_not_overtaken(place: Place) -> str | None:
    """Who was first at the gate is first on the train, however late it commits."""
    app, other = place.apps(2)
    with contextlib.closing(_begun(place)) as connection:
        [first] = app.sync.enqueue(NewJob("work", train="t"), within=connection)
        early = answers_within(0.3, lambda: _put(other, train="t"), then=connection.commit)
    if early:
        return f"overtook: {early[0].state} before the other had committed"
    order = _drained(app, 2)
    return None if order[0] == first.id else "overtook: the later producer's job came first"


def many_trains_in_any_order_have_a_head_each(place: Place) -> str | None:
    apps = place.apps(3)
    names = [f"t{n}" for n in range(240)]

    def produce(nth: int) -> None:
        turned = names[80 * nth :] + names[: 80 * nth]
        mixed = turned if nth % 2 else turned[::-1]
        apps[nth].sync.enqueue(*(NewJob("work", train=name) for name in mixed))

    together(*((lambda nth=nth: produce(nth)) for nth in range(3)))
    heads = apps[0].sync.counts()["ready"]
    if heads != len(names):
        return f"heads: {heads} are ready on {len(names)} trains"
    return None


def an_old_snapshot_is_told_so(place: Place, isolation: str = "repeatable read") -> str | None:
    """A transaction that still sees a head which is long gone must not line up behind it."""
    app = place.apps(1)[0]
    head = _put(app, train="t")
    with transaction(place, isolation) as connection:
        connection.execute("select count(*) from dibs_jobs").fetchall()
        app.sync.claim_job(head.id).succeed()
        try:
            app.sync.enqueue(NewJob("work", train="t"), within=connection)
            connection.commit()
        except psycopg.errors.SerializationFailure:
            return None
    return None if app.sync.counts()["ready"] == 1 else "stuck: it waits for a job that has finished"


def a_key_that_lasts_is_not_given_away(place: Place) -> str | None:
    """Its job finishes while another waits for the key: the key is still taken."""
    app, other = place.apps(2)
    job = _put(app, unique="key", unique_for=60)
    claim = app.sync.claim_job(job.id)
    with transaction(place) as connection:
        claim.succeed(within=connection)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: _put(other, unique="key", unique_for=60))
            _until_somebody_waits(place)
            connection.commit()
            again = answer.result()
    return None if again.id == job.id else f"given away: a new job, {again.state}"


def _until_somebody_waits(place: Place) -> None:
    deadline = time.monotonic() + 30
    while not place.sql(
        "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    ):
        if time.monotonic() > deadline:
            raise AssertionError("nobody waited")
        time.sleep(0.01)


def a_dropped_job_leaves_nothing(place: Place) -> str | None:
    app = place.apps(1)[0]
    kept = _put(app, slot="s")
    again = [_put(app, slot="s", slot_policy="drop") for _ in range(2)]
    found = app.sync.find(slot="s")
    return None if {job.id for job in [*again, *found]} == {kept.id} else f"stored: {len(found)} jobs"


def a_replacing_job_spares_who_runs(place: Place) -> str | None:
    app = place.apps(1)[0]
    claim = app.sync.claim_job(_put(app, slot="s").id)
    waiting = _put(app, slot="s")
    newest = _put(app, slot="s", slot_policy="replace")
    states = _states(app, [claim.job, waiting, newest])
    return None if states == ["running", "cancelled", "blocked"] else f"became {states}"


# -- Claim and settle ---------------------------------------------------------------------------


def of_two_siblings_one_wins(place: Place, *, rounds: int = 20) -> str | None:
    apps = place.apps(2)
    for nth in range(rounds):
        jobs = [_put(apps[0], slot=f"s{nth}") for _ in range(2)]
        works = [
            lambda app=app, job=job: app.sync.claim_job(job.id) for app, job in zip(apps, jobs, strict=True)
        ]
        claims = together(*works)
        winners = [claim for claim in claims if claim is not None]
        if len(winners) != 1:
            return f"winners: {len(winners)} of two siblings"
        loser = apps[0].sync.get(jobs[0].id if claims[0] is None else jobs[1].id)
        if (loser.state, loser.attempts) != ("blocked", 0):
            return f"the loser is {loser.state} with {loser.attempts} attempts"
    return None


def who_overtakes_waits_for_a_claim_under_way(place: Place) -> str | None:
    """A sibling is being claimed this very moment: it has started, and can't be overtaken any more."""
    app = place.apps(1)[0]
    first, second = _put(app, slot="s"), _put(app, slot="s")
    with transaction(place) as connection:
        connection.execute(
            "update dibs_jobs set state = 'running', token = nextval('dibs_token'), attempts = 1, "
            "worker = 'w', lease_until = now() + interval '1 hour' where id = %s", [first.id],
        )  # fmt: skip
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: app.sync.claim_job(second.id))
            _until_somebody_waits(place)
            connection.commit()
            claim = answer.result()
    states = _states(app, [first, second])
    return None if claim is None and states == ["running", "blocked"] else f"both: {states}"


def a_running_sibling_is_not_overtaken(place: Place) -> str | None:
    app = place.apps(1)[0]
    first, second = _put(app, slot="s"), _put(app, slot="s")
    app.sync.claim_job(first.id)
    claim = app.sync.claim_job(second.id)
    return None if claim is None else f"both: {_states(app, [first, second])}"


def a_slot_runs_as_many_as_it_may(place: Place) -> str | None:
    app = place.apps(1)[0]
    for _ in range(4):
        _put(app, slot="s", slot_limit=2)
    claims = app.sync.claim(limit=10)
    strict = _put(app, slot="s", slot_limit=1, priority=9)
    claims[0].succeed()
    more = app.sync.claim(limit=10)
    if len(claims) != 2 or more:
        return f"beside each other: {len(claims)}, and then {len(more)} beside one that runs"
    claims[1].succeed()
    [alone] = app.sync.claim(limit=10)
    return None if alone.job.id == strict.id else "the strict one was passed over"


def an_urgent_sibling_takes_the_turn(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = [_put(app, slot="s"), _put(app, slot="s", priority=5)]
    states = _states(app, jobs)
    return None if states == ["blocked", "ready"] else f"became {states}"


def a_train_goes_on_while_producers_come(place: Place, *, jobs: int = 30) -> str | None:
    """Heads end at the same moment as others are put behind them: nobody is forgotten."""
    app, other = place.apps(2)
    done = threading.Event()
    order: list[Any] = []

    def produce() -> None:
        for _ in range(jobs):
            _put(other, train="t")
        done.set()

    def consume() -> None:
        deadline = time.monotonic() + 20
        while len(order) < jobs and time.monotonic() < deadline:
            for claim in app.sync.claim(limit=5):
                order.append(claim.job.id)
                claim.succeed()

    together(produce, consume)
    if len(order) != jobs:
        return f"stuck: {len(order)} of {jobs} jobs came"
    return None if app.sync.trains.list() == [] else "a trace was left"


def a_train_comes_in_order(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = [job.id for job in enqueue(app, 4, train="t")]
    return None if _drained(app, 4) == jobs else "order: they came in another one"


def a_train_that_must_hold_holds(place: Place) -> str | None:
    app = place.apps(1)[0]
    first, second = enqueue(app, 2, train="t", on_failed="hold")
    app.sync.claim_job(first.id).fail("broken", retry=False)
    _put(app, train="t")
    if app.sync.get(second.id).state != "blocked":
        return "it went on"
    follower = enqueue(app, 2, train="u", on_cancelled="hold")[1]
    app.sync.cancel(follower.id)
    return None if not app.sync.trains.get("u").held else "a follower held its train"


def what_an_exchange_lets_through_is_claimed_with_it(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = enqueue(app, 2, train="t")
    [claim] = app.sync.claim()
    lost, taken = exchange(app, [claim])
    return None if not lost and [job.id for job in taken] == [jobs[1].id] else f"claimed {taken}, lost {lost}"


def a_zombie_of_a_train_settles_nothing(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place, train="t"), "succeed", "stale")


def only_who_preempts_asks_others_to_stop(place: Place) -> str | None:
    app = place.apps(1)[0]
    passed, _ = _put(app, slot="s"), _put(app, slot="s", queue="other")
    age(app, 11)
    app.sync.sweep()
    claim = app.sync.claim_job(passed.id)  # its turn was passed on, and all others are before it
    _put(app, slot="s")
    claim.release()
    if app.sync.get(claim.job.id).state == "cancelled":
        return "asked to stop by one who only waits"
    [claim] = app.sync.claim(limit=5)
    newest = _put(app, slot="s", slot_policy="preempt")
    claim.release()
    states = _states(app, [claim.job, newest])
    return None if states == ["cancelled", "ready"] else f"became {states}"


# -- Upkeep -------------------------------------------------------------------------------------


def upkeep_waits_for_no_gate(place: Place, works: Sequence[str] = ("dead", "due", "whole")) -> str | None:
    """A producer's open transaction has a gate: the others are seen to."""
    app, other = place.apps(2)
    free = _free_work(app)
    for name in works:
        _put(app, train=name)
    with transaction(place) as connection:
        app.sync.enqueue(*(NewJob("work", train=name) for name in works), within=connection)
        done = answers_within(AT_ONCE_SECONDS, other.sync.sweep, then=connection.rollback)
    if not done:
        return "waited"
    return free()


def _free_work(app: Dibs) -> Callable[[], str | None]:
    corpse = _put(app, train="corpse")
    app.sync.claim_job(corpse.id, lease=0.1)
    held = _put(app, train="whole")
    app.sync.claim_job(held.id, lease=0.1)
    age(app, 1)
    return lambda: None if app.sync.get(corpse.id).state == "ready" else "the free one was not seen to"


def a_corpse_lets_the_next_one_go(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = [_put(app, slot="s", max_attempts=1), _put(app, slot="s")]
    app.sync.claim_job(jobs[0].id, lease=60)
    age(app, 61)
    app.sync.sweep()
    states = _states(app, jobs)
    return None if states == ["failed", "ready"] else f"became {states}"


def a_turn_that_nobody_takes_goes_round(place: Place) -> str | None:
    app = place.apps(1)[0]
    seen = _turns_that_nobody_takes(app, [_put(app, slot="s", queue=queue) for queue in "abc"])
    return None if seen == [0, 1, 2, 0] else f"turns went {seen}"


def a_turn_is_not_passed_on_to_its_like(place: Place) -> str | None:
    app = place.apps(1)[0]
    seen = _turns_that_nobody_takes(app, [_put(app, slot="s") for _ in range(3)])
    return None if seen == [0, 0, 0, 0] else f"turns went {seen}"


def _turns_that_nobody_takes(app: Dibs, jobs: list[Any]) -> list[int]:
    seen = []
    for _ in range(4):
        seen.append(_states(app, jobs).index("ready"))
        age(app, 11)
        app.sync.sweep()
    return seen


def a_job_retried_behind_others_waits(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = enqueue(app, 3, train="t")
    app.sync.claim_job(jobs[0].id).fail("broken", retry=False)
    app.sync.retry(jobs[0].id)
    order = _drained(app, 3)
    return None if order == [job.id for job in [*jobs[1:], jobs[0]]] else "order: it did not go to the end"


def pruning_spares_who_is_needed(place: Place) -> str | None:
    app = place.apps(1)[0]
    old = [first_id_at(1_000_000_000_000 + n) for n in range(3)]  # pruned by their age, of which ids tell
    [held] = app.sync.enqueue(NewJob("work", train="t", on_failed="hold", id=old[0]))
    app.sync.claim_job(held.id).fail("broken", retry=False)
    [key] = app.sync.enqueue(NewJob("work", unique="key", unique_for=3600, id=old[1]))
    app.sync.claim_job(key.id).succeed()
    [done] = app.sync.enqueue(NewJob("work", id=old[2]))
    app.sync.claim_job(done.id).succeed()
    age(app, 600)
    app.sync.prune(60)
    states = _states(app, [held, key, done])
    return None if states == ["failed", "succeeded", "gone"] else f"became {states}"


def a_ready_row_that_is_locked_is_waited_for(place: Place) -> str | None:
    """Somebody has the slot's ready job locked: whoever judges waits, and nobody else is let through."""
    app = place.apps(1)[0]
    first = _put(app, slot="s")
    with locked(place, first.id) as free:
        early = answers_within(0.3, lambda: _put(app, slot="s", priority=5), then=free)
    return "judged too early" if early else None
