"""Settle, renew and note progress: only the claim that holds a job may change it.

A settlement that changed nothing is followed by a look at the job, which tells a lost race (ask again), a
repetition (success) and a lost claim apart.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from dibs.errors import LeaseLost
from dibs.jobs.job import NEW_JOB_COLUMNS, Job
from dibs.jobs.states import JobState
from dibs.operations.claim import ClaimRequest, checked_jobs, claimed_rows
from dibs.operations.enqueue import ENOUGH_RACES, NewRow
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Row, Script, Step

_ID = NEW_JOB_COLUMNS.index("id")
_GATE = slice(SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot") + 1)


class SettleRequest(Struct, frozen=True, gc=False, kw_only=True):
    """One settlement on its way to the store, and the children that come with success."""

    values: tuple[Any, ...]  # in the order of contract.SETTLEMENT_COLUMNS
    children: Sequence[NewRow] = ()
    steps_of: UUID | None = None  # its pipeline, where others may wait for this job
    unique: str | None = None

    @property
    def id(self) -> UUID:
        id: UUID = self.values[0]
        return id

    @property
    def token(self) -> int:
        token: int = self.values[1]
        return token

    @property
    def settled_as(self) -> str:
        name: str = self.values[3]
        return name

    @property
    def child_ids(self) -> list[UUID]:
        return [child[_ID] for child in self.children]

    @property
    def delay(self) -> int | None:
        delay: int | None = self.values[4]
        return delay

    @property
    def errors(self) -> str:
        errors: str = self.values[7]
        return errors


Patience = Literal["none", "short"]


def settle_if_held(
    settlements: Sequence[SettleRequest],
    *,
    left: list[SettleRequest] | None = None,
    patience: Patience | None = None,
) -> Script[list[SettleRequest]]:
    """Apply each settlement whose claim still holds its job; answer those whose claim does not.

    The settlement that won, sent again, counts as applied: its reply may have been lost. Where there is a
    list for what is `left`, a gate that somebody has locked is not waited for.
    """
    lost: list[SettleRequest] = []
    for one_per_job in _rounds(settlements):
        lost += yield from _settle_round(one_per_job, left, patience)
    return lost


def _rounds(settlements: Sequence[SettleRequest]) -> list[list[SettleRequest]]:
    """One question never holds two settlements of one job: of a zombie and its successor, say."""
    if len({one.id for one in settlements}) == len(settlements):
        return [list(settlements)]
    rounds: list[dict[UUID, SettleRequest]] = [{}]
    for one in settlements:
        for each in rounds:
            if one.id not in each:
                each[one.id] = one
                break
        else:
            rounds.append({one.id: one})
    return [list(each.values()) for each in rounds]


def _settle_round(
    settlements: Sequence[SettleRequest],
    left: list[SettleRequest] | None,
    patience: Patience | None,
) -> Script[list[SettleRequest]]:
    open_ones = list(settlements)
    for _ in range(ENOUGH_RACES):
        if not open_ones:
            return []
        waits = _waits(open_ones, left, patience)
        rows = yield Step("settle", settle_params(open_ones) | waits)
        if left is not None:
            _leave({row["id"] for row in rows if row.get("waits")}, open_ones, left)
        applied = {row["id"] for row in rows}
        open_ones = [one for one in open_ones if one.id not in applied]
        if not open_ones:
            return []
        found = yield Step("settled", {"ids": [one.id for one in open_ones]})
        standing = {row["id"]: row for row in found}
        open_ones = [one for one in open_ones if not _won_before(one, standing.get(one.id))]
        if not any(_holds(one, standing.get(one.id)) for one in open_ones):
            return open_ones
    raise AssertionError(f"settle kept losing races for {[one.id for one in open_ones]}")


def _waits(
    settlements: Sequence[SettleRequest], left: list[SettleRequest] | None, patience: Patience | None = None
) -> dict[str, Any]:
    """How long to wait at gates, where that is said at all, and which unique keys are met on the way."""
    if patience is None and left is None:
        return {}
    keys = {one.id: one.unique for one in settlements if one.unique is not None}
    return {"patience": patience or "none", "keys": keys}


def _leave(
    waiting: Collection[UUID], settlements: Sequence[SettleRequest], left: list[SettleRequest]
) -> None:
    left += [one for one in settlements if one.id in waiting]


def settle_params(settlements: Sequence[SettleRequest]) -> dict[str, Any]:
    params: dict[str, Any] = {
        "settlements": [one.values for one in settlements],
        "children": [child for one in settlements for child in one.children],
    }
    if steps := [(one.id, one.steps_of) for one in settlements if one.steps_of is not None]:
        params["steps"] = steps
    return params


def exchange(
    settlements: Sequence[SettleRequest],
    request: ClaimRequest,
    *,
    left: list[SettleRequest] | None = None,
) -> Script[tuple[list[SettleRequest], list[Job]]]:
    """Settle and claim in one round trip and one commit: (those not settled, jobs claimed)."""
    first, *more = _rounds(settlements)
    marks = {"marks": request.marks} if request.marks and not any(map(_is_at_gate, first)) else {}
    given = settle_params(first) | request.params(look=False) | marks | _waits(first, left)
    rows = yield Step("exchange", given)
    applied = set(rows[0]["settled"])
    if left is not None and (waiting := rows[0].get("waiting")):
        _leave(waiting, first, left)
        applied |= set(waiting)
    missing = [one for one in first if one.id not in applied]
    taken = checked_jobs(request, claimed_rows(rows))
    if rows[0]["limited"]:
        limited = yield Step("claim_within_limits", request.params(look=False))
        taken = checked_jobs(request, claimed_rows(limited))
    rest = [*missing, *(one for each in more for one in each)]
    lost = (yield from settle_if_held(rest, left=left)) if rest else []
    return lost, taken


def _is_at_gate(one: SettleRequest) -> bool:
    """Whom its gate lets through may stand before the marks, and is to be claimed at once."""
    return one.values[_GATE] != (None, None)


def _won_before(one: SettleRequest, row: Row | None) -> bool:
    return row is not None and (row["settled_token"], row["settled_as"]) == (
        one.token,
        one.settled_as,
    )


def _holds(one: SettleRequest, row: Row | None) -> bool:
    return row is not None and (row["state"], row["token"]) == (JobState.running, one.token)


@dataclass(frozen=True, slots=True)
class Renewal:
    """How a claim stands: until when it holds, and whether somebody asked it to stop."""

    lease_until: datetime
    cancel_reason: str | None


def renew(claims: Sequence[tuple[UUID, int]], lease: int) -> Script[dict[tuple[UUID, int], Renewal]]:
    """Push the leases that are still held; a claim missing from the answer is lost.

    A row that somebody has locked (an open `succeed(within=…)`) is not waited for: it stands as
    it did, and is renewed at the next beat.
    """
    rows = yield Step("renew", {"claims": list(claims), "lease": lease})
    return {(row["id"], row["token"]): Renewal(row["lease_until"], row["cancel_reason"]) for row in rows}


def progress(id: UUID, token: int, fraction: float, message: str | None) -> Script[Renewal]:
    rows = yield Step("progress", {"job": id, "token": token, "fraction": fraction, "message": message})
    if not rows:
        raise lease_lost(id, token)
    return Renewal(rows[0]["lease_until"], rows[0]["cancel_reason"])


def lease_lost(id: UUID, token: int) -> LeaseLost:
    return LeaseLost(
        f"job {id} is no longer held by the claim with token {token}: its lease ran out and the job "
        "was taken back, or it was settled otherwise; nothing was changed"
    )
