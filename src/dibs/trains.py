"""Trains as people see them: who is at the head, how many follow, and whether one waits for a person."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from dibs.errors import NotFound
from dibs.jobs.job import Job, job_from_row
from dibs.scripts import Row, Script, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Jobs that run strictly one after another. There is one as long as somebody is on it."""

    name: str
    head: Job | None
    """The job that goes first: it waits, runs or, when the train is held, has ended."""
    length: int
    """How many jobs are on it, its head included."""
    held: bool
    """Its head failed or was cancelled, and was to hold the others: retry it, or release the train."""


def look(names: Sequence[str] | None, *, held: bool, after: str | None, limit: int) -> Script[list[Train]]:
    """Trains by name."""
    which = {"names": names, "held": held, "after": after, "limit": limit}
    rows = yield Step("gates", {"sort": "train", **which})
    heads = yield from _heads(rows)
    return [_train(row, heads) for row in rows]


def all_held(page: int) -> Script[list[Train]]:
    """Every train that waits for a person, however many they are."""
    found: list[Train] = []
    while True:
        some = yield from look(None, held=True, after=found[-1].name if found else None, limit=page)
        found += some
        if len(some) < page:
            return found


def _heads(rows: Sequence[Row]) -> Script[dict[UUID, Job]]:
    ids = [row["head"] for row in rows if row["head"] is not None]
    found = (yield Step("get", {"ids": ids})) if ids else ()
    return {row["id"]: job_from_row(row) for row in found}


def _train(row: Row, heads: dict[UUID, Job]) -> Train:
    return Train(name=row["name"], head=heads.get(row["head"]), length=row["length"], held=bool(row["held"]))


def release(name: str, *, unsure: bool = False) -> Script[bool]:
    """Let the next of a held train go; whether it was held. A train that nobody is on can't be released."""
    rows = yield Step("release_train", {"name": name})
    if not rows and not unsure:
        raise NotFound(name)
    return unsure or any(row["was_held"] for row in rows)
