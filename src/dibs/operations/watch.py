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
from dibs.jobs.job import Job, progress_of
from dibs.jobs.states import FINISHED, WAITING, JobState
from dibs.operations.queries import find, job_filter, with_current
from dibs.operations.scripts import Row, Script, Step

MOST_LIVE = 10_000  # live jobs of a queue that are watched, the newest
MOST_MEMBERS = 10_000  # jobs of a pipeline
FIRST_SIGHT = 200  # jobs of a queue that are yielded at first, the newest live ones
READ_AT_ONCE = 1_000
FETCHED_AT_ONCE = 200
PAGE = 100
LIVE = sorted(str(state) for state in {*WAITING, JobState.running})

Fingerprint = tuple[str, int, int | None, float, str | None, datetime]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is now, for a watcher. Example: `[one async for one in app.watch(job_id=done.id)]`"""

    name: Literal["now", "changed", "gone"]
    """`now`: this is how it is as you begin to watch; `gone`: it was deleted."""
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
    return (row["state"], row["attempts"], row["token"], progress_of(row), row["message"], row["run_at"])


def version(id: UUID, fields: Fingerprint) -> int:
    """Return a number for this job with these fields, the same in every process."""
    *plain, run_at = fields
    said = msgspec.json.encode([id, *plain, run_at.timestamp()])
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest())


@dataclass(eq=False, slots=True)
class WatchTarget:
    """What is watched, and the fingerprints that its watchers know."""

    sort: Literal["job", "pipeline", "queue"]
    key: UUID | str | None
    """An id, or the name of a queue, or None for all queues."""
    filter: Mapping[str, Any]
    """The filter that finds its jobs."""
    known: dict[UUID, Fingerprint] = field(default_factory=dict)
    is_new: bool = True

    @property
    def all_finished(self) -> bool:
        return all(fields[0] in FINISHED for fields in self.known.values())


@dataclass(slots=True)
class WatchPoll:
    """What one poll found: the fingerprints of the jobs of each target, and the jobs worth reading."""

    fingerprints: dict[WatchTarget, dict[UUID, Fingerprint]] = field(default_factory=dict)
    snapshots: dict[WatchTarget, list[Job]] = field(default_factory=dict)
    jobs: dict[UUID, Job] = field(default_factory=dict)
    unread: set[UUID] = field(default_factory=set)


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


def poll_once(
    targets: Sequence[WatchTarget], new_targets: set[WatchTarget], since: UUID
) -> Script[WatchPoll]:
    """Read everything that is watched. For a target with new watchers also all of its jobs.

    Nothing is remembered in here: a poll that failed is run again from its start.
    """
    poll = WatchPoll()
    for target in targets:
        if target.sort == "queue":
            yield from _read_queue(target, since, poll)
    found = yield from _read_fingerprints(_ids_to_read(targets, poll))
    for target in targets:
        if target.sort == "queue":
            _add_vanished(target, found, poll)
        else:
            poll.fingerprints[target] = {id: found[id] for id in _ids(target) if id in found}
    for target in targets:
        if target.sort == "pipeline":
            yield from _find_members(target, poll, thorough=target in new_targets)
    yield from _fetch(_worth_fetching(targets, new_targets, poll), poll)
    for target in new_targets:
        poll.snapshots[target] = yield from _snapshot(target, poll)
    return poll


def _read_queue(target: WatchTarget, since: UUID, poll: WatchPoll) -> Script[None]:
    rows = yield Step("glance_at_queue", {"queue": target.key, "since": since, "limit": MOST_LIVE})
    poll.fingerprints[target] = {row["id"]: _fingerprint(row) for row in rows}


def _ids_to_read(targets: Iterable[WatchTarget], poll: WatchPoll) -> set[UUID]:
    ids: set[UUID] = set()
    for target in targets:
        ids.update(_vanished(target, poll) if target.sort == "queue" else _ids(target))
    return ids


def _ids(target: WatchTarget) -> Iterable[UUID]:
    return [target.key] if isinstance(target.key, UUID) and target.sort == "job" else target.known


def _vanished(target: WatchTarget, poll: WatchPoll) -> list[UUID]:
    """Return the jobs that were live at the last poll and no longer are: finished, deleted, or too old."""
    now = poll.fingerprints[target]
    return [id for id, fields in target.known.items() if id not in now and fields[0] not in FINISHED]


def _add_vanished(target: WatchTarget, found: Mapping[UUID, Fingerprint], poll: WatchPoll) -> None:
    vanished = {id: found[id] for id in _vanished(target, poll) if id in found}
    poll.unread |= {id for id, fields in vanished.items() if fields[0] not in FINISHED}
    poll.fingerprints[target] |= {id: fields for id, fields in vanished.items() if fields[0] in FINISHED}


def _read_fingerprints(ids: Iterable[UUID]) -> Script[dict[UUID, Fingerprint]]:
    found: dict[UUID, Fingerprint] = {}
    for some in _pieces(sorted(ids), READ_AT_ONCE):
        rows = yield Step("glance", {"ids": list(some)})
        found |= {row["id"]: _fingerprint(row) for row in rows}
    return found


def _pieces(ids: Sequence[UUID], size: int) -> list[Sequence[UUID]]:
    return [ids[first : first + size] for first in range(0, len(ids), size)]


def _find_members(target: WatchTarget, poll: WatchPoll, *, thorough: bool) -> Script[None]:
    """Find new jobs of a pipeline: children appear together with their parent's end."""
    fingerprints = poll.fingerprints[target]
    ended = [
        id for id, fields in fingerprints.items() if fields[0] in FINISHED and target.known[id] != fields
    ]
    thorough = thorough or all(fields[0] in FINISHED for fields in fingerprints.values())
    if not thorough and not ended:
        return
    after: UUID | None = None
    while len(fingerprints) < MOST_MEMBERS:
        page = yield from find(target.filter, limit=PAGE, after=after)
        new = {job.id: fingerprint(job) for job in page if job.id not in fingerprints}
        fingerprints |= new
        poll.jobs |= {job.id: job for job in page}
        if len(page) < PAGE or not (new or thorough):
            return
        after = page[-1].id


def _worth_fetching(
    targets: Iterable[WatchTarget], new_targets: set[WatchTarget], poll: WatchPoll
) -> set[UUID]:
    ids: set[UUID] = set()
    for target in targets:
        whole = target.sort != "queue" and target in new_targets
        if target.is_new and not whole:
            continue
        ids.update(
            id for id, now in poll.fingerprints[target].items() if whole or target.known.get(id) != now
        )
    return ids - poll.jobs.keys()


def _fetch(ids: Iterable[UUID], poll: WatchPoll) -> Script[None]:
    for some in _pieces(sorted(ids), FETCHED_AT_ONCE):
        jobs = yield from with_current((yield Step("get", {"ids": list(some)})))
        poll.jobs |= {job.id: job for job in jobs}


def _snapshot(target: WatchTarget, poll: WatchPoll) -> Script[list[Job]]:
    """Return all of its jobs; of a queue, the newest live ones."""
    if target.sort == "queue":
        return (yield from find({**target.filter, "states": LIVE}, limit=FIRST_SIGHT, after=None))
    return [poll.jobs[id] for id in sorted(poll.fingerprints[target]) if id in poll.jobs]


def changes_of(target: WatchTarget, poll: WatchPoll) -> list[Change]:
    """Return the changes for the watchers of a target, and note them as known."""
    fingerprints = poll.fingerprints[target]
    # The jobs were read after the fingerprints: the next poll need not report them again.
    now = fingerprints | {id: fingerprint(poll.jobs[id]) for id in fingerprints if id in poll.jobs}
    changed = [id for id, fields in now.items() if target.known.get(id) != fields]
    changes = [Change(name="changed", id=id, job=poll.jobs[id]) for id in sorted(changed) if id in poll.jobs]
    gone = [id for id, fields in target.known.items() if id not in now and _is_gone(target, id, fields, poll)]
    was_new, target.known, target.is_new = target.is_new, now, False
    return [] if was_new else [*changes, *(Change(name="gone", id=id, job=None) for id in sorted(gone))]


def _is_gone(target: WatchTarget, id: UUID, fields: Fingerprint, poll: WatchPoll) -> bool:
    """Return whether a job was deleted: finished or very old jobs of a queue are merely not read any more."""
    return target.sort != "queue" or (fields[0] not in FINISHED and id not in poll.unread)
