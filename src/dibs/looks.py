"""The verbs that only look: jobs, how many there are, the settings of queues."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dibs.errors import BadRequest
from dibs.jobs.job import Job, job_from_row
from dibs.jobs.states import JobState
from dibs.scripts import Row, Rows, Script, Step


def get(id: UUID) -> Script[Job | None]:
    rows = yield Step("get", {"ids": [id]})
    jobs = yield from _with_current(rows)
    return jobs[0] if jobs else None


def find(filter: Mapping[str, Any], *, limit: int, after: UUID | None) -> Script[list[Job]]:
    rows = yield Step("find", {**filter, "limit": limit, "after": after})
    return (yield from _with_current(rows))


def _with_current(rows: Rows) -> Script[list[Job]]:
    current = yield from current_ids(rows)
    return [job_from_row(row, is_current=row["id"] in current) for row in rows]


def current_ids(rows: Collection[Row]) -> Script[set[UUID]]:
    """Those of a slot that run, or that started last: asked only about slots whose jobs no longer run."""
    started = [row for row in rows if row["slot"] is not None and row["token"] is not None]
    running = {row["id"] for row in started if row["state"] == JobState.running}
    slots = sorted({row["slot"] for row in started if row["id"] not in running})
    latest = (yield Step("current", {"slots": slots})) if slots else ()
    return running | {row["id"] for row in latest}


def current_of(slot: str) -> Script[Job | None]:
    """The job of a slot that started last, running or not."""
    latest = yield Step("current", {"slots": [slot]})
    return (yield from get(latest[0]["id"])) if latest else None


def counts(queue: str | None) -> Script[dict[str, int]]:
    rows = yield Step("counts", {"queue": queue})
    found = {row["state"]: row["jobs"] for row in rows}
    return {state.value: found.get(state.value, 0) for state in JobState}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue that has live jobs or a setting."""

    name: str
    paused: bool
    limit: int | None
    counts: dict[str, int]


def queues() -> Script[list[Queue]]:
    rows = yield Step("queues", {})
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        queue = found.setdefault(
            row["name"],
            {"paused": bool(row["paused"]), "limit": row["max_running"], "counts": {}},
        )
        if row["state"] is not None:
            queue["counts"][str(row["state"])] = row["jobs"]
    return [Queue(name=name, **queue) for name, queue in sorted(found.items())]


def check_states(states: Any) -> list[JobState] | None:
    if states is None:
        return None
    try:
        return [JobState(state) for state in ([states] if isinstance(states, str) else states)]
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{error}; the states are {', '.join(JobState)}") from None
