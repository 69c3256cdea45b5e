"""What scripts receive and return: between the rows of the questions and the text of Redis."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from dibs.jobs.job import NEW_JOB_COLUMNS, STORED_TYPES, StoredJob, stored_text
from dibs.operations.minutes import MINUTE_COLUMNS
from dibs.operations.scripts import Row, Rows, Tuples

MOST_AT_ONCE = 1000  # jobs that one script stores
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_RUN_AT = NEW_JOB_COLUMNS.index("run_at")

# -- Values -------------------------------------------------------------------------------------


def micros(time: datetime) -> str:
    return str((time - EPOCH) // timedelta(microseconds=1))


def time_of(micros: str) -> datetime:
    return EPOCH + timedelta(microseconds=int(micros))


def _time_of_score(score: str) -> datetime | None:
    """Read a score, which is a double: exact for a few hundred years."""
    return EPOCH + timedelta(microseconds=int(float(score))) if score else None


def _or_none(read: Callable[[str], Any]) -> Callable[[str | None], Any]:
    """Return a reader of text that is empty, or missing, where there is no value."""
    return lambda text: read(text) if text else None


_time_or_none, _int_or_none = _or_none(time_of), _or_none(int)
_text_or_none, _id_or_none = _or_none(str), _or_none(UUID)


def _reason(text: str) -> str | None:
    """Drop the '!' that stands before every reason, because an empty one is a request, too."""
    return text[1:] if text else None


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    values = iter(flat)
    return zip(values, values, strict=True)


# -- What a script receives ---------------------------------------------------------------------


def new_row(job: tuple[Any, ...]) -> tuple[Any, ...]:
    """Write a time as text: one far in the future is no number that Lua keeps exactly."""
    run_at = job[_RUN_AT]
    return job if run_at is None else (*job[:_RUN_AT], micros(run_at), *job[_RUN_AT + 1 :])


def settlement_rows(settlements: Tuples, children: Tuples, steps: Any = ()) -> dict[str, Any]:
    """Leave `steps` out: the script reads from the jobs which of them belong to a pipeline."""
    del steps
    exact = [(id, str(token), *rest) for id, token, *rest in settlements]
    return {"settlements": exact, "children": list(map(new_row, children))}


def distinct_states(filter: Mapping[str, Any]) -> Mapping[str, Any]:
    states = filter["states"]
    return filter if states is None else {**filter, "states": list(dict.fromkeys(states))}


def arriving(jobs: Sequence[StoredJob]) -> dict[str, Any]:
    """Return what the script needs to decide, and the fields of each hash; null is no field."""
    rows = [(job.id, job.own_key, _fields(job)) for job in jobs]
    return {"jobs": rows, "token": max((job.token or 0 for job in jobs), default=0)}


def _fields(job: StoredJob) -> list[str]:
    values = ((name, getattr(job, name)) for name in STORED_TYPES if name != "id")
    return [text for name, value in values if value is not None for text in (name, _as_field(name, value))]


def _as_field(name: str, value: Any) -> str:
    if name == "cancel_reason":
        return f"!{value}"
    return micros(value) if isinstance(value, datetime) else str(value)


# -- What it returns ----------------------------------------------------------------------------

Reader = Callable[[Any], Rows]


def columns(**types: Callable[[Any], Any]) -> Reader:
    """Return a reader of replies that are lists of values, in the order of these columns."""

    def read(reply: Sequence[Sequence[Any]]) -> Rows:
        return [
            {name: read(value) for (name, read), value in zip(types.items(), values, strict=True)}
            for values in reply
        ]

    return read


def one_column(**types: Callable[[Any], Any]) -> Reader:
    [(name, read)] = types.items()
    return lambda reply: [{name: read(value)} for value in reply]


def no_rows(_: Any) -> Rows:
    return []


id_rows = one_column(id=UUID)
claim_rows = columns(id=UUID, token=int, lease_until=time_of, cancel_reason=_reason)
parent_rows = columns(child=UUID, parent=UUID, met=bool)
pipeline_rows = columns(id=UUID, name=str, on_failed=str)
swept_rows = columns(id=UUID, kind=str, queue=str, worker=str, token=int, attempts=int, state=str)
_changing_rows = columns(
    id=UUID,
    state=str,
    attempts=lambda text: int(text or 0),
    token=_int_or_none,
    progress=lambda text: float(text or 0),
    message=_text_or_none,
    run_at=time_of,
)


def stored_rows(jobs: Tuples, reply: Sequence[Any]) -> Rows:
    """Read the reply to an enqueue of these jobs: the time, then what became of each."""
    now, *answers = reply
    enqueued_at = time_of(now)
    return [_stored_row(job[0], answer, enqueued_at) for job, answer in zip(jobs, answers, strict=True)]


def _stored_row(id: UUID, answer: Sequence[str], enqueued_at: datetime) -> Row:
    state, detail = answer
    if not state:
        return {"id": id, "holder": UUID(detail), "is_new": False}
    times = {"run_at": time_of(detail), "enqueued_at": enqueued_at}
    return {"id": id, "holder": id, "is_new": True, "state": state, **times}


def arrived_rows(jobs: Sequence[StoredJob], holders: Sequence[str]) -> Rows:
    return [
        {"id": job.id, "holder": UUID(holder) if holder else job.id, "is_new": not holder}
        for job, holder in zip(jobs, holders, strict=True)
    ]


def claimed_rows(reply: Sequence[Any]) -> Rows:
    overdue, *flats = reply
    header = {"limited": False, "overdue": bool(overdue), "crowded": False}
    return [header | job_row(flat) for flat in flats] or [header | {"id": None}]


def job_row(flat: Sequence[Any]) -> dict[str, Any]:
    """Return a row of `JOB_COLUMNS` from fields and values; the last value of a field counts."""
    found: dict[str, Any] = dict(_pairs(flat))
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
        "claimed_at": _time_or_none(get("claimed_at")),
        "finished_at": _time_or_none(get("finished_at")),
        "worker": get("worker") or None,
        "token": _int_or_none(get("token")),
        "lease_until": _time_or_none(get("lease_until")),
        "train": get("train") or None,
        "slot": get("slot") or None,
        "unique_key": get("unique_key") or None,
        "pipeline_id": _id_or_none(get("pipeline_id")),
        "parent_id": _id_or_none(get("parent_id")),
        "progress": float(get("progress", 0)),
        "message": get("message") or None,
        "result": get("result") or None,
        "errors": get("errors") or "[]",
        "tags": get("tags") or "[]",
        "meta": get("meta") or "{}",
    }


def _moved_text(flat: str) -> str:
    """Turn a departed job's fields into the text that every store reads."""
    pairs = _pairs(msgspec.json.decode(flat))
    fields = {name: _FROM_FIELD[STORED_TYPES[name]](text) for name, text in pairs if text}
    if reason := fields.get("cancel_reason"):
        fields["cancel_reason"] = reason[1:]
    if "slot" in fields:
        fields = {"slot_policy": "wait", "slot_limit": 1} | fields  # defaults are not stored
    return stored_text(fields)


_FROM_FIELD: dict[type, Callable[[str], Any]] = {
    **{type: type for type in (UUID, int, float, str)},
    datetime: time_of,
}


moved_rows = columns(id=UUID, job=_moved_text)
departed_rows = columns(id=UUID, store=UUID, job=_moved_text)


def minute_rows(
    reply: Sequence[Any], queue: str | None, kind: str | None, by_queue: bool, by_kind: bool
) -> Rows:
    """Add up the counts of queues and kinds, except the ones that are asked for apart."""
    sums: dict[tuple[int, str | None, str | None], Counter[str]] = {}
    for minute, flat in reply:
        for field, count in _pairs(flat):
            its_queue, its_kind, column = field.split("\n")
            if queue in (None, its_queue) and kind in (None, its_kind):
                key = (minute, its_queue if by_queue else None, its_kind if by_kind else None)
                sums.setdefault(key, Counter())[column] += int(count)
    return [
        {"at_minute": minute, "queue": q, "kind": k, **{name: counts[name] for name in MINUTE_COLUMNS}}
        for (minute, q, k), counts in sums.items()
    ]


def upcoming_rows(reply: Sequence[Any]) -> Rows:
    overdue, ready, next_due, next_lease, now, schedules = reply
    times = {
        "next_due": _time_of_score(next_due),
        "next_lease": _time_of_score(next_lease),
        "now": time_of(now),
    }
    return [{"overdue": bool(overdue), "ready": bool(ready), "schedules": int(schedules), **times}]


def _worker_row(flat: Sequence[str]) -> Row:
    row: dict[str, Any] = dict(_pairs(flat))
    row |= {name: int(row[name]) for name in ("concurrency", "running")}
    row |= {name: time_of(row[name]) for name in ("started_at", "seen_at")}
    return row | {"queues": row["queues"] or None, "version": row.get("version") or None}


def _explained_rows(reply: Sequence[Any]) -> Rows:
    if not reply:
        return []
    flat, paused, limit, running, asked, now = reply
    setting = {"paused": bool(paused), "max_running": _int_or_none(limit)}
    return [{**job_row(flat), **setting, "running": running, "cancel_reason": asked, "now": time_of(now)}]


def _refused_row(noted: str) -> Row:
    token, tried, at, worker = noted.split("\n", 3)
    return {"token": int(token), "tried": tried, "refused_at": time_of(at), "worker": worker or None}


# Questions that are one call of one script, with the parameters as they are.
READERS: dict[str, Reader] = {
    "claim": claimed_rows,
    "claim_job": claimed_rows,
    "refusals": lambda notes: list(map(_refused_row, notes)),
    "settled": columns(
        id=UUID, state=str, token=_int_or_none, settled_token=_int_or_none, settled_as=_text_or_none
    ),
    "stage": id_rows,
    "set_queue": no_rows,
    "leave": one_column(name=str),
    "release_train": one_column(was_held=bool),
    "gates": columns(name=str, head=_id_or_none, length=int, held=bool, running=int),
    "newest_pipelines": id_rows,
    "current": columns(slot=str, id=UUID, token=int),
    "get": lambda reply: list(map(job_row, reply)),
    "glance": _changing_rows,
    "glance_at_queue": _changing_rows,
    "counts": columns(state=str, jobs=int),
    "queues": columns(name=str, state=_text_or_none, jobs=int, paused=bool, max_running=_int_or_none),
    "workers": lambda reply: sorted(map(_worker_row, reply), key=itemgetter("name")),
    "schedules": columns(name=str, last_tick=time_of, revision=int, about=_text_or_none),
    "delete_schedule": one_column(name=str),
    "upcoming": upcoming_rows,
    "explain": _explained_rows,
    "ready_lines": lambda pairs: columns(queue=str, kind=str)(sorted(pairs)),
    "backlog": columns(queue=str, jobs=int, since=time_of),
    "traffic": columns(queue=str, what=str, jobs=int),
    "echo": lambda hint: [{"told": hint}],
    "now": lambda now: [{"now": time_of(now)}],
    "age": no_rows,
    "identify": id_rows,
    "landed": no_rows,
}

# The same, of scripts that may leave something to do.
READERS_WITH_REST: dict[str, Reader] = {
    "cancel": columns(id=UUID, worker=_text_or_none),
    "retry": id_rows,
    "delete": id_rows,
    "prune": id_rows,
    "mend": columns(sort=str, name=str),
}
