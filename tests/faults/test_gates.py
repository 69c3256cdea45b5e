"""Trains and slots on PostgreSQL: races with slow producers and rivals, and statements broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from dibs import Dibs, NewJob
from dibs.engines import retries
from dibs.engines.hints import hint_of
from dibs.engines.postgresql import enqueue as postgresql_enqueue
from dibs.engines.postgresql import gates as postgresql_gates
from dibs.operations.questions import STOP_HINT
from tests.faults.test_mutants import ENOUGH_TRIES, FENCE, LOCK, Mutant, Places
from tests.support import fault_cases
from tests.support import gate_fault_cases as gates
from tests.support.broken_rules import break_rule
from tests.support.fault_stores import Place, exchange

HEAD = "where train.state = 'blocked'"

MUTANTS = [
    Mutant("places are not counted", "lock_gates", "gate.last_position + excluded.last_position",
           "excluded.last_position", gates.producers_make_one_head, "places|heads"),
    Mutant("a gate is not locked", "lock_gates", "do update\nset last_position = gate.last_position + "
           "excluded.last_position", "do nothing", gates.producers_make_one_head, "KeyError"),
    Mutant("an old snapshot is believed", "look_at_members", "for update", "",
           gates.an_old_snapshot_is_told_so, "stuck"),
    Mutant("a claim under way is overtaken", "slots", "for update", "",
           gates.who_overtakes_waits_for_a_claim_under_way, "both"),
    Mutant("a head is not opened", "open_trains", HEAD, "where train.state = 'ready'",
           gates.a_train_comes_in_order, "stuck"),
    Mutant("any job of a train is its head", "open_trains", "order by job.position",
           "order by job.position desc", gates.a_train_comes_in_order, ""),
    Mutant("an empty train is kept", "open_trains", "train.id is null", "false",
           gates.a_train_goes_on_while_producers_come, "trace"),
    Mutant("a held train goes on", "open_trains", f"{HEAD} and train.held_by is null",
           HEAD, gates.a_train_that_must_hold_holds, "went on"),
    Mutant("a follower holds its train", "open_trains",
           "when head.position is null or head.position > ended.position", "when true",
           gates.a_train_that_must_hold_holds, "follower"),
    Mutant("a slot counts nobody who runs", "slots", "job.state = 'running'", "job.state = 'nobody'",
           gates.a_slot_runs_as_many_as_it_may, "beside"),
    Mutant("who is ready keeps its turn", "open_slots", "set state = 'blocked'", "set state = state",
           gates.an_urgent_sibling_takes_the_turn, "became"),
    Mutant("settling at a gate is not fenced", "settle_at_gates", FENCE, "",
           gates.a_zombie_of_a_train_settles_nothing, "changed"),
    Mutant("a key that lasts is given away", "forget_kept_keys",
           "finished.unique_until > statement_timestamp()", "false",
           gates.a_key_that_lasts_is_not_given_away, "given away"),
    Mutant("who runs is superseded", "supersede", "'blocked', 'ready')", "'blocked', 'ready', 'running')",
           gates.a_replacing_job_spares_who_runs, "became"),
    Mutant("upkeep waits for gates", "lock_free_gates", LOCK, "for update",
           gates.upkeep_waits_for_no_gate, "waited"),
    Mutant("mending waits for gates", "gates_after", LOCK, "for update",
           gates.upkeep_waits_for_no_gate, "waited"),
    Mutant("the dead keep their slot", "sweep_at_gates", "job.slot = any", "false and job.slot = any",
           gates.a_corpse_lets_the_next_one_go, "became"),
    Mutant("turns are not passed on", "end_offers", "gate.offer_ends <= statement_timestamp()", "false",
           gates.a_turn_that_nobody_takes_goes_round, "turns went"),
    Mutant("a retried job keeps its place", "place", "where job.id = given.id", "where false",
           gates.a_job_retried_behind_others_waits, "at once"),
    Mutant("who holds a train is pruned", "prune", "gate.held_by = old.id", "false",
           gates.pruning_spares_who_is_needed, "became"),
    Mutant("who keeps a key is pruned", "prune", "old.unique_until <= statement_timestamp()", "true",
           gates.pruning_spares_who_is_needed, "became"),
]  # fmt: skip


@dataclass(frozen=True)
class RuleMutant:
    """A rule of jobs/gates.py, broken for PostgreSQL, and the scene that must notice."""

    name: str
    text: str
    instead: str
    scene: gates.Scene
    symptom: str


RULES = [
    RuleMutant("overtaking counts nobody", "for job in jobs if job.state == JobState.running]",
               "for job in ()]", gates.a_running_sibling_is_not_overtaken, "both"),
    RuleMutant("no train holds", 'return policy == "hold"', "return False",
               gates.a_train_that_must_hold_holds, "went on"),
    RuleMutant("a slot's strictest limit is not heeded", "min([limit, *going])", "2",
               gates.a_slot_runs_as_many_as_it_may, "beside"),
    RuleMutant("who was ready stays so",
               "sent_back=[job.id for job in waiting if job.state == JobState.ready]", "sent_back=[]",
               gates.an_urgent_sibling_takes_the_turn, "became"),
    RuleMutant("everybody pre-empts", "waiting[0].position < 0", "waiting[0].position <= 0",
               gates.only_who_preempts_asks_others_to_stop, "only waits"),
    RuleMutant("nobody is asked to stop", "waiting[0].position < 0", "False",
               gates.only_who_preempts_asks_others_to_stop, "became"),
    RuleMutant("a dropped job stays", "if fits(limit, _limits(members)):", "if True:",
               gates.a_dropped_job_leaves_nothing, "stored"),
    RuleMutant("nobody gives way", "if any((job.queue, job.kind) != other for other in waiting)", "if False",
               gates.a_turn_that_nobody_takes_goes_round, "turns went"),
    RuleMutant("turns are passed on to their like",
               "if any((job.queue, job.kind) != other for other in waiting)", "if waiting",
               gates.a_turn_is_not_passed_on_to_its_like, "turns went"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", [pytest.param(one, id=one.name) for one in RULES])
def test_a_broken_rule_is_caught(
    postgres: Place, mutant: RuleMutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch, mutant.text, mutant.instead, postgresql_gates, postgresql_enqueue)

    wrong = fault_cases.run_scene(mutant.scene, postgres)

    assert wrong is not None, f"{mutant.name}: nobody noticed"
    assert re.search(mutant.symptom, wrong)


@pytest.fixture
def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.01, 0.02))


@pytest.mark.usefixtures("give_up_soon")
@pytest.mark.parametrize("mutant", [pytest.param(one, id=one.name) for one in MUTANTS])
def test_a_mutant_of_the_gates_is_caught(places: Places, mutant: Mutant) -> None:
    wrong = None
    for _ in range(ENOUGH_TRIES):
        place = places("postgresql")
        place.broken_by = mutant.hurt
        if (wrong := fault_cases.run_scene(mutant.scene, place)) is not None:
            break

    assert wrong is not None, f"{mutant.name}: nobody noticed"
    assert re.search(mutant.symptom, wrong)


SCENES = [
    *dict.fromkeys(mutant.scene for mutant in (*MUTANTS, *RULES)),
    gates.a_ready_row_that_is_locked_is_waited_for,
    gates.what_an_exchange_lets_through_is_claimed_with_it,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_gates_as_they_are_pass_the_same_scene(postgres: Place, scene: gates.Scene) -> None:
    assert fault_cases.run_scene(scene, postgres) is None


def test_an_enqueue_in_an_old_snapshot_fails_also_when_it_is_serializable(postgres: Place) -> None:
    assert gates.an_old_snapshot_is_told_so(postgres, "serializable") is None


@pytest.mark.parametrize("broken", [False, True], ids=["as-it-is", "mutant"])
def test_many_trains_are_enqueued_to_in_any_order_without_a_deadlock(
    postgres: Place, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlocks = _count_deadlocks(monkeypatch)
    if broken:
        postgres.broken_by = _lock_in_any_order

    for _ in range(30 if broken else 3):
        assert gates.many_trains_in_any_order_have_a_head_each(postgres) is None
        if deadlocks:
            break

    assert bool(deadlocks) == broken, f"{len(deadlocks)} deadlocks"


def _lock_in_any_order(app: Dibs) -> None:
    Mutant("", "lock_gates", 'order by given.sort collate "C", given.name collate "C"', "order by random()",
           gates.producers_make_one_head).hurt(app)  # fmt: skip


def _count_deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    met: list[BaseException] = []
    pause: Callable[..., float] = retries.Tries.pause

    def noted(self: retries.Tries, again: retries.TryAgain) -> float:
        if getattr(again.cause, "sqlstate", None) == "40P01":
            met.append(again.cause)
        return pause(self, again)

    monkeypatch.setattr(retries.Tries, "pause", noted)
    return met


# -- Announcements ------------------------------------------------------------------------------


@pytest.fixture
def heard(postgres: Place) -> Callable[[], list[str]]:
    """What was announced since the last time, up to a word of our own."""
    listener = postgres.until_closed(psycopg.connect(postgres.url, autocommit=True))
    listener.execute("listen dibs_wake")

    def hear() -> list[str]:
        postgres.sql("select pg_notify('dibs_wake', 'that is all')")
        said: list[str] = []
        for notify in listener.notifies(timeout=30):
            if notify.payload == "that is all":
                return said
            said.append(notify.payload)
        raise AssertionError("nothing was heard")

    return hear


@pytest.mark.parametrize("gate", ["train", "slot"])
def test_who_is_let_through_is_announced(postgres: Place, heard: Callable[[], list[str]], gate: str) -> None:
    app = postgres.app()
    first, _ = (app.sync.enqueue(NewJob("work", queue="mail", **{gate: "g"}))[0] for _ in range(2))
    claim = app.sync.claim_job(first.id)
    heard()

    claim.succeed()

    assert heard() == [hint_of("mail", ["work"])]


def test_who_is_asked_to_make_room_is_told_at_once(postgres: Place, heard: Callable[[], list[str]]) -> None:
    app = postgres.app()
    app.sync.claim_job(app.sync.enqueue(NewJob("work", slot="s"))[0].id, worker="pod-a")
    heard()

    app.sync.enqueue(NewJob("work", slot="s", slot_policy="preempt"))

    assert heard() == [STOP_HINT + "pod-a"]


def test_what_an_exchange_claims_itself_is_announced_to_nobody(
    postgres: Place, heard: Callable[[], list[str]]
) -> None:
    app = postgres.app()
    app.sync.enqueue(*(NewJob("work", train="t") for _ in range(2)))
    claims = app.sync.claim()
    heard()

    _, taken = exchange(app, claims)

    assert len(taken) == 1
    assert heard() == []
