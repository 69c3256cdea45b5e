"""What scripts are told and what they reply, between the rows of the contract and the text of Redis."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dibs.engines.redis.values import EPOCH, micros
from dibs.engines.redis.values import moment as time_of
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Row, Rows

_RUN_AT = NEW_JOB_COLUMNS.index("run_at")

# -- What a script is told ----------------------------------------------------------------------


def new_row(job: tuple[Any, ...]) -> tuple[Any, ...]:
    """A time goes as text: far enough in the future it is no number that Lua keeps exactly."""
    run_at = job[_RUN_AT]
    return job if run_at is None else (*job[:_RUN_AT], micros(run_at), *job[_RUN_AT + 1 :])


def settlement_rows(
    settlements: Sequence[tuple[Any, ...]],
    children: Sequence[tuple[Any, ...]],
    steps: Any = (),
) -> dict[str, Any]:
    """Which of them are steps of a pipeline the script reads from the jobs themselves."""
    del steps
    exact = [(id, str(token), *rest) for id, token, *rest in settlements]
    return {"settlements": exact, "children": list(map(new_row, children))}


def distinct_states(filter: Mapping[str, Any]) -> Mapping[str, Any]:
    states = filter["states"]
    return filter if states is None else {**filter, "states": list(dict.fromkeys(states))}


# -- What it replies ----------------------------------------------------------------------------


def time_or_none(micros: str | None) -> datetime | None:
    return time_of(micros) if micros else None


def near(score: str) -> datetime | None:
    """A score is a double, exact for a few hundred years."""
    return EPOCH + timedelta(microseconds=int(float(score))) if score else None


def whole(text: str | None) -> int | None:
    return int(text) if text else None


def id_or_none(text: str | None) -> UUID | None:
    return UUID(text) if text else None


def id_rows(ids: Sequence[str]) -> Rows:
    return [{"id": UUID(id)} for id in ids]


def stored_row(id: UUID, answer: Sequence[str], enqueued_at: datetime) -> Row:
    state, detail = answer
    if not state:
        return {"id": id, "holder": UUID(detail), "is_new": False}
    times = {"run_at": time_of(detail), "enqueued_at": enqueued_at}
    return {"id": id, "holder": id, "is_new": True, "state": state, **times}


def claimed_rows(reply: Sequence[Any]) -> Rows:
    overdue, *flats = reply
    header = {"limited": False, "overdue": bool(overdue), "crowded": False}
    return [header | job_row(flat) for flat in flats] or [header | {"id": None}]


def job_row(flat: Sequence[Any]) -> dict[str, Any]:
    """A row of `JOB_COLUMNS` from fields and values one after the other, the latest last."""
    values = iter(flat)
    found: dict[str, Any] = dict(zip(values, values, strict=True))
    get = found.get
    return {
        "id": UUID(found["id"]),
        "kind": found["kind"],
        "queue": found["queue"],
        "args": found["args"],
        "priority": int(found["priority"]),
        "state": found["state"],
        "attempts": int(get("attempts", 0)),
        "max_attempts": int(found["max_attempts"]),
        "run_at": time_of(found["run_at"]),
        "enqueued_at": time_of(found["enqueued_at"]),
        "claimed_at": time_or_none(get("claimed_at")),
        "finished_at": time_or_none(get("finished_at")),
        "worker": get("worker") or None,
        "token": whole(get("token")),
        "lease_until": time_or_none(get("lease_until")),
        "train": get("train") or None,
        "slot": get("slot") or None,
        "unique_key": get("unique_key") or None,
        "pipeline_id": id_or_none(get("pipeline_id")),
        "parent_id": id_or_none(get("parent_id")),
        "progress": float(get("progress", 0)),
        "message": get("message") or None,
        "result": get("result") or None,
        "errors": get("errors") or "[]",
        "tags": get("tags") or "[]",
        "meta": get("meta") or "{}",
    }


def glanced_row(values: Sequence[Any]) -> Row:
    id, state, attempts, token, progress, message, run_at = values
    return {
        "id": UUID(id),
        "state": state,
        "attempts": int(attempts or 0),
        "token": whole(token),
        "progress": float(progress or 0),
        "message": message or None,
        "run_at": time_of(run_at),
    }


def standings(replies: Sequence[Sequence[str]]) -> Rows:
    return [
        {
            "id": UUID(id),
            "token": int(token),
            "lease_until": time_of(lease_until),
            "cancel_reason": reason[1:] if reason else None,  # '!' marks that somebody asked
        }
        for id, token, lease_until, reason in replies
    ]


def upcoming_rows(reply: Sequence[Any]) -> Rows:
    overdue, ready, next_due, next_lease, now = reply
    times = {"next_due": near(next_due), "next_lease": near(next_lease), "now": time_of(now)}
    return [{"overdue": bool(overdue), "ready": bool(ready), **times}]


def setting(paused: int, limit: str) -> dict[str, Any]:
    return {"paused": bool(paused), "max_running": whole(limit)}


def worker_row(flat: Sequence[str]) -> Row:
    values = iter(flat)
    row: dict[str, Any] = dict(zip(values, values, strict=True))
    row |= {name: int(row[name]) for name in ("concurrency", "running")}
    row |= {name: time_of(row[name]) for name in ("started_at", "seen_at")}
    return row | {"queues": row["queues"] or None}
