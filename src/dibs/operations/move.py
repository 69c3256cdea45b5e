"""Jobs that come from another store: who of them is new, and which place in its train each gets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.jobs.job import StoredJob


def key_of(job: StoredJob) -> str | None:
    """The unique key that it needs for itself; one that has finished needs none."""
    return None if job.is_finished else job.unique_key


def sorted_out(
    jobs: Sequence[StoredJob], holders: dict[Any, UUID]
) -> tuple[list[dict[str, Any]], list[StoredJob]]:
    """(an answer for each, those that are new); `holders` are ids and keys that are taken."""
    answers, new = [], []
    for job in jobs:
        holder = holders.get(job.id) or holders.get(key_of(job))
        answers.append({"id": job.id, "holder": holder or job.id, "is_new": holder is None})
        if holder is None:
            new.append(job)
            holders |= {job.id: job.id} | ({} if key_of(job) is None else {key_of(job): job.id})
    return answers, new


def by_train(jobs: Iterable[StoredJob]) -> dict[str, list[StoredJob]]:
    """Those that wait in trains, of each in the order of their places."""
    trains: dict[str, list[StoredJob]] = {}
    for job in sorted(jobs, key=lambda job: job.position or 0):
        if job.is_gated and job.train is not None and job.position is not None:
            trains.setdefault(job.train, []).append(job)
    return trains


def behind(last: int, coming: Sequence[StoredJob]) -> dict[UUID, int]:
    """Places behind the last one, in the order of their old ones."""
    return {job.id: last + nth for nth, job in enumerate(coming, 1)}


def placed(jobs: Sequence[StoredJob], places: Mapping[UUID, int]) -> list[StoredJob]:
    """The same jobs, some of them with another place."""
    return [structs.replace(job, position=places.get(job.id, job.position)) for job in jobs]
