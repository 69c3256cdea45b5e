"""Lease jobs: what a claim asks for, and the check that a store never leases more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from dibs.jobs.job import Job, job_from_row
from dibs.operations.questions import Cursor
from dibs.operations.scripts import Row, Rows, Script, Step
from dibs.operations.upkeep import Swept, sweep

MOST_TRIES = 20  # a claim that meets only jobs locked by other claims is asked this often


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a claim asks for. `None` stands for all queues, any kind."""

    worker: str
    lease: int
    leases: Mapping[str, int]
    limit: int = 1
    queues: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    id: UUID | None = None
    marks: Sequence[Cursor] = ()
    ahead: Sequence[UUID] = ()
    named: Sequence[UUID] = ()

    def params(self, *, look: bool) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "lease": self.lease,
            "leases": self.leases,
            "limit": self.limit,
            "queues": self.queues,
            "kinds": self.kinds,
            "job": self.id,
            "look": look,
        }

    def places(self) -> dict[str, Any]:
        """Return where to claim, if that is said at all."""
        said = {"named": self.named, "marks": self.marks, "ahead": self.ahead}
        return {name: value for name, value in said.items() if value}


def claim(request: ClaimRequest) -> Script[tuple[list[Job], Swept | None]]:
    """Lease up to `request.limit` jobs. No other claim can settle them while the lease is kept.

    Return them, and what a sweep changed that was due.
    """
    rows = yield from _claim(request, look=True)
    taken, swept = claimed_rows(rows), None
    if rows[0]["overdue"]:
        # A program that only ever claims by hand runs no worker, so the claim itself stages due jobs and
        # takes back expired leases; if it got fewer than it wanted it then asks once more.
        swept = yield from sweep()
        if len(taken) < request.limit:
            rest = yield from _claim(replace(request, limit=request.limit - len(taken)), look=False)
            taken = [*taken, *claimed_rows(rest)]
    return checked_jobs(request, taken), swept


def _claim(request: ClaimRequest, *, look: bool) -> Script[Rows]:
    params, places = request.params(look=look), request.places()
    for _ in range(MOST_TRIES):
        rows = yield Step("claim" if request.id is None else "claim_job", params | places)
        if rows[0]["limited"]:
            rows = yield Step("claim_within_limits", params)
        if rows[0]["id"] is not None or not rows[0]["crowded"]:
            break
    return rows


def claimed_rows(rows: Rows) -> list[Row]:
    return [row for row in rows if row["id"] is not None]


def checked_jobs(request: ClaimRequest, rows: Sequence[Row]) -> list[Job]:
    # PostgreSQL once returned 50 rows for LIMIT 3; should a statement ever do so again, say it.
    if len(rows) > request.limit:
        raise AssertionError(f"the store leased {len(rows)} jobs where {request.limit} were asked for")
    return [job_from_row(row) for row in rows]


def take(request: ClaimRequest) -> Script[list[Job]]:
    """Lease jobs for a worker, which does upkeep by itself."""
    return checked_jobs(request, claimed_rows((yield from _claim(request, look=False))))
