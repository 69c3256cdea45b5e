"""The verbs that only read: jobs, how many there are, queues, trains; and the filter they share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dibs.clock import id_millis
from dibs.errors import BadRequest, NotFound
from dibs.jobs import payload
from dibs.jobs.ids import first_id_at, parse_id
from dibs.jobs.job import Job, job_from_row
from dibs.jobs.options import slot_name
from dibs.jobs.states import JobState
from dibs.operations.scripts import Row, Rows, Script, Step
from dibs.settings import Duration, span

MOST_FOUND = 1000

_NAMES_TO_FIND = ("queue", "kind", "train", "slot", "worker")
PATTERNS = ("queue_like", "kind_like", "train_like", "worker_like")
LATE_ENQUEUE = 86_400_000  # milliseconds: an id may be made so long before its job is enqueued


def get(id: UUID) -> Script[Job | None]:
    rows = yield Step("get", {"ids": [id]})
    jobs = yield from with_current(rows)
    return jobs[0] if jobs else None


def find(filter: Mapping[str, Any], *, limit: int, after: UUID | None) -> Script[list[Job]]:
    rows = yield Step("find", {**filter, "limit": limit, "after": after})
    return (yield from with_current(rows))


def with_current(rows: Rows) -> Script[list[Job]]:
    """Return the jobs of these rows, and which of them are current in their slots."""
    current = yield from current_ids(rows)
    return [job_from_row(row, is_current=row["id"] in current) for row in rows]


def rows_by_id(ids: Collection[UUID]) -> Script[dict[UUID, Row]]:
    """Return the jobs with these ids; without ids, ask nothing."""
    found = (yield Step("get", {"ids": list(ids)})) if ids else ()
    return {row["id"]: row for row in found}


def current_ids(rows: Collection[Row]) -> Script[set[UUID]]:
    """Return the jobs of slots that run or started last; slots with a running job need no question."""
    started = [row for row in rows if row["slot"] is not None and row["token"] is not None]
    running = {row["id"] for row in started if row["state"] == JobState.running}
    slots = sorted({row["slot"] for row in started if row["id"] not in running})
    latest = (yield Step("current", {"slots": slots})) if slots else ()
    return running | {row["id"] for row in latest}


def current_of(slot: str) -> Script[Job | None]:
    """Return the job of a slot that started last, running or not."""
    latest = yield Step("current", {"slots": [slot]})
    return (yield from get(latest[0]["id"])) if latest else None


def newest_ids(most: int) -> Script[list[UUID]]:
    """Return the ids of the newest jobs, live and finished."""
    rows = yield Step("glance_at_queue", {"queue": None, "since": UUID(int=0), "limit": most})
    return sorted((row["id"] for row in rows), reverse=True)[:most]


def counts(queue: str | None) -> Script[dict[str, int]]:
    rows = yield Step("counts", {"queue": queue})
    found = {row["state"]: row["jobs"] for row in rows}
    return {state.value: found.get(state.value, 0) for state in JobState}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue with live jobs or settings. Example: `[one for one in await app.queues() if one.paused]`"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTraffic:
    """What came into a queue lately, and what failed in it."""

    enqueued: int = 0
    failed: int = 0
    """Of the failed jobs that are kept."""


def traffic(seconds: int, most: int) -> Script[dict[str, QueueTraffic]]:
    """Return the traffic of each queue of the last seconds; at most about so many jobs are counted."""
    since = first_id_at(id_millis() - seconds * 1000)
    rows = yield Step("traffic", {"since": since, "limit": most})
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["queue"], {})[row["what"]] = row["jobs"]
    return {queue: QueueTraffic(**numbers) for queue, numbers in found.items()}


def job_filter(
    state: Any = None,
    tags: Sequence[str] | str | None = None,
    since: Duration | None = None,
    patterns: Mapping[str, str] | None = None,
    **equal: Any,
) -> Mapping[str, Any]:
    """Return the checked filters of `find`, as engines take them."""
    if unknown := set(equal) - {*_NAMES_TO_FIND, "pipeline_id"}:
        raise BadRequest(f"can't find jobs by {', '.join(sorted(unknown))}")
    given = {name: equal[name] for name in _NAMES_TO_FIND if equal.get(name) is not None}
    pipeline = equal.get("pipeline_id")
    states = check_states(state)
    micros = None if since is None else span(since, what="since")
    earliest = None if micros is None else first_id_at(id_millis() - micros // 1000 - LATE_ENQUEUE)
    return {
        **dict.fromkeys((*_NAMES_TO_FIND, *PATTERNS)),
        **{name: _name_to_find(value, name) for name, value in given.items()},
        **{f"{name}_like": payload.check_name(text, name) for name, text in (patterns or {}).items()},
        "since": micros,
        "newer_than": earliest,
        "pipeline_id": None if pipeline is None else parse_id(pipeline),
        "states": None if states is None else [one.value for one in states],
        "tags": payload.check_names(tags, "tag") or [],
    }


def _name_to_find(value: Any, name: str) -> str:
    return slot_name(value) if name == "slot" else payload.check_name(value, name)


def check_states(states: Any) -> list[JobState] | None:
    if states is None:
        return None
    try:
        return [JobState(state) for state in ([states] if isinstance(states, str) else states)]
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{error}; the states are {', '.join(JobState)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Jobs that run one after another; there as long as a job is on it. Example: `await app.trains.held()`"""

    name: str
    head: Job | None
    """The job that goes first: it waits, runs or, when the train is held, has ended."""
    length: int
    """How many jobs are on it, its head included."""
    held: bool
    """Its head failed or was cancelled, and was to hold the others: retry it, or release the train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A key that jobs share, as long as a job with it waits or runs. Example: `await app.slots.get("csv")`"""

    key: str
    current: Job | None
    """The job that started last, running or not."""
    running: int
    waiting: int


def find_slots(names: Sequence[str] | None, *, after: str | None, limit: int) -> Script[list[Slot]]:
    """Return slots by name."""
    which = {"names": names, "held": False, "after": after, "limit": limit}
    rows = yield Step("gates", {"sort": "slot", **which})
    latest = (yield Step("current", {"slots": [row["name"] for row in rows]})) if rows else ()
    found = yield from rows_by_id([row["id"] for row in latest])
    current = {row["slot"]: job_from_row(row, is_current=True) for row in found.values()}
    return [_slot(row, current.get(row["name"])) for row in rows]


def _slot(row: Row, current: Job | None) -> Slot:
    running = row["running"]
    return Slot(key=row["name"], current=current, running=running, waiting=row["length"] - running)


def find_trains(
    names: Sequence[str] | None, *, held: bool, after: str | None, limit: int
) -> Script[list[Train]]:
    """Return trains by name."""
    which = {"names": names, "held": held, "after": after, "limit": limit}
    rows = yield Step("gates", {"sort": "train", **which})
    heads = yield from rows_by_id([row["head"] for row in rows if row["head"] is not None])
    return [_train(row, heads.get(row["head"])) for row in rows]


def held_trains(page: int) -> Script[list[Train]]:
    """Return every train that waits for an operator, however many they are."""
    found: list[Train] = []
    while True:
        some = yield from find_trains(None, held=True, after=found[-1].name if found else None, limit=page)
        found += some
        if len(some) < page:
            return found


def _train(row: Row, head: Row | None) -> Train:
    first = None if head is None else job_from_row(head)
    return Train(name=row["name"], head=first, length=row["length"], held=bool(row["held"]))


def release_train(name: str, *, unsure: bool = False) -> Script[bool]:
    """Let the next job of a held train go; return whether it was held. An empty train can't be released."""
    rows = yield Step("release_train", {"name": name})
    if not rows and not unsure:
        raise NotFound(name)
    return unsure or any(row["was_held"] for row in rows)
