"""A job made of a row: every column in its field, though it is made by position."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from dibs.jobs.job import JOB_COLUMNS, Job, job_from_row

MOMENT = datetime(2026, 11, 16, tzinfo=UTC)
NAMES = {"unique_key": "unique"}  # where the field is called otherwise
MADE = {"is_current", "is_new"}  # of no column
WRITTEN: dict[str, Any] = {
    "id": UUID(int=1),
    "pipeline_id": UUID(int=2),
    "parent_id": UUID(int=3),
    "args": '{"n":1}',
    "state": "running",
    "result": '["done"]',
    "errors": "[]",
    "tags": '["a tag"]',
    "meta": '{"of":"mine"}',
}
READ = {"args": {"n": 1}, "result": ["done"], "errors": [], "tags": ["a tag"], "meta": {"of": "mine"}}


def _row() -> dict[str, Any]:
    """No two values alike, whatever their type."""
    given: dict[str, Any] = {name: f"of {name}" for name in JOB_COLUMNS} | WRITTEN
    for number, name in enumerate(JOB_COLUMNS, start=10):
        if name.endswith(("_at", "_until")):
            given[name] = MOMENT + timedelta(seconds=number)
        elif name in ("priority", "attempts", "max_attempts", "token", "progress"):
            given[name] = number
    return given


def test_each_column_of_a_row_reaches_its_field() -> None:
    row = _row()

    job = job_from_row(row, is_new=True)

    assert {NAMES.get(name, name) for name in JOB_COLUMNS} | MADE == set(Job.__struct_fields__)
    for name in JOB_COLUMNS:
        assert getattr(job, NAMES.get(name, name)) == READ.get(name, row[name]), name
    assert job.is_new
    assert job.is_current  # it runs in a slot


def test_a_job_is_current_only_if_it_runs_in_a_slot_or_the_store_says_so() -> None:
    waiting = _row() | {"state": "ready"}
    without = _row() | {"slot": None}

    assert not job_from_row(waiting).is_current
    assert not job_from_row(without).is_current
    assert job_from_row(waiting, is_current=True).is_current
    assert not job_from_row(_row(), is_current=False).is_current
