"""A default run leaves out what others stand for, and no more than that."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from dibs.operations.questions import GATE_QUESTIONS, QUESTIONS
from tests.support.matrix import CLUSTER, ENGINES, MYSQLS, ON_CLUSTER, Case, all_tests, case_of, default_cases

OTHERS = set(ENGINES) - {CLUSTER}
CONFORMANCE = Path(__file__).parents[1] / "conformance"

# Redis applies the limits of queues in the claim itself.
NEVER_ASKED_OF_REDIS = {"claim_within_limits"}


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> list[Case]:
    """All cases of the conformance suite: as this very run found them, or else looked for."""
    names = {file.name for file in CONFORMANCE.glob("test_*.py")}
    items = [item for item in request.config.stash[all_tests] if item.path.parent == CONFORMANCE]
    if {item.path.name for item in items} != names:
        items = _collect()
    return [case for item in items if (case := case_of(item)) is not None]


def _collect() -> list[pytest.Item]:
    class Finder:
        items: Sequence[pytest.Item] = ()

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            self.items = list(items)

    finder = Finder()
    with contextlib.redirect_stdout(io.StringIO()):
        assert pytest.main(["--collect-only", "-qq", str(CONFORMANCE)], plugins=[finder]) == 0
    return list(finder.items)


def test_every_test_runs_on_each_of_its_engines(found: list[Case]) -> None:
    def runs(cases: Iterable[Case]) -> set[object]:
        """MariaDB and MySQL count as one: what either does stands for both."""
        return {
            (case.name, case.rest, "either" if case.engine in MYSQLS else case.engine)
            for case in cases
            if case.engine != CLUSTER
        }

    assert runs(default_cases(found)) == runs(found)


def test_mariadb_and_mysql_share_the_tests_and_both_answer_every_question(found: list[Case]) -> None:
    cases = default_cases(found)
    on = {engine: {case.name for case in cases if case.engine == engine} for engine in MYSQLS}
    everywhere = {case.name for case in found if case.engine == MYSQLS[0]} & {
        case.name for case in found if case.engine == MYSQLS[1]
    }

    both = on["mariadb"] & on["mysql"]

    assert set(ON_CLUSTER.values()) <= {name.partition("::")[2] for name in both}
    assert all(0.4 < len(tests & everywhere) / len(everywhere) < 0.8 for tests in on.values())


def test_each_file_runs_in_each_of_its_ways_on_every_engine(found: list[Case]) -> None:
    def ways(cases: Iterable[Case]) -> set[object]:
        return {(one.file, one.engine, dict(one.way).get("face")) for one in cases if one.engine != CLUSTER}

    assert ways(default_cases(found)) == ways(found)


def test_about_half_of_the_cases_of_an_engine_run_in_each_face(found: list[Case]) -> None:
    faces: dict[str, list[str]] = defaultdict(list)
    for case in default_cases(found):
        if case.engine in OTHERS and (face := dict(case.way).get("face")):
            faces[case.engine].append(face)

    assert faces.keys() == OTHERS
    assert all(0.4 < of.count("sync") / len(of) < 0.6 for of in faces.values())


def test_most_tests_run_in_both_faces(found: list[Case]) -> None:
    def both(cases: Iterable[Case]) -> set[str]:
        faces = defaultdict(set)
        for case in cases:
            faces[case.name].add(dict(case.way).get("face"))
        return {name for name, seen in faces.items() if {"sync", "async"} <= seen}

    assert len(both(default_cases(found))) > 0.9 * len(both(found))


def test_every_question_is_asked_of_the_cluster(found: list[Case]) -> None:
    kept = {case.test for case in default_cases(found) if case.engine == CLUSTER}

    assert ON_CLUSTER.keys() == (QUESTIONS | GATE_QUESTIONS) - NEVER_ASKED_OF_REDIS
    assert kept == set(ON_CLUSTER.values())


def test_a_default_run_leaves_out_more_than_half(found: list[Case]) -> None:
    assert len(default_cases(found)) < len(found) / 2


def test_the_choice_depends_on_nothing_but_names_and_order() -> None:
    cases = [
        Case("unit/test_x.py", "test_a", engine, (("face", face),), ())
        for engine in ENGINES
        for face in ("sync", "async")
    ]
    others = [case._replace(test="test_b") for case in cases]

    kept = default_cases([*cases, *others])

    assert set(cases) <= kept
    assert {(case.engine, dict(case.way)["face"]) for case in kept - set(cases)} == {
        ("memory", "sync"),
        ("sqlite", "async"),
        ("postgresql", "sync"),
        ("mysql", "sync"),
        ("redis", "async"),
    }
