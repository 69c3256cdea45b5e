"""What is watched, and one poll of the store that finds out what has changed.

A settlement or progress is not announced: that would cost every job something, watched or not. So a poll
compares *fingerprints*, the few fields of a job that change, with the ones of the poll before. States in
between two polls may be missed; the present state never is.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from dibs.errors import BadRequest
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job, job_from_row
from dibs.jobs.states import FINISHED, WAITING, JobState
from dibs.operations.queries import find, job_filter
from dibs.operations.scripts import Row, Script, Step

MOST_LIVE = 10_000  # live jobs of a queue that are watched, the newest
MOST_MEMBERS = 10_000  # jobs of a pipeline
FIRST_SIGHT = 200  # jobs of a queue that are told at first, the newest live ones
GLANCED_AT_ONCE = 1_000
FETCHED_AT_ONCE = 200
PAGE = 100
LIVE = sorted(str(state) for state in {*WAITING, JobState.running})

Fingerprint = tuple[str, int, int | None, float, str | None, datetime]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now, because somebody began to look at it or because it is no longer what it was."""

    name: Literal["now", "changed", "gone"]
    """`now`: this is how it stands as you begin to look; `gone`: it was deleted."""
    id: UUID
    """The job's."""
    job: Job | None
    """None only for a job that is gone."""

    @property
    def state(self) -> JobState | None:
        return None if self.job is None else self.job.state

    @property
    def progress(self) -> float | None:
        return None if self.job is None else self.job.progress

    @property
    def message(self) -> str | None:
        return None if self.job is None else self.job.message


def fingerprint(job: Job) -> Fingerprint:
    return (str(job.state), job.attempts, job.token, job.progress, job.message, job.run_at)


def _fingerprint(row: Row) -> Fingerprint:
    return (row["state"], row["attempts"], row["token"], row["progress"], row["message"], row["run_at"])


def version(id: UUID, mark: Fingerprint) -> int:
    """A number for this very standing of this job, the same in every process."""
    *plain, run_at = mark
    said = msgspec.json.encode([id, *plain, run_at.timestamp()])
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest())


@dataclass(eq=False, slots=True)
class WatchTarget:
    """What is watched, and how it was told last."""

    sort: Literal["job", "pipeline", "queue"]
    key: UUID | str | None
    """An id, or the name of a queue, or None for all queues."""
    filter: Mapping[str, Any]
    """How its jobs are found."""
    known: dict[UUID, Fingerprint] = field(default_factory=dict)
    is_new: bool = True

    @property
    def all_finished(self) -> bool:
        return all(mark[0] in FINISHED for mark in self.known.values())


@dataclass(slots=True)
class WatchPoll:
    """What one look saw: how the jobs of each topic stand, and those that were worth fetching."""

    marks: dict[WatchTarget, dict[UUID, Fingerprint]] = field(default_factory=dict)
    snapshots: dict[WatchTarget, list[Job]] = field(default_factory=dict)
    jobs: dict[UUID, Job] = field(default_factory=dict)
    out_of_sight: set[UUID] = field(default_factory=set)


def watch_target(job_id: UUID | str | None, pipeline_id: UUID | str | None, queue: str | None) -> WatchTarget:
    """Return what is to be watched: one of these, or everything."""
    if [job_id, pipeline_id, queue].count(None) < 2:
        raise BadRequest(
            "watch one thing: a job_id, a pipeline_id or a queue; nothing means all of the store"
        )
    if job_id is not None:
        return WatchTarget("job", parse_id(job_id), {})
    if pipeline_id is not None:
        return WatchTarget("pipeline", parse_id(pipeline_id), job_filter(pipeline_id=pipeline_id))
    chosen = job_filter(queue=queue)
    return WatchTarget("queue", chosen["queue"], chosen)


def look(topics: Sequence[WatchTarget], newcomers: set[WatchTarget], since: UUID) -> Script[WatchPoll]:
    """How everything that is watched stands. A topic with newcomers is also told whole.

    Nothing is remembered in here: a look that met trouble is run again from its start.
    """
    seen = WatchPoll()
    for topic in topics:
        if topic.sort == "queue":
            yield from _look_at_queue(topic, since, seen)
    glanced = yield from _glance(_ids_to_glance_at(topics, seen))
    for topic in topics:
        if topic.sort == "queue":
            _add_vanished(topic, glanced, seen)
        else:
            seen.marks[topic] = {id: glanced[id] for id in _ids(topic) if id in glanced}
    for topic in topics:
        if topic.sort == "pipeline":
            yield from _look_for_members(topic, seen, thorough=topic in newcomers)
    yield from _fetch(_worth_fetching(topics, newcomers, seen), seen)
    for topic in newcomers:
        seen.snapshots[topic] = yield from _snapshot(topic, seen)
    return seen


def _look_at_queue(topic: WatchTarget, since: UUID, seen: WatchPoll) -> Script[None]:
    rows = yield Step("glance_at_queue", {"queue": topic.key, "since": since, "limit": MOST_LIVE})
    seen.marks[topic] = {row["id"]: _fingerprint(row) for row in rows}


def _ids_to_glance_at(topics: Iterable[WatchTarget], seen: WatchPoll) -> set[UUID]:
    ids: set[UUID] = set()
    for topic in topics:
        ids.update(_vanished(topic, seen) if topic.sort == "queue" else _ids(topic))
    return ids


def _ids(topic: WatchTarget) -> Iterable[UUID]:
    return [topic.key] if isinstance(topic.key, UUID) and topic.sort == "job" else topic.known


def _vanished(topic: WatchTarget, seen: WatchPoll) -> list[UUID]:
    """Live at the last look, and no longer among the live: finished, or deleted, or too old to be told."""
    now = seen.marks[topic]
    return [id for id, mark in topic.known.items() if id not in now and mark[0] not in FINISHED]


def _add_vanished(topic: WatchTarget, glanced: Mapping[UUID, Fingerprint], seen: WatchPoll) -> None:
    found = {id: glanced[id] for id in _vanished(topic, seen) if id in glanced}
    seen.out_of_sight |= {id for id, mark in found.items() if mark[0] not in FINISHED}
    seen.marks[topic] |= {id: mark for id, mark in found.items() if mark[0] in FINISHED}


def _glance(ids: Iterable[UUID]) -> Script[dict[UUID, Fingerprint]]:
    found: dict[UUID, Fingerprint] = {}
    for some in _pieces(sorted(ids), GLANCED_AT_ONCE):
        rows = yield Step("glance", {"ids": list(some)})
        found |= {row["id"]: _fingerprint(row) for row in rows}
    return found


def _pieces(ids: Sequence[UUID], size: int) -> list[Sequence[UUID]]:
    return [ids[first : first + size] for first in range(0, len(ids), size)]


def _look_for_members(topic: WatchTarget, seen: WatchPoll, *, thorough: bool) -> Script[None]:
    """Children appear together with their parent's end, so after one is the time to look for them."""
    marks = seen.marks[topic]
    ended = [id for id, mark in marks.items() if mark[0] in FINISHED and topic.known[id] != mark]
    thorough = thorough or all(mark[0] in FINISHED for mark in marks.values())
    if not thorough and not ended:
        return
    after: UUID | None = None
    while len(marks) < MOST_MEMBERS:
        page = yield from find(topic.filter, limit=PAGE, after=after)
        new = {job.id: fingerprint(job) for job in page if job.id not in marks}
        marks |= new
        seen.jobs |= {job.id: job for job in page}
        if len(page) < PAGE or not (new or thorough):
            return
        after = page[-1].id


def _worth_fetching(topics: Iterable[WatchTarget], newcomers: set[WatchTarget], seen: WatchPoll) -> set[UUID]:
    ids: set[UUID] = set()
    for topic in topics:
        whole = topic.sort != "queue" and topic in newcomers
        if topic.is_new and not whole:
            continue
        ids.update(id for id, now in seen.marks[topic].items() if whole or topic.known.get(id) != now)
    return ids - seen.jobs.keys()


def _fetch(ids: Iterable[UUID], seen: WatchPoll) -> Script[None]:
    for some in _pieces(sorted(ids), FETCHED_AT_ONCE):
        rows = yield Step("get", {"ids": list(some)})
        seen.jobs |= {row["id"]: job_from_row(row) for row in rows}


def _snapshot(topic: WatchTarget, seen: WatchPoll) -> Script[list[Job]]:
    """How it stands as a whole; of a queue, the newest that can still run."""
    if topic.sort == "queue":
        return (yield from find({**topic.filter, "states": LIVE}, limit=FIRST_SIGHT, after=None))
    return [seen.jobs[id] for id in sorted(seen.marks[topic]) if id in seen.jobs]


def tell(topic: WatchTarget, seen: WatchPoll) -> list[Change]:
    """What those who watched this topic before have to hear; from now on it is known."""
    marks = seen.marks[topic]
    # What was fetched is newer than what was glanced at: the next look need not tell it again.
    now = marks | {id: fingerprint(seen.jobs[id]) for id in marks if id in seen.jobs}
    changed = [id for id, mark in now.items() if topic.known.get(id) != mark]
    changes = [Change(name="changed", id=id, job=seen.jobs[id]) for id in sorted(changed) if id in seen.jobs]
    gone = [id for id, mark in topic.known.items() if id not in now and _is_gone(topic, id, mark, seen)]
    was_new, topic.known, topic.is_new = topic.is_new, now, False
    return [] if was_new else [*changes, *(Change(name="gone", id=id, job=None) for id in sorted(gone))]


def _is_gone(topic: WatchTarget, id: UUID, mark: Fingerprint, seen: WatchPoll) -> bool:
    """Finished or very old jobs leave the sight of who watches their queue; nobody need have deleted them."""
    return topic.sort != "queue" or (mark[0] not in FINISHED and id not in seen.out_of_sight)
