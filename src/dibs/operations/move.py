"""Jobs that come from another store: which of them are new, and which position in its train each gets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.jobs.job import StoredJob


def key_of(job: StoredJob) -> str | None:
    """Return the unique key that the job needs for itself; one that has finished needs none."""
    return None if job.is_finished else job.unique_key


def sorted_out(
    jobs: Sequence[StoredJob], holders: dict[Any, UUID]
) -> tuple[list[dict[str, Any]], list[StoredJob]]:
    """Return (an answer for each, the new ones); `holders` are the jobs that have an id or a key."""
    answers, new = [], []
    for job in jobs:
        holder = holders.get(job.id) or holders.get(key_of(job))
        answers.append({"id": job.id, "holder": holder or job.id, "is_new": holder is None})
        if holder is None:
            new.append(job)
            holders |= {job.id: job.id} | ({} if key_of(job) is None else {key_of(job): job.id})
    return answers, new


def by_train(jobs: Iterable[StoredJob]) -> dict[str, list[StoredJob]]:
    """Return the jobs that wait in trains, of each train in the order of their positions."""
    trains: dict[str, list[StoredJob]] = {}
    for job in sorted(jobs, key=lambda job: job.position or 0):
        if job.is_gated and job.train is not None and job.position is not None:
            trains.setdefault(job.train, []).append(job)
    return trains


def behind(last: int, coming: Sequence[StoredJob]) -> dict[UUID, int]:
    """Return positions behind the last one, in the order of the old ones."""
    return {job.id: last + nth for nth, job in enumerate(coming, 1)}


def placed(jobs: Sequence[StoredJob], positions: Mapping[UUID, int]) -> list[StoredJob]:
    """Return the jobs with new positions, where they have one."""
    return [structs.replace(job, position=positions.get(job.id, job.position)) for job in jobs]
