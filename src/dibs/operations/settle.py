"""Settle, renew and note progress: only the claim that holds a job may change it.

After a settlement that changed nothing the job is read, to tell a lost race (ask again), a repetition
(success) and a lost claim apart. What a claim tried after it had lost its job is recorded with the job.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from dibs.errors import LeaseLost
from dibs.jobs.job import NEW_JOB_COLUMNS, Job
from dibs.jobs.states import JobState
from dibs.operations.claim import ClaimRequest, checked_jobs, claimed_rows
from dibs.operations.enqueue import ENOUGH_RACES, NewRow
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Row, Script, Step

_ID = NEW_JOB_COLUMNS.index("id")
_COLUMNS = len(SETTLEMENT_COLUMNS)  # the first fields of a request, in this order


class SettleRequest(Struct, frozen=True, gc=False, kw_only=True):
    """One settlement on its way to the store, and the children that come with success."""

    id: UUID
    token: int
    state: JobState
    settled_as: str
    delay: int | None
    refund: bool
    result: str | None
    errors: str
    message: str | None
    pipeline_id: UUID | None
    train: str | None
    slot: str | None
    children: Sequence[NewRow] = ()
    steps_of: UUID | None = None
    """Its pipeline, where other jobs may wait for this one."""
    unique: str | None = None
    worker: str | None = None

    @property
    def child_ids(self) -> list[UUID]:
        return [child[_ID] for child in self.children]


# Locks that are waited for. "none": not those of gates and keys; "wary": not those of the jobs' own rows,
# either; "short": all, for a second.
Patience = Literal["none", "wary", "short"]


class NotSettled(NamedTuple):
    """The settlements that were not applied."""

    lost: Sequence[SettleRequest] = ()
    """Their claims no longer hold the job."""
    locked: Sequence[SettleRequest] = ()
    """Their gate or their row was locked by an open transaction, for longer than the caller waits."""


def settle_one(one: SettleRequest) -> Script[None]:
    """Settle if the claim still holds its job, else `LeaseLost`."""
    if (yield from settle_if_held([one])).lost:
        raise lease_lost(one.id, one.token)


def settle_if_held(
    settlements: Sequence[SettleRequest], *, patience: Patience | None = None
) -> Script[NotSettled]:
    """Apply each settlement that has a claim which still holds its job; return the others.

    The settlement that won, sent again, counts as applied: its reply may have been lost. Without `patience` a
    locked gate is waited for.
    """
    not_settled = NotSettled()
    for one_per_job in _rounds(settlements):
        lost, locked = yield from _settle_round(one_per_job, patience)
        not_settled = NotSettled([*not_settled.lost, *lost], [*not_settled.locked, *locked])
    return not_settled


def _rounds(settlements: Sequence[SettleRequest]) -> list[list[SettleRequest]]:
    """Split settlements so that no question has two of one job: of a lost claim and its successor, say."""
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


def _settle_round(settlements: Sequence[SettleRequest], patience: Patience | None) -> Script[NotSettled]:
    open_ones, locked = list(settlements), list[SettleRequest]()
    for _ in range(ENOUGH_RACES):
        if not open_ones:
            return NotSettled((), locked)
        rows = yield Step("settle", settle_params(open_ones) | _waits(open_ones, patience))
        if patience is not None:
            locked += _of({row["id"] for row in rows if row.get("waits")}, open_ones)
        applied = {row["id"] for row in rows}
        open_ones = [one for one in open_ones if one.id not in applied]
        if not open_ones:
            return NotSettled((), locked)
        found = yield Step("settled", {"ids": [one.id for one in open_ones]})
        stored = {row["id"]: row for row in found}
        open_ones = [one for one in open_ones if not _won_before(one, stored.get(one.id))]
        if not any(_holds(one, stored.get(one.id)) for one in open_ones):
            yield from record_refusals(
                LateWrite(one.id, one.token, one.worker, one.settled_as) for one in open_ones
            )
            return NotSettled(open_ones, locked)
    raise AssertionError(f"settle kept losing races for {[one.id for one in open_ones]}")


def _waits(settlements: Sequence[SettleRequest], patience: Patience | None) -> dict[str, Any]:
    """Return how long to wait at gates, where that is said at all, and the unique keys that may be locked."""
    if patience is None:
        return {}
    keys = {one.id: one.unique for one in settlements if one.unique is not None}
    return {"patience": patience, "keys": keys}


def _of(ids: Collection[UUID], settlements: Sequence[SettleRequest]) -> list[SettleRequest]:
    return [one for one in settlements if one.id in ids]


def settle_params(settlements: Sequence[SettleRequest]) -> dict[str, Any]:
    params: dict[str, Any] = {
        "settlements": [astuple(one)[:_COLUMNS] for one in settlements],
        "children": [child for one in settlements for child in one.children],
    }
    if steps := [(one.id, one.steps_of) for one in settlements if one.steps_of is not None]:
        params["steps"] = steps
    return params


def exchange(
    settlements: Sequence[SettleRequest], request: ClaimRequest, *, patience: Patience | None = None
) -> Script[tuple[NotSettled, list[Job]]]:
    """Settle and claim in one round trip and one commit: (settlements not applied, jobs claimed)."""
    first, *more = _rounds(settlements)
    places = {} if any(map(_is_at_gate, first)) else request.places()
    given = settle_params(first) | request.params(look=False) | places | _waits(first, patience)
    rows = yield Step("exchange", given)
    applied, waiting = set(rows[0]["settled"]), set[UUID]()
    if patience is not None:
        waiting = set(rows[0].get("waiting") or ())
    locked = _of(waiting, first)
    missing = [one for one in first if one.id not in applied and one.id not in waiting]
    taken = checked_jobs(request, claimed_rows(rows))
    if rows[0]["limited"]:
        limited = yield Step("claim_within_limits", request.params(look=False))
        taken = checked_jobs(request, claimed_rows(limited))
    rest = [*missing, *(one for each in more for one in each)]
    if not rest:
        return NotSettled((), locked), taken
    lost, more_locked = yield from settle_if_held(rest, patience=patience)
    return NotSettled(lost, [*locked, *more_locked]), taken


def _is_at_gate(one: SettleRequest) -> bool:
    """Return whether the job has a gate: the next job that it lets go may be before the cursors."""
    return one.train is not None or one.slot is not None


def _won_before(one: SettleRequest, row: Row | None) -> bool:
    return row is not None and (row["settled_token"], row["settled_as"]) == (one.token, one.settled_as)


def _holds(one: SettleRequest, row: Row | None) -> bool:
    return row is not None and (row["state"], row["token"]) == (JobState.running, one.token)


@dataclass(frozen=True, slots=True)
class Renewal:
    """The state of a claim in the store: until when it holds, and whether it was asked to stop."""

    lease_until: datetime
    cancel_reason: str | None


def renew(claims: Sequence[tuple[UUID, int]], lease: int) -> Script[dict[tuple[UUID, int], Renewal]]:
    """Extend the leases that are still held; a claim missing from the result is lost.

    A row that a transaction has locked (an open `succeed(within=…)`) is not waited for: it stays as it was,
    and is renewed at the next heartbeat.
    """
    rows = yield Step("renew", {"claims": list(claims), "lease": lease})
    return {(row["id"], row["token"]): Renewal(row["lease_until"], row["cancel_reason"]) for row in rows}


def renew_one(id: UUID, token: int, lease: int, worker: str | None) -> Script[Renewal]:
    """Extend one lease, else `LeaseLost`."""
    renewals = yield from renew([(id, token)], lease)
    if (id, token) not in renewals:
        yield from record_refusals([LateWrite(id, token, worker, "renew")])
        raise lease_lost(id, token)
    return renewals[id, token]


def progress(
    id: UUID, token: int, fraction: float, message: str | None, worker: str | None
) -> Script[Renewal]:
    rows = yield Step("progress", {"job": id, "token": token, "fraction": fraction, "message": message})
    if not rows:
        yield from record_refusals([LateWrite(id, token, worker, "progress")])
        raise lease_lost(id, token)
    return Renewal(rows[0]["lease_until"], rows[0]["cancel_reason"])


def lease_lost(id: UUID, token: int) -> LeaseLost:
    return LeaseLost(
        f"job {id} is no longer held by the claim with token {token}: its lease ran out and the job "
        "was taken back, or it was settled otherwise; nothing was changed"
    )


def given_up(id: UUID, token: int) -> LeaseLost:
    return LeaseLost(
        f"the claim on job {id} with token {token} was given up: its lease could not be renewed in time, or "
        "the job was taken back; another worker may have it by now"
    )


# -- Refused writes -----------------------------------------------------------------------------

MOST_KEPT = 20  # refusals of a job


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A write of a claim that held the job no longer: refused. Example: `await app.refusals(job.id)`"""

    at: datetime
    """By the store's clock."""
    worker: str | None
    token: int
    tried: str
    """As what it was to be settled (`succeeded`, `retried` …), or `renew` or `progress`."""


class LateWrite(NamedTuple):
    """A write to be recorded as refused."""

    job: UUID
    token: int
    worker: str | None
    tried: str


def record_refusals(writes: Iterable[LateWrite]) -> Script[None]:
    """Record these with their jobs, if they are still there; one that is repeated only once."""
    for write in writes:
        yield Step("refuse", write._asdict())


def refusals(id: UUID) -> Script[list[Refusal]]:
    """Return the refused writes of a job, oldest first."""
    rows = yield Step("refusals", {"job": id})
    found = [
        Refusal(at=row["refused_at"], worker=row["worker"], token=row["token"], tried=row["tried"])
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.at, one.token))


def forget_refusals() -> Script[None]:
    """Remove what was recorded of jobs that are gone."""
    yield Step("forget_refusals", {})
