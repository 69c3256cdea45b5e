"""Trains, slots, lasting keys and pipelines are on every engine what they are in memory."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from dibs.engines.sqlite import gates as sqlite_gates
from tests.model.agreement import check_agreement, only
from tests.model.beside import RedisStore, SqlStore
from tests.model.gated_agreement import GatedAgreement
from tests.support.broken_rules import break_rule


def test_gates_of_sqlite_do_what_those_of_memory_do(sqlite: SqlStore) -> None:
    check_agreement(sqlite, GatedAgreement, examples=30)


def test_gates_of_postgresql_do_what_those_of_memory_do(postgres: SqlStore) -> None:
    check_agreement(postgres, GatedAgreement, examples=10)


def test_gates_of_mariadb_do_what_those_of_memory_do(mariadb_beside: SqlStore) -> None:
    check_agreement(mariadb_beside, GatedAgreement, examples=6)


def test_gates_of_mysql_do_what_those_of_memory_do(mysql_beside: SqlStore) -> None:
    check_agreement(mysql_beside, GatedAgreement, examples=4)


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
    "a head is not let through": ("open_head", "where id = :id", "where false"),
    "any job of a train is its head": ("train", "order by job.position", "order by job.position desc"),
    "a slot counts nobody who runs": ("slot", "('running', 'ready')", "('ready')"),
    "turns are not passed on": ("offers_over", "where gate.offer_ends", "where false and gate.offer_ends"),
    "an empty gate is kept": ("forget_gate", "and held_by is null", "and false"),
    "turns go by age alone": (
        "slot",
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


# The rules themselves, broken for SQLite alone: memory keeps them.
LOST_IN_PYTHON = {
    "a waiting head is not let through": ("head.state == JobState.blocked", "False"),
    "a held train goes on": ("held_by is None and head is not None and", "head is not None and"),
    "no train holds": ('return policy == "hold"', "return False"),
    "a follower holds its train": ("(head is None or first.position < head.position)", "True"),
    "the strictest limit does not count": ("min([limit, *going])", "limit"),
    "who is ready keeps its turn": (
        "sent_back=[job.id for job in waiting if job.state == JobState.ready]",
        "sent_back=[]",
    ),
    "urgency does not count": ("return job.turn\n", "return job.position, job.run_at, job.id\n"),
    "nobody pre-empts": ("waiting[0].position < 0", "False"),
    "nobody is dropped": ("if fits(limit, _limits(members)):", "if True:"),
    "every offer is repeated": ("not (has_offer or mends)", "True"),
    "nobody gives way": ("if any((job.queue, job.kind) != other for other in waiting)", "if False"),
}


@pytest.mark.parametrize(("text", "instead"), LOST_IN_PYTHON.values(), ids=LOST_IN_PYTHON)
def test_a_store_that_breaks_a_rule_no_longer_agrees(
    sqlite: SqlStore, monkeypatch: pytest.MonkeyPatch, text: str, instead: str
) -> None:
    break_rule(monkeypatch, text, instead, sqlite_gates)

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


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gates_of_mysql_do_what_those_of_memory_do_at_length(mysql_beside: SqlStore) -> None:
    check_agreement(mysql_beside, GatedAgreement, examples=250, derandomize=False)
