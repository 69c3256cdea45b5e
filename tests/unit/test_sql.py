"""The SQL loader: every dialect answers every question, in parameters that are all spelled."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.engines.memory.engine import Memory
from dibs.engines.mysql.engine import MySQL
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.sql.blocks import placeholders, schema_files, statements
from dibs.engines.sql.engine import SqlEngine
from dibs.engines.sqlite.engine import SQLite
from dibs.operations.questions import GATE_QUESTIONS, QUESTIONS

every_engine = pytest.mark.parametrize(
    "engine", [PostgreSQL(), SQLite(), MySQL()], ids=lambda engine: engine.dialect.name
)


@every_engine
def test_every_question_has_an_answer(engine: SqlEngine) -> None:
    assert engine.answers.keys() == engine.answers_within.keys() == QUESTIONS | GATE_QUESTIONS


@pytest.mark.parametrize("question", sorted(QUESTIONS | GATE_QUESTIONS))
def test_memory_answers_every_question(question: str) -> None:
    assert callable(getattr(Memory, f"_{question}"))


@every_engine
def test_every_block_that_a_plan_names_exists(engine: SqlEngine) -> None:
    named = set(re.findall(r'Query\(\s*"(\w+)"', inspect.getsource(type(engine))))

    assert named
    assert named <= set(engine.dialect.blocks.all())


@every_engine
def test_no_block_is_left_without_use(engine: SqlEngine) -> None:
    sources = Path(dibs.__file__).parent.rglob("*.py")
    used = (
        QUESTIONS
        | GATE_QUESTIONS
        | {word for source in sources for word in re.findall(r'"(\w+)"', source.read_text())}
    )

    assert set(engine.dialect.blocks.all()) <= used


@every_engine
def test_every_block_is_spelled_out(engine: SqlEngine) -> None:
    for name, text in engine.dialect.blocks.all().items():
        bare = re.sub(r"'[^']*'", "", text)
        assert not re.search(r"\{[\w>:]+\}", bare), name
        assert "$1" not in text, name
        assert "$2" not in text, name


@every_engine
@pytest.mark.parametrize("style", ["numeric", "pyformat"])
def test_every_parameter_is_spelled_for_the_driver(engine: SqlEngine, style: str) -> None:
    for name, text in engine.dialect.blocks.all().items():
        spelled, order = placeholders(text, style)
        assert not re.search(r"(?<!:):[a-z_]+", spelled), name
        for number, parameter in enumerate(order, 1):
            assert (f"${number}" if style == "numeric" else f"%({parameter})s") in spelled, name


@every_engine
def test_another_prefix_renames_every_table(engine: SqlEngine) -> None:
    renamed = type(engine)("shop_jobs")  # type: ignore[call-arg]

    for name, text in renamed.dialect.blocks.all().items():
        assert not re.search(r"\bdibs_", text), name


def test_a_cast_is_no_parameter() -> None:
    text, order = placeholders("select :a::text, ':b', x::uuid where y = :a and z = :c", "numeric")

    assert text.startswith("select $1::text")
    assert order[0] == "a"
    assert "uuid" not in order


def test_a_percent_sign_survives_pyformat() -> None:
    assert placeholders("select 10 % :n", "pyformat") == ("select 10 %% %(n)s", ("n",))


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "mysql"])
def test_migrations_count_up_from_one(dialect: str) -> None:
    versions = [version for version, _ in schema_files(dialect)]

    assert versions == list(range(1, len(versions) + 1))
    assert all(statements(text) for _, text in schema_files(dialect))


def test_statements_are_split_without_their_comments() -> None:
    assert statements("-- a; b\ncreate table t (x); -- done\n\ninsert into t values (1);\n") == [
        "create table t (x)",
        "insert into t values (1)",
    ]


@every_engine
def test_the_schema_has_every_column_that_a_job_has(engine: SqlEngine) -> None:
    from dibs.jobs.job import JOB_COLUMNS

    text = "".join(text for _, text in schema_files(engine.dialect.name))

    missing: Mapping[str, Any] = {name: 1 for name in JOB_COLUMNS if not re.search(rf"\b{name}\b", text)}
    assert not missing
