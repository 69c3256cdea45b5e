"""Which cases of the full product `make test` runs; all others get the mark `long`, for `make test-long`.

A test that takes an engine, a face or a connection exists once for each combination of them. By default:

1. Every test runs on every engine, in one face only. Which one changes from engine to engine and from test
   to test, by a checksum of the test's name: most tests run in both faces, and each engine in both.
   The same goes for the connections that a caller may have open (`within=`), for SQLAlchemy's drivers, and
   for the ways in which a worker may be late.
2. On each engine the first such test of each file, with the first of its other parameters, runs in all
   of them.
3. MariaDB and MySQL are given the same statements and share the tests that take either: each runs on one of
   the two, by the same checksum, with all of its other parameters. On both run the tests of `ON_CLUSTER`, one
   per question that dibs asks of a store, the first test of each file, and everything in tests/faults.
4. The Redis Cluster is Redis with other routes to it. There run the tests of `ON_CLUSTER`, one per question
   that dibs asks of a store, and outside of the conformance suite the first test of each file; all of them
   if the run is about the cluster alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import pytest

ENGINES = ["memory", "sqlite", "postgresql", "mariadb", "mysql", "redis", "redis-cluster"]

# The engines that share.
MYSQLS = ("mariadb", "mysql")

CLUSTER = "redis-cluster"

# Fixtures that lead to the server of an engine and are not named after it.
OTHER_FIXTURES = {"postgresql": ("postgres",), "mariadb": ("galera",), "redis": ("redis_server", "on_redis")}

# Parameters of which one value stands for the others; a driver of SQLAlchemy's also names its engine.
WAYS = ("face", "colour", "yours", "driver", "late")

# The question, and the test that asks it on the cluster; its fixture sees to it that the test does.
ON_CLUSTER = {
    "age": "test_a_due_job_is_claimed_though_nobody_swept",
    "arrive": "test_a_later_claim_has_a_greater_token_also_in_another_store",
    "backlog": "test_a_backlog_counts_what_is_ready_and_since_when",
    "traffic": "test_traffic_counts_new_and_failed_jobs_of_each_queue",
    "cancel": "test_a_cancelled_job_frees_its_unique_key",
    "claim": "test_fewer_are_claimed_when_there_are_no_more",
    "claim_job": "test_the_wanted_job_is_claimed_whatever_waits_before_it",
    "counts": "test_an_empty_store_counts_nothing_in_every_state",
    "current": "test_whoever_lets_go_of_a_slot_lets_the_next_one_go",
    "delete": "test_a_deleted_job_frees_its_unique_key",
    "delete_schedule": "test_a_deleted_schedule_ticks_no_more_and_its_jobs_stay",
    "depart": "test_more_than_one_batch_is_moved_whole",
    "departed": "test_more_than_one_batch_is_moved_whole",
    "echo": "test_an_echo_is_answered_on_every_store",
    "enqueue": "test_an_enqueued_job_is_ready_and_new",
    "enqueue_pipeline": "test_the_tree_of_a_pipeline_shows_who_follows_whom",
    "enqueue_tick": "test_schedules_do_not_know_each_other",
    "examine": "test_facts_are_text_and_there_is_one_of_each",
    "exchange": "test_no_more_than_the_limit_are_claimed_in_order",
    "explain": "test_a_running_job_says_where",
    "find": "test_jobs_are_found_by_state",
    "search": "test_a_search_finds_what_all_of_its_words_say",
    "count": "test_what_matches_is_counted_up_to_a_cap",
    "add_to_minute": "test_what_several_workers_count_adds_up",
    "forget_minutes": "test_old_counts_are_forgotten",
    "refuse": "test_a_late_write_is_kept_with_the_job",
    "refusals": "test_a_late_write_is_kept_with_the_job",
    "forget_refusals": "test_they_go_with_their_job",
    "minutes": "test_what_several_workers_count_adds_up",
    "find_oldest": "test_more_than_a_page_is_retried",
    "gates": "test_trains_are_listed_by_name_page_by_page",
    "get": "test_a_job_is_found_by_its_id_in_every_state",
    "give_back": "test_a_job_on_its_way_is_for_nobody_and_can_be_given_back",
    "glance": "test_what_others_did_is_told_too",
    "glance_at_queue": "test_a_queue_is_watched_with_the_jobs_that_come_and_go",
    "identify": "test_a_store_is_not_moved_to_itself",
    "landed": "test_more_than_one_batch_is_moved_whole",
    "leave": "test_a_worker_that_left_is_none",
    "mend": "test_a_train_whose_head_was_deleted_by_hand_goes_on",
    "newest_pipelines": "test_pipelines_are_listed_newest_first",
    "now": "test_times_are_the_stores_and_have_a_zone",
    "parents": "test_the_results_of_parents_are_handed_on",
    "pipeline_counts": "test_pipelines_are_listed_newest_first",
    "pipelines": "test_a_pipeline_tells_how_far_it_has_come",
    "progress": "test_progress_is_noted_with_its_message",
    "prune": "test_jobs_that_finished_long_ago_are_removed",
    "queues": "test_a_queue_that_has_a_limit_is_resumed_and_keeps_it",
    "ready_lines": "test_ready_lines_are_the_pairs_that_could_be_claimed",
    "recover": "test_a_job_whose_lease_is_long_over_is_ready_with_a_fresh_budget",
    "release_train": "test_a_released_train_goes_on_with_the_next",
    "renew": "test_several_claims_are_renewed_in_one_question",
    "retry": "test_a_scheduled_job_is_due_now",
    "schedules": "test_schedules_do_not_know_each_other",
    "set_queue": "test_a_paused_queue_gives_nothing",
    "set_schedule": "test_a_worker_that_knows_no_kind_serves_it",
    "settle": "test_a_result_comes_back_as_it_was",
    "settled": "test_the_winning_settle_repeated_is_a_success_and_changes_nothing",
    "stage": "test_more_than_a_batch_of_due_jobs_is_staged",
    "sweep": "test_more_than_a_batch_of_due_jobs_is_staged",
    "tick": "test_a_worker_that_learned_a_kind_since_it_came_knows_it",
    "upcoming": "test_a_job_that_is_gone_before_its_time_is_not_due",
    "update": "test_a_ready_job_goes_before_others_with_a_higher_priority",
    "workers": "test_a_worker_that_learned_a_kind_since_it_came_knows_it",
}

all_tests = pytest.StashKey[list[pytest.Item]]()
"""All that a run has found, also what it was not asked for."""


class Case(NamedTuple):
    """A test with its parameters: the engine, the way in, and whatever else it takes."""

    file: str
    test: str
    engine: str
    way: Hashable
    rest: Hashable  # the same objects for each engine and way

    @property
    def name(self) -> str:
        return f"{self.file}::{self.test}"


def case_of(item: Any) -> Case | None:
    """Return the case of an item of pytest's; None if it takes no parameters."""
    if (spec := getattr(item, "callspec", None)) is None:
        return None
    ways = {name for name in WAYS if name in spec.params and not _is_own_driver(name, spec.params[name])}
    rest = [value for name, value in sorted(spec.params.items()) if name not in ways | {"engine"}]
    way = tuple((name, str(spec.params[name])) for name in WAYS if name in ways)
    file, test = f"{item.path.parent.name}/{item.path.name}", item.originalname
    return Case(file, test, _engine(spec.params), way, tuple(map(id, rest)))


def _is_own_driver(name: str, value: object) -> bool:
    """Whether a test means something of its own by `driver`."""
    return name == "driver" and "+" not in str(value)


def _engine(params: dict[str, Any]) -> str:
    return str(params.get("engine") or str(params.get("driver", "")).partition("+")[0])


def is_for(item: Any, engine: str) -> bool:
    """Whether a test is about this engine: by its parameters, else by its fixtures or its name."""
    if (case := case_of(item)) is not None and case.engine:
        return case.engine == engine
    wanted = {engine, f"own_{engine}", *OTHER_FIXTURES.get(engine, ())}
    return not wanted.isdisjoint(item.fixturenames) or f"_{engine}_" in item.originalname


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Mark as `long` what a default run leaves out."""
    cases = [(item, case) for item in items if (case := case_of(item)) is not None]
    kept = default_cases([case for _, case in cases])
    for item, case in cases:
        if case not in kept:
            item.add_marker(pytest.mark.long)


def default_cases(cases: list[Case]) -> set[Case]:
    """Return the cases of a default run, by the rules above."""
    tests: dict[tuple[str, str], dict[Hashable, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        tests[case.name, case.engine][case.rest].append(case)
    first = _first(case for alike in tests.values() for group in alike.values() for case in group[1:])
    first_on_cluster = _first(case for case in cases if case.engine == CLUSTER)
    left_out = _left_to_the_twin(cases)
    alone = all(case.engine == CLUSTER for case in cases)
    kept: set[Case] = set()
    for (name, engine), alike in tests.items():
        start = _start(name, engine)
        for number, group in enumerate(alike.values()):
            if (name, group[0].rest, engine) in left_out:
                continue
            if alone or engine != CLUSTER or _stands_for_others(group[0], first_on_cluster):
                is_first = number == 0 and name == first.get((group[0].file, engine))
                kept.update(group if is_first else [group[(start + number) % len(group)]])
    return kept


def _first(cases: Iterable[Case]) -> dict[tuple[str, str], str]:
    """Return the first of these tests in each file, for each engine."""
    found: dict[tuple[str, str], str] = {}
    for case in cases:
        found.setdefault((case.file, case.engine), case.name)
    return found


def _start(name: str, engine: str) -> int:
    """Return a number that is the same in every process, and another one on the next engine."""
    return crc32(name.encode()) + (ENGINES.index(engine) if engine in ENGINES else len(engine))


def _left_to_the_twin(cases: Sequence[Case]) -> set[tuple[str, Hashable, str]]:
    """Return the tests, with the one of MariaDB and MySQL that leaves it to the other."""
    first = set(_first(cases).values())
    tests: dict[tuple[str, Hashable], set[str]] = defaultdict(set)
    for case in cases:
        on_both = case.test in ON_CLUSTER.values() or case.file.startswith("faults/") or case.name in first
        tests[case.name, case.rest].update(() if on_both else (case.engine,))
    return {
        (name, rest, MYSQLS[crc32(name.encode()) // 2 % 2])
        for (name, rest), on in tests.items()
        if on.issuperset(MYSQLS)
    }


def _stands_for_others(case: Case, first: dict[tuple[str, str], str]) -> bool:
    if case.file.startswith("conformance/"):
        return case.test in ON_CLUSTER.values()
    return case.name == first[case.file, CLUSTER]
