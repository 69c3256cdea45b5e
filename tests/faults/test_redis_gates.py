"""Trains, slots and unique keys on Redis: many at once, deletions by hand, and rules broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from dibs import Dibs, Job, NewJob
from tests.support.fault_stores import Place, exchange, together
from tests.support.internals import age
from tests.support.redis_checks import astray, break_script, misplaced


@pytest.fixture
def client(on_redis: Place) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(on_redis.url, decode_responses=True)) as client:
        yield client


# -- Many at once -------------------------------------------------------------------------------

PRODUCERS = 8


def at_once(place: Place, *works: Callable[[Dibs], Any]) -> list[Any]:
    """Each with an app, and so with connections, of its own."""
    apps = [place.app() for _ in works]
    return together(*[lambda work=work, app=app: work(app) for work, app in zip(works, apps, strict=True)])


def put(many: int = 5, **options: Any) -> Callable[[Dibs], list[Job]]:
    return lambda app: [app.sync.enqueue(NewJob("work", **options))[0] for _ in range(many)]


def drain(app: Dibs) -> list[Any]:
    """Ids in the order of their tokens, as one claimer takes them."""
    claims = []
    while found := app.sync.claim(limit=50):
        claims += found
        for claim in found:
            claim.succeed()
    return [claim.job.id for claim in claims]


def test_producers_who_meet_on_a_train_make_one_head(on_redis: Place, client: redis.Redis) -> None:
    answers = at_once(on_redis, *[put(train="t")] * PRODUCERS)

    states = [job.state for jobs in answers for job in jobs]
    assert states.count("ready") == 1
    assert (astray(client), misplaced(client)) == ([], [])
    order = drain(on_redis.app())
    assert len(order) == len(set(order)) == 5 * PRODUCERS
    for jobs in answers:
        assert [id for id in order if id in {job.id for job in jobs}] == [job.id for job in jobs]


@pytest.mark.parametrize("policy", ["wait", "replace", "preempt", "drop"])
def test_producers_who_meet_in_a_slot_let_one_go(on_redis: Place, client: redis.Redis, policy: str) -> None:
    at_once(on_redis, *[put(slot="s", slot_policy=policy)] * PRODUCERS)

    counts = on_redis.app().sync.counts()
    assert counts["ready"] == 1
    assert counts["cancelled"] == (5 * PRODUCERS - 1 if policy == "replace" else 0)
    assert sum(counts.values()) == (1 if policy == "drop" else 5 * PRODUCERS)
    assert (astray(client), misplaced(client)) == ([], [])


@pytest.mark.parametrize("options", [{}, {"unique_for": 60}, {"on_conflict": "replace"}], ids=repr)
def test_producers_who_meet_at_a_key_store_one_job(
    on_redis: Place, client: redis.Redis, options: dict[str, Any]
) -> None:
    answers = at_once(on_redis, *[put(unique="key", **options)] * PRODUCERS)

    jobs = [job for each in answers for job in each]
    assert len({job.id for job in jobs}) == 1
    assert sum(job.is_new for job in jobs) == 1
    assert misplaced(client) == []


def test_workers_and_producers_at_the_same_gates_never_run_two(on_redis: Place, client: redis.Redis) -> None:
    """Check at each claim whether another job of its train or slot is running; jobs fail and come back."""
    seen: list[int] = []

    def work(app: Dibs) -> None:
        for _ in range(40):
            for claim in app.sync.claim(limit=3, lease=60):
                others = app.sync.find(state="running", train=claim.job.train, slot=claim.job.slot)
                seen.append(len([job for job in others if (job.train or job.slot)]))
                [claim.succeed, claim.release, lambda claim=claim: claim.fail("broken")][len(seen) % 3]()

    def produce(app: Dibs) -> None:
        for number in range(20):
            app.sync.enqueue(NewJob("work", train=f"t{number % 2}"), NewJob("work", slot=f"s{number % 2}"))

    at_once(on_redis, produce, produce, *[work] * 4)

    assert len(seen) >= 20
    assert max(seen) == 1
    assert (astray(client), misplaced(client)) == ([], [])


# -- Deleted by hand ----------------------------------------------------------------------------


def test_a_lost_counter_gives_no_place_twice(on_redis: Place, client: redis.Redis) -> None:
    app = on_redis.app()
    jobs = app.sync.enqueue(*(NewJob("work", train="t") for _ in range(3)))
    app.sync.claim_job(jobs[0].id).succeed()

    assert client.delete("{dibs}:gate:train:t") == 1
    jobs += app.sync.enqueue(NewJob("work", train="t"))

    assert drain(app) == [job.id for job in jobs[1:]]


def test_more_ghosts_than_one_script_takes_away_are_gone_in_a_few_sweeps(
    on_redis: Place, client: redis.Redis
) -> None:
    app = on_redis.app()
    jobs = app.sync.enqueue(*(NewJob("work", train="t") for _ in range(1000)))
    jobs += app.sync.enqueue(*(NewJob("work", train="t") for _ in range(500)))
    client.delete(*(f"{{dibs}}:job:{job.id}" for job in jobs[:-1]))

    for _ in range(2):
        app.sync.sweep()

    assert app.sync.get(jobs[-1].id).state == "ready"
    assert app.sync.trains.get("t").length == 1


def test_a_key_whose_job_was_deleted_by_hand_is_free(on_redis: Place, client: redis.Redis) -> None:
    app = on_redis.app()
    [job] = app.sync.enqueue(NewJob("work", unique="key"))

    client.delete(f"{{dibs}}:job:{job.id}")

    assert app.sync.enqueue(NewJob("work", unique="key"))[0].is_new


# -- In one exchange ----------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [{"train": "t"}, {"slot": "s"}], ids=str)
def test_an_exchange_claims_whom_its_settlements_let_through(
    on_redis: Place, client: redis.Redis, gate: dict[str, str]
) -> None:
    """So a train costs a worker one question per job."""
    app = on_redis.app()
    first, second, _ = app.sync.enqueue(*(NewJob("work", args={"n": n}, **gate) for n in range(3)))
    claim = app.sync.claim_job(first.id)

    lost, [claimed] = exchange(app, [claim], limit=5)

    assert (lost, claimed.id, claimed.attempts, claimed.args) == ([], second.id, 1, {"n": 1})
    assert claimed.token > claim.token
    assert app.sync.get(second.id).state == "running"
    assert (astray(client), misplaced(client)) == ([], [])


@pytest.mark.parametrize("wish", [{"kinds": ["other"]}, {"queues": ["other"]}], ids=str)
def test_an_exchange_leaves_whom_it_did_not_ask_for(on_redis: Place, wish: dict[str, Any]) -> None:
    app = on_redis.app()
    first, second = app.sync.enqueue(*(NewJob("work", train="t") for _ in range(2)))

    assert exchange(app, [app.sync.claim_job(first.id)], limit=5, **wish) == ([], [])

    assert app.sync.get(second.id).state == "ready"


def test_an_exchange_respects_pauses_and_limits_at_gates(on_redis: Place) -> None:
    app = on_redis.app()
    jobs = app.sync.enqueue(*(NewJob("work", train="t", queue=name) for name in ("a", "paused", "a")))
    app.sync.pause("paused")

    assert exchange(app, [app.sync.claim_job(jobs[0].id)], limit=5) == ([], [])

    assert app.sync.get(jobs[1].id).state == "ready"


# -- Kept for a while ---------------------------------------------------------------------------


def test_jobs_that_are_kept_do_not_hide_others_from_pruning(on_redis: Place) -> None:
    app = on_redis.app()
    for number in range(3):
        app.sync.enqueue(NewJob("kept", unique=f"key-{number}", unique_for=3600), NewJob("plain"))
    for claim in app.sync.claim(limit=9):
        claim.succeed()
    age(app, 600)

    assert app.sync.prune(0) == 3
    age(app, 3600)
    assert app.sync.prune(0) == 3


# -- Rules broken on purpose --------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """What is broken, in the script of which question, and the symptom."""

    name: str
    question: str
    text: str
    instead: str
    symptom: Callable[[Dibs], str]


def _two_on_a_train(app: Dibs) -> str:
    app.sync.enqueue(*(NewJob("work", train="t") for _ in range(2)))
    return "two may go" if app.sync.counts()["ready"] > 1 else ""


def _two_in_a_slot(app: Dibs) -> str:
    app.sync.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    return "two may go" if app.sync.counts()["ready"] > 1 else ""


def _siblings_claimed_by_name(app: Dibs) -> str:
    jobs = app.sync.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    claims = [app.sync.claim_job(job.id) for job in reversed(jobs)]
    return "both run" if all(claims) else ""


def _a_head_ends(app: Dibs) -> str:
    first, second = app.sync.enqueue(*(NewJob("work", train="t") for _ in range(2)))
    app.sync.claim_job(first.id).succeed()
    return "stuck" if app.sync.get(second.id).state != "ready" else ""


def _a_head_holds(app: Dibs) -> str:
    first, second = app.sync.enqueue(*(NewJob("work", train="t", on_failed="hold") for _ in range(2)))
    app.sync.claim_job(first.id).fail("broken", retry=False)
    return "went on" if app.sync.get(second.id).state != "blocked" else ""


def _a_holder_is_pruned(app: Dibs) -> str:
    _a_head_holds(app)
    return "pruned" if app.sync.prune(0) else ""


def _a_slot_is_let_go(app: Dibs) -> str:
    first, _ = app.sync.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    app.sync.claim_job(first.id).release()
    return "no job goes" if not app.sync.claim(limit=5) else ""


def _an_old_start(app: Dibs) -> str:
    first, _ = app.sync.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    app.sync.claim_job(first.id).succeed()
    return "forgotten" if app.sync.slots.current("s") is None else ""


def _preempted(app: Dibs) -> str:
    [job] = app.sync.enqueue(NewJob("work", slot="s"))
    claim = app.sync.claim_job(job.id)
    app.sync.enqueue(NewJob("work", slot="s", slot_policy="preempt"))
    claim.release()
    return "not asked" if app.sync.get(job.id).state != "cancelled" else ""


def _superseded_while_claimed(app: Dibs) -> str:
    app.sync.enqueue(NewJob("parent"))
    [claim] = app.sync.claim()
    [waiting] = app.sync.enqueue(NewJob("work", slot="s"))
    _, claimed = exchange(app, [claim], then=[NewJob("work", slot="s", slot_policy="replace")], limit=5)
    return "claimed though it ended" if waiting.id in [job.id for job in claimed] else ""


MUTANTS = [
    Mutant(
        "an exchange claims jobs that its settlements end", "exchange",
        "return collected and collected[walk.ranks[walk.here]] == false", "return false",
        _superseded_while_claimed,
    ),
    Mutant(
        "a new job of a train is ready", "enqueue", "change(job, 'state', join(job, new[SLOT_POLICY]))",
        "join(job) change(job, 'state', 'ready')", _two_on_a_train,
    ),
    Mutant(
        "a slot's limit is not looked at", "enqueue", "going >= least", "going >= 99", _two_in_a_slot,
    ),
    Mutant(
        "a claim by name takes the place of a running sibling", "claim_job",
        "return gates().fits(", "return true or gates().fits(", _siblings_claimed_by_name,
    ),
    Mutant(
        "a claim by name leaves the ready sibling ready", "claim_job",
        "change_state(job, 'blocked')", "", _siblings_claimed_by_name,
    ),
    Mutant(
        "the end of a head opens nothing", "settle", "gates().end_at_gate(job, state)", "", _a_head_ends,
    ),
    Mutant(
        "a train is never opened", "settle", "head.state == 'blocked' and not gate.held_by", "false",
        _a_head_ends,
    ),
    Mutant(
        "a head that is to hold does not", "settle", "policy == 'hold'", "policy == 'halt'", _a_head_holds,
    ),
    Mutant(
        "the holder of a train is not kept", "settle", "return '+inf'", "return nil", _a_holder_is_pruned,
    ),
    Mutant(
        "a job that comes back to a slot does not touch its gate", "settle",
        "touch(gate_of(job))\n    return state_by_time(", "return state_by_time(", _a_slot_is_let_go,
    ),
    Mutant(
        "a start is not remembered", "settle",
        "put(store .. ':started:' .. job.slot, job.id, job.token)", "", _an_old_start,
    ),
    Mutant(
        "no job is asked to stop", "enqueue", "tonumber(first.position) < 0", "false", _preempted,
    ),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_found_out(on_redis: Place, client: redis.Redis, mutant: Mutant) -> None:
    app = on_redis.app()
    assert mutant.symptom(app) == ""
    client.flushdb()

    break_script(app, mutant.question, mutant.text, mutant.instead)

    assert mutant.symptom(app) or astray(client)
