"""The verbs, written once: scripts that ask the store questions and judge its answers.

Each state-changing verb asks exactly one question that changes something; the other steps only
read. A guarded question that changed nothing is followed by a look at the job, which tells a
lost race (ask again), a repetition (success) and a refusal (an error that says why) apart.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

from msgspec import Struct, structs

from dibs.contract import SETTLEMENT_COLUMNS, Mark
from dibs.errors import LeaseLost
from dibs.jobs import NEW_JOB_COLUMNS, STATES, Job, job_from_row
from dibs.looks import current_ids
from dibs.payload import decode
from dibs.scripts import Row, Rows, Script, Step
from dibs.states import JobState
from dibs.upkeep import sweep

T = TypeVar("T")

ENOUGH_LOOKS = 20  # a claim that others crowd out looks this often before it comes back empty-handed
ENOUGH_RACES = 20  # a guarded question that keeps losing this often points at a bug, not at luck


# -- Enqueue ------------------------------------------------------------------------------------


# A checked job as the store will get it, in the order of `NEW_JOB_COLUMNS`.
NewRow = tuple[Any, ...]

_GATE = slice(SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot") + 1)
_ID, _UNIQUE, _REPLACES = (NEW_JOB_COLUMNS.index(name) for name in ("id", "unique_key", "replaces"))
_REPLACED = [NEW_JOB_COLUMNS.index(name) for name in ("args", "run_at", "delay", "replaces")]


def enqueue(
    rows: Sequence[NewRow], *, fresh: bool, ours: Collection[UUID] = (), races: int = ENOUGH_RACES
) -> Script[list[Job]]:
    """Store all of these or none.

    `fresh` says that nobody can have stored these ids before; `ours` are ids that an earlier try of this
    very call may have stored, before its reply was lost: finding those is finding its own work.
    """
    known = {} if fresh else (yield from _rows_by_id([row[_ID] for row in rows]))
    batch, twins = distinct([row for row in rows if row[_ID] not in known] if known else rows, fresh)
    answers = (yield Step("enqueue", {"jobs": batch, "fresh": fresh})) if batch else ()
    holders = {answer["holder"] for answer in answers if not answer["is_new"]}
    known |= yield from _rows_by_id(holders)
    current = yield from current_ids(known.values())
    if not holders <= known.keys():
        return (yield from _enqueue_again(rows, ours, batch, answers, races))
    stored = {
        row[_ID]: _stored_job(row, answer, known, current, ours)
        for row, answer in zip(batch, answers, strict=True)
    }
    if len(stored) == len(rows):
        return list(stored.values())
    stored |= {
        id: job_from_row(row, is_new=id in ours, is_current=id in current)
        for id, row in known.items()
        if id not in stored
    }
    return _with_twins(rows, stored, twins)


def _enqueue_again(
    rows: Sequence[NewRow], ours: Collection[UUID], batch: Sequence[NewRow], answers: Rows, races: int
) -> Script[list[Job]]:
    """Who had a key was deleted since: try again, and know what this call has stored already."""
    if races <= 0:
        raise AssertionError(f"enqueue kept losing races for {[row[_ID] for row in rows]}")
    new = {row[_ID] for row, answer in zip(batch, answers, strict=True) if answer["is_new"]}
    return (yield from enqueue(rows, fresh=False, ours={*ours, *new}, races=races - 1))


def _stored_job(
    row: NewRow, answer: Row, known: Mapping[UUID, Row], current: Collection[UUID], ours: Collection[UUID]
) -> Job:
    if answer["is_new"]:
        return new_job(row, answer)
    holder = answer["holder"]
    is_new = holder == row[_ID] and holder in ours
    return job_from_row(known[holder], is_new=is_new, is_current=holder in current)


def distinct(rows: Sequence[NewRow], fresh: bool) -> tuple[Sequence[NewRow], dict[UUID, UUID]]:
    """The rows without those that share an id or a unique key with an earlier one of the same call.

    One that replaces what waits with its key does so here.
    """
    if fresh and not any(row[_UNIQUE] for row in rows):
        return rows, {}
    first_of: dict[Any, UUID] = {}
    batch: dict[UUID, NewRow] = {}
    twins: dict[UUID, UUID] = {}
    for row in rows:
        id, key = row[_ID], row[_ID] if row[_UNIQUE] is None else row[_UNIQUE]
        if key in first_of or id in first_of:
            first = twins[id] = first_of.get(id) or first_of[key]
            if row[_REPLACES]:
                batch[first] = _replaced(batch[first], row)
        else:
            first_of[key] = first_of[id] = id
            batch[id] = row
    return list(batch.values()), twins


def _replaced(first: NewRow, row: NewRow) -> NewRow:
    """The first with the arguments and the time of this one; who had the key before gets them, too."""
    return tuple(row[at] if at in _REPLACED else value for at, value in enumerate(first))


def _with_twins(rows: Sequence[NewRow], stored: Mapping[UUID, Job], twins: Mapping[UUID, UUID]) -> list[Job]:
    """One job per row again: a twin is answered with the job that was stored for the first of them."""
    seen: set[UUID] = set()
    return [_once(stored[twins.get(row[_ID], row[_ID])], row[_ID], seen) for row in rows]


def _once(job: Job, asked: UUID, seen: set[UUID]) -> Job:
    """Only the first answer for a stored job may call it new."""
    first = job.id not in seen
    seen.add(job.id)
    return job if first and job.id == asked else structs.replace(job, is_new=False)


def _rows_by_id(ids: Collection[UUID]) -> Script[dict[UUID, Row]]:
    if not ids:
        return {}
    found = yield Step("get", {"ids": list(ids)})
    return {row["id"]: row for row in found}


def new_job(values: tuple[Any, ...], answer: Row) -> Job:
    """The Job of what was just written: nothing is read back but its state and the store's times."""
    (id, kind, queue, args, priority, _, _, max_attempts, unique, _, _, pipeline, parent, *rest) = values
    tags, meta, train, slot, *_ = rest
    return Job(
        id=id,
        kind=kind,
        queue=queue,
        args=decode(args),
        priority=priority,
        state=STATES[answer["state"]],
        attempts=0,
        max_attempts=max_attempts,
        run_at=answer["run_at"],
        enqueued_at=answer["enqueued_at"],
        train=train,
        slot=slot,
        unique=unique,
        pipeline_id=pipeline,
        parent_id=parent,
        tags=[] if tags == "[]" else decode(tags),
        meta={} if meta == "{}" else decode(meta),
        is_new=True,
    )


# -- Claim --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a claimer asks for. `None` stands for all queues, any kind."""

    worker: str
    lease: int
    leases: Mapping[str, int]
    limit: int = 1
    queues: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    id: UUID | None = None
    marks: Sequence[Mark] = ()

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


def claim(wish: Wish) -> Script[list[Job]]:
    """Lease up to `wish.limit` jobs. Nobody else can settle them while the lease is kept."""
    rows = yield from _claim(wish, look=True)
    taken = _jobs(rows)
    if rows[0]["overdue"]:
        # A program that only ever claims by hand runs no worker, so the claim itself moves due jobs
        # and takes back expired leases; if it came back short it then looks once more.
        yield from sweep()
        if len(taken) < wish.limit:
            rest = yield from _claim(_less(wish, len(taken)), look=False)
            taken = [*taken, *_jobs(rest)]
    return _checked(wish, taken)


def _claim(wish: Wish, *, look: bool) -> Script[Rows]:
    params = wish.params(look=look)
    for _ in range(ENOUGH_LOOKS):
        rows = yield Step("claim" if wish.id is None else "claim_job", params)
        if rows[0]["limited"]:
            rows = yield Step("claim_within_limits", params)
        if rows[0]["id"] is not None or not rows[0]["crowded"]:
            break
    return rows


def _less(wish: Wish, taken: int) -> Wish:
    return Wish(**{name: getattr(wish, name) for name in Wish.__slots__} | {"limit": wish.limit - taken})


def _jobs(rows: Rows) -> list[Row]:
    return [row for row in rows if row["id"] is not None]


def _checked(wish: Wish, rows: Sequence[Row]) -> list[Job]:
    # PostgreSQL once answered 50 rows for LIMIT 3; should a statement ever do so again, say it.
    if len(rows) > wish.limit:
        raise AssertionError(f"the store leased {len(rows)} jobs where {wish.limit} were asked for")
    return [job_from_row(row) for row in rows]


def take(wish: Wish) -> Script[list[Job]]:
    """What a worker claims: the same, but upkeep is its own business."""
    return _checked(wish, _jobs((yield from _claim(wish, look=False))))


# -- Settle, renew, progress --------------------------------------------------------------------


class Settled(Struct, frozen=True, gc=False, kw_only=True):
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
    settlements: Sequence[Settled],
    *,
    left: list[Settled] | None = None,
    patience: Patience | None = None,
) -> Script[list[Settled]]:
    """Apply each settlement whose claim still holds its job; answer those whose claim does not.

    The settlement that won, sent again, counts as applied: its reply may have been lost. Where there is a
    list for what is `left`, a gate that somebody has locked is not waited for.
    """
    lost: list[Settled] = []
    for one_per_job in _rounds(settlements):
        lost += yield from _settle_round(one_per_job, left, patience)
    return lost


def _rounds(settlements: Sequence[Settled]) -> list[list[Settled]]:
    """One question never holds two settlements of one job: of a zombie and its successor, say."""
    if len({one.id for one in settlements}) == len(settlements):
        return [list(settlements)]
    rounds: list[dict[UUID, Settled]] = [{}]
    for one in settlements:
        for each in rounds:
            if one.id not in each:
                each[one.id] = one
                break
        else:
            rounds.append({one.id: one})
    return [list(each.values()) for each in rounds]


def _settle_round(
    settlements: Sequence[Settled],
    left: list[Settled] | None,
    patience: Patience | None,
) -> Script[list[Settled]]:
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
    settlements: Sequence[Settled], left: list[Settled] | None, patience: Patience | None = None
) -> dict[str, Any]:
    """How long to wait at gates, where that is said at all, and which unique keys are met on the way."""
    if patience is None and left is None:
        return {}
    keys = {one.id: one.unique for one in settlements if one.unique is not None}
    return {"patience": patience or "none", "keys": keys}


def _leave(waiting: Collection[UUID], settlements: Sequence[Settled], left: list[Settled]) -> None:
    left += [one for one in settlements if one.id in waiting]


def settle_params(settlements: Sequence[Settled]) -> dict[str, Any]:
    params: dict[str, Any] = {
        "settlements": [one.values for one in settlements],
        "children": [child for one in settlements for child in one.children],
    }
    if steps := [(one.id, one.steps_of) for one in settlements if one.steps_of is not None]:
        params["steps"] = steps
    return params


def exchange(
    settlements: Sequence[Settled],
    wish: Wish,
    *,
    left: list[Settled] | None = None,
) -> Script[tuple[list[Settled], list[Job]]]:
    """Settle and claim in one round trip and one commit: (those not settled, jobs claimed)."""
    first, *more = _rounds(settlements)
    marks = {"marks": wish.marks} if wish.marks and not any(map(_is_at_gate, first)) else {}
    given = settle_params(first) | wish.params(look=False) | marks | _waits(first, left)
    rows = yield Step("exchange", given)
    applied = set(rows[0]["settled"])
    if left is not None and (waiting := rows[0].get("waiting")):
        _leave(waiting, first, left)
        applied |= set(waiting)
    missing = [one for one in first if one.id not in applied]
    taken = _checked(wish, _jobs(rows))
    if rows[0]["limited"]:
        limited = yield Step("claim_within_limits", wish.params(look=False))
        taken = _checked(wish, _jobs(limited))
    rest = [*missing, *(one for each in more for one in each)]
    lost = (yield from settle_if_held(rest, left=left)) if rest else []
    return lost, taken


def _is_at_gate(one: Settled) -> bool:
    """Whom its gate lets through may stand before the marks, and is to be claimed at once."""
    return one.values[_GATE] != (None, None)


def _won_before(one: Settled, row: Row | None) -> bool:
    return row is not None and (row["settled_token"], row["settled_as"]) == (
        one.token,
        one.settled_as,
    )


def _holds(one: Settled, row: Row | None) -> bool:
    return row is not None and (row["state"], row["token"]) == (JobState.running, one.token)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a claim stands: until when it holds, and whether somebody asked it to stop."""

    lease_until: datetime
    cancel_reason: str | None


def renew(claims: Sequence[tuple[UUID, int]], lease: int) -> Script[dict[tuple[UUID, int], Standing]]:
    """Push the leases that are still held; a claim missing from the answer is lost.

    A row that somebody has locked (an open `succeed(within=…)`) is not waited for: it stands as
    it did, and is renewed at the next beat.
    """
    rows = yield Step("renew", {"claims": list(claims), "lease": lease})
    return {(row["id"], row["token"]): Standing(row["lease_until"], row["cancel_reason"]) for row in rows}


def progress(id: UUID, token: int, fraction: float, message: str | None) -> Script[Standing]:
    rows = yield Step("progress", {"job": id, "token": token, "fraction": fraction, "message": message})
    if not rows:
        raise lease_lost(id, token)
    return Standing(rows[0]["lease_until"], rows[0]["cancel_reason"])


def lease_lost(id: UUID, token: int) -> LeaseLost:
    return LeaseLost(
        f"job {id} is no longer held by the claim with token {token}: its lease ran out and the job "
        "was taken back, or it was settled otherwise; nothing was changed"
    )
