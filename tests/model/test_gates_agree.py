"""Trains, slots, lasting keys and pipelines are on every engine what they are in memory."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from tests.model.agreement import check_agreement, only
from tests.model.beside import RedisStore, SqlStore
from tests.model.gated_agreement import GatedAgreement


def test_gates_of_sqlite_do_what_those_of_memory_do(sqlite: SqlStore) -> None:
    check_agreement(sqlite, GatedAgreement, examples=30)


def test_gates_of_postgresql_do_what_those_of_memory_do(postgres: SqlStore) -> None:
    check_agreement(postgres, GatedAgreement, examples=10)


def test_gates_of_mariadb_do_what_those_of_memory_do(mariadb_beside: SqlStore) -> None:
    check_agreement(mariadb_beside, GatedAgreement, examples=8)


def test_gates_of_redis_do_what_those_of_memory_do(on_redis: RedisStore) -> None:
    check_agreement(on_redis, GatedAgreement, examples=12)


AT_GATES = only(
    GatedAgreement,
    *("enqueue_at_one_gate", "end_head", "start_in_slot", "settle", "cancel", "retry", "delete"),
    *("release_train", "sweep_when_offers_are_over", "act_on_many_at_a_gate"),
    *("enqueue_pipeline", "end_step", "act_on_pipeline"),
)

# Of the statements that are broken one by one in tests/faults, those whose rule can be seen without a race.
LOST_RULES = {
    "a head is not let through": ("open_train", "and state = 'blocked'", "and state = 'ready'"),
    "any job of a train is its head": ("open_train", "order by head.position", "order by head.position desc"),
    "a held train goes on": ("open_train", "gate.name = :name and gate.held_by is not null", "false"),
    "a slot counts nobody who runs": ("slot_running", "job.state = 'running'", "job.state = 'nobody'"),
    "turns are not passed on": ("offers_over", "where gate.offer_ends", "where false and gate.offer_ends"),
    "no train holds": ("hold_train", "and held_by is null", "and false"),
    "an empty gate is kept": ("forget_gate", "and held_by is null", "and false"),
    "a follower holds its train": ("hold_train", "ahead.position < :position", "false"),
    "turns go by age alone": (
        "slot_line",
        "order by job.position, job.priority desc, ",
        "order by job.position, ",
    ),
    "any parent lets its child go": (
        "siblings_met",
        "other.child = edge.child",
        "other.child = edge.child and other.parent = edge.parent",
    ),
}


@pytest.mark.parametrize(("block", "text", "instead"), LOST_RULES.values(), ids=LOST_RULES)
def test_a_store_whose_gates_lost_a_rule_no_longer_agrees(
    sqlite: SqlStore, block: str, text: str, instead: str
) -> None:
    sqlite.take_out(block, text, instead)

    with pytest.raises(AssertionError):
        check_agreement(sqlite, AT_GATES, examples=500, phases=[Phase.generate])


LOST_IN_LUA = {
    "a new job of a train is ready": (
        "enqueue",
        "change(job, 'state', join(job, new[SLOT_POLICY]))",
        "join(job) change(job, 'state', 'ready')",
    ),
    "a slot's limit is not looked at": ("enqueue", "going >= least", "going >= 99"),
    "the end of a head opens nothing": ("settle", "gates().end_at_gate(job, state)", ""),
}


@pytest.mark.parametrize(("question", "text", "instead"), LOST_IN_LUA.values(), ids=LOST_IN_LUA)
def test_a_script_whose_gates_lost_a_rule_no_longer_agrees(
    on_redis: RedisStore, question: str, text: str, instead: str
) -> None:
    on_redis.take_out(question, text, instead)

    with pytest.raises(AssertionError):
        check_agreement(on_redis, AT_GATES, examples=500, phases=[Phase.generate])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gates_of_sqlite_do_what_those_of_memory_do_at_length(sqlite: SqlStore) -> None:
    check_agreement(sqlite, GatedAgreement, examples=1000, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gates_of_redis_do_what_those_of_memory_do_at_length(on_redis: RedisStore) -> None:
    check_agreement(on_redis, GatedAgreement, examples=500, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gates_of_postgresql_do_what_those_of_memory_do_at_length(postgres: SqlStore) -> None:
    check_agreement(postgres, GatedAgreement, examples=400, derandomize=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gates_of_mariadb_do_what_those_of_memory_do_at_length(mariadb_beside: SqlStore) -> None:
    check_agreement(mariadb_beside, GatedAgreement, examples=400, derandomize=False)
