"""Read-only models of the tables of dibs: the values that `Dibs` returns, and no way to write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest
from sqlalchemy import create_engine, delete, func, insert, inspect, select, update
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from dibs import BadRequest, Job, JobState, NewJob
from dibs.engines.sql.blocks import schema_files
from dibs.engines.sql.migrations import dialect_named, undoing
from dibs.integrations import sqlalchemy as ours
from dibs.integrations.sqlalchemy import AnyJob, FinishedJob, Gate, LiveJob, Pipeline, Queue, Step, models
from tests.support.faces import Face, Make, open_face
from tests.support.raw_sql import by_hand, sqlalchemy_url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def face() -> str:
    return "sync"


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    engine = create_engine(sqlalchemy_url(url))
    with Session(engine) as session:
        yield session
    engine.dispose()


def _as_model(job: Job) -> dict[str, Any]:
    """Return the values that a model should have of this job; its progress is what was reported last."""
    said = {name: getattr(job, name) for name in get_type_hints(ours.JobColumns) if hasattr(job, name)}
    said["progress"] = 0.0
    said["errors"] = [error.message for error in job.errors]
    return said


def _said(row: Any, names: Any) -> dict[str, Any]:
    return {
        name: [error["message"] for error in row.errors] if name == "errors" else getattr(row, name)
        for name in names
    }


def test_a_model_says_what_dibs_says(app: Face, make: Make, session: Session) -> None:
    waiting = make.scheduled(args={"n": 1}, tags=["a"], meta={"b": None}, priority=3, unique="key")
    running = make.running(pipeline_id=waiting.id).job
    failed = make.failed(reason="broken")
    succeeded = make.succeeded(result={"deep": [1, "ü"]})

    for job, model in (
        (waiting, LiveJob),
        (running, LiveJob),
        (failed, FinishedJob),
        (succeeded, FinishedJob),
    ):
        expected = _as_model(app.get(job.id))
        for kind in (model, AnyJob):
            assert _said(session.get(kind, job.id), expected) == expected
    assert session.get(LiveJob, failed.id) is None


def test_jobs_are_found_by_state_id_and_time(app: Face, make: Make, session: Session) -> None:
    jobs = [make.ready(), make.scheduled(), make.succeeded(), make.failed()]
    soon = datetime.now(UTC) + timedelta(minutes=30)

    def found(*conditions: Any) -> list[Any]:
        return list(session.scalars(select(AnyJob.id).where(*conditions).order_by(AnyJob.id)))

    assert found(AnyJob.run_at > soon) == [jobs[1].id]
    assert found(AnyJob.state == JobState.failed) == found(AnyJob.state == "failed") == [jobs[3].id]
    assert found(AnyJob.id.in_([str(jobs[0].id), jobs[2].id])) == [jobs[0].id, jobs[2].id]
    assert found(AnyJob.is_finished) == [jobs[2].id, jobs[3].id]
    counted = session.execute(select(AnyJob.state, func.count()).group_by(AnyJob.state)).all()
    assert dict(map(tuple, counted)) == {"ready": 1, "scheduled": 1, "succeeded": 1, "failed": 1}
    with pytest.raises(Exception, match="no time zone"):
        found(AnyJob.run_at > datetime(2026, 1, 1))


def test_a_job_is_joined_with_rows_of_ones_own(app: Face, make: Make, session: Session, url: str) -> None:
    job = make.ready(queue="mail")
    app.pause("mail")

    rows = session.execute(select(LiveJob.id, Queue.paused).join(Queue, Queue.name == LiveJob.queue)).all()

    assert [tuple(row) for row in rows] == [(job.id, True)]


def test_nothing_can_be_written_through_a_model(app: Face, make: Make, session: Session) -> None:
    job = make.ready()
    row = session.get(LiveJob, job.id)

    with pytest.raises(BadRequest, match="LiveJob is read-only"):
        LiveJob(kind="work")
    row.kind = "changed"
    with pytest.raises(BadRequest, match="LiveJob is read-only: jobs are changed through Dibs"):
        session.flush()
    session.rollback()
    session.delete(session.get(AnyJob, job.id))
    with pytest.raises(BadRequest, match="AnyJob is read-only"):
        session.commit()
    session.rollback()
    for write in (insert, update, delete):
        for model in models():
            with pytest.raises(ArgumentError, match="read_only"):
                session.execute(write(model))

    assert app.find() == [app.get(job.id)]
    assert app.get(job.id).kind == "work"


def test_another_prefix_has_models_of_its_own(url: str, session: Session) -> None:
    with open_face("sync", url, prefix="shop") as shop:
        shop.migrate()
        job = Make(shop).ready()

        found = session.get(models("shop").AnyJob, job.id)

        assert (found.id, repr(found)) == (job.id, f"<AnyJob {job.id} work ready>")
        assert session.get(AnyJob, job.id) is None
        session.rollback()
        shop.delete(job.id)
    if "sqlite" not in url:
        dialect = dialect_named(url.split(":")[0], "shop")
        assert dialect is not None
        by_hand(url, *_gone(dialect))


def _gone(dialect: Any) -> list[str]:
    return [statement for _, statement in undoing(dialect, [n for n, _ in schema_files(dialect.name)], 0)]


@pytest.mark.parametrize("name", ours.Models._fields)
def test_a_model_has_the_columns_it_promises(name: str) -> None:
    [promised] = get_args(get_type_hints(ours.Models)[name])
    model: Any = getattr(models(), name)

    assert set(get_type_hints(promised)) == {attribute.key for attribute in model.__mapper__.column_attrs}


# Tables of no use to users, tables that `dibs.outbox.table` describes, and tables that `app.stats` and
# `app.refusals` read.
ONLY_MARIADB = {"stored_by", "changes"}  # how its statements find out what others answer by themselves
WITHOUT_A_MODEL = {"schema", "token", "identity", "moving", "outbox", "inbox", "minutes", "refusals"}


def test_every_column_of_every_table_has_its_place_in_a_model(app: Face, session: Session) -> None:
    found = inspect(session.connection())
    columns = {
        table.removeprefix("dibs_"): {
            column["name"] for column in found.get_columns(table) if not column.get("computed")
        }
        for table in found.get_table_names()
        if table.startswith("dibs_")
    }

    assert set(columns) - WITHOUT_A_MODEL == set(ours.COLUMNS)
    for table, mapped in ours.COLUMNS.items():
        assert columns[table] - ONLY_MARIADB == set(get_type_hints(mapped)), table


def test_trains_slots_and_pipelines_are_found(app: Face, make: Make, session: Session) -> None:
    head, second = app.enqueue(NewJob("work", train="north"), NewJob("work", train="north"))
    slotted = make.ready(slot="csv", slot_policy="replace", slot_limit=2)
    pipeline = app.pipeline("nightly")
    first = pipeline.add(NewJob("work"))
    last = pipeline.add(NewJob("work"), after=[first])
    pipeline.enqueue()

    places = session.scalars(select(LiveJob).where(LiveJob.train == "north").order_by(LiveJob.position))
    assert [row.id for row in places] == [head.id, second.id]
    job = session.get(LiveJob, slotted.id)
    assert (job.slot_policy, job.slot_limit, job.unique_until) == ("replace", 2, None)
    assert {(gate.sort, gate.name) for gate in session.scalars(select(Gate))} == {
        ("train", "north"),
        ("slot", slotted.slot),
    }
    assert session.get(Gate, ("train", "north")).held_by is None
    assert [(row.id, row.name) for row in session.scalars(select(Pipeline))] == [(pipeline.id, "nightly")]
    step = session.scalars(select(Step)).one()
    assert (step.child, step.parent, step.met) == (last.id, first.id, False)


def test_models_are_made_once_for_each_prefix() -> None:
    assert models() is models("dibs")
    assert models("shop") is not models()
    assert models().LiveJob is LiveJob
