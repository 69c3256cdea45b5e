"""Settlements on MySQL and MariaDB: lock gates and keys, then the jobs still held, then open the gates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from dibs.engines.mysql.claims import MysqlClaims
from dibs.engines.mysql.enqueue import MysqlEnqueue
from dibs.engines.mysql.gates import gates_of, leave
from dibs.engines.sql.engine import Plan, Query
from dibs.engines.sql.values import as_json, as_moment, chunks, later
from dibs.jobs.gates import Key
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import FINISHED, JobState, put_back
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Row

_PARENT, _TRAIN, _SLOT = (NEW_JOB_COLUMNS.index(name) for name in ("parent_id", "train", "slot"))


class MysqlSettle(MysqlClaims, MysqlEnqueue):
    """The answers for holders of claims: settle, exchange, renew, progress."""

    def _settle(
        self,
        settlements: Sequence[tuple[Any, ...]],
        children: Sequence[tuple[Any, ...]],
        patience: str | None = None,
        keys: Mapping[UUID, str] | None = None,
    ) -> Plan:
        patience = "none" if patience == "wary" else patience
        given = [dict(zip(SETTLEMENT_COLUMNS, values, strict=True)) for values in settlements]
        needed = _gates_by_settlement(given, children)
        gates, taken = yield from self._lock_with_patience(set().union(*needed.values()), patience)
        waiting = {id for id, gates_of_it in needed.items() if gates_of_it & taken}
        if keys is None:
            keys = yield from self._keys_of(given)
        waiting |= yield from self._locked_keys(keys, patience)
        given = [one for one in given if one["id"] not in waiting]
        held, locked = yield from self._held_or_locked([(one["id"], one["token"]) for one in given], patience)
        waiting |= locked
        applied = [_put_back(one, held[one["id"]]) for one in given if one["id"] in held]
        yield from self._end_settled([one for one in applied if one["state"] in FINISHED])
        back = [one for one in applied if one["state"] not in FINISHED]
        for chunk in chunks(map(_settlement, back)):
            yield Query("return_settled", {"settlements": chunk})
        for one in applied:
            if one["state"] in FINISHED:
                leave(gates, held[one["id"]], one["state"])
        yield from self._open_gates(gates)
        yield from self._chain([child for child in children if child[_PARENT] in held])
        return [*({"id": id} for id in held), *({"id": id, "waits": True} for id in waiting)]

    def _held_or_locked(self, claims: Sequence[tuple[UUID, int]], patience: str | None) -> Any:
        """Return (claims that still hold their job, locked; with `none` the jobs with a locked row)."""
        held = yield from self._held("held_and_free" if patience == "none" else "held", claims)
        missing = [claim for claim in claims if claim[0] not in held] if patience == "none" else []
        return held, set((yield from self._held("standing", missing)))

    def _held(self, block: str, claims: Iterable[tuple[UUID, int]]) -> Any:
        """Return the claims that still hold their job, by id, locked in the order of ids."""
        pairs = sorted((id.hex, token) for id, token in claims)
        if not pairs:
            return {}
        return {row["id"]: row for row in (yield Query(block, {"claims": as_json(pairs)}))}

    def _keys_of(self, given: Sequence[Mapping[str, Any]]) -> Any:
        claims = [(one["id"].hex, one["token"]) for one in given]
        return {
            row["id"]: row["unique_key"] for row in (yield Query("keys_held", {"claims": as_json(claims)}))
        }

    def _locked_keys(self, keys: Mapping[UUID, str], patience: str | None) -> Any:
        """Return the jobs with a unique key that an open transaction has locked; they can't be settled."""
        if not keys:
            return set()
        block = {None: "lock_keys", "none": "free_keys", "short": "keys_soon"}[patience]
        rows = yield Query(block, {"keys": as_json(sorted(keys.values()))})
        free = {row["unique_key"] for row in rows}
        return {id for id, key in keys.items() if key not in free} if patience == "none" else set()

    def _end_settled(self, ended: Sequence[Mapping[str, Any]]) -> Plan:
        for chunk in chunks(map(_settlement, ended)):
            yield Query("end_settled", {"settlements": chunk})
        return (yield from self._each("forget", (one["id"] for one in ended)))

    def _chain(self, children: Sequence[tuple[Any, ...]]) -> Plan:
        """Add the children of settled jobs; one with a taken key is left out.

        Whether they have finished is read without a lock: within a caller's transaction at REPEATABLE READ
        that would lock the gap where finished jobs are stored, and block every settlement until the commit.
        """
        return (yield from self._enqueue(children, fresh=False, finished="ended")) if children else []

    def _exchange(
        self,
        settlements: Any,
        children: Any,
        patience: str | None = None,
        keys: Mapping[UUID, str] | None = None,
        **wish: Any,
    ) -> Plan:
        rows = yield from self._settle(settlements, children, patience, keys)
        waiting = [row["id"] for row in rows if row.get("waits")]
        first, *rest = yield from self._claim(**wish)
        settled = [row["id"] for row in rows if not row.get("waits")]
        return [{**first, "settled": settled, "waiting": waiting}, *rest]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        free = yield from self._held("held_and_free", claims)
        until = {id: later(row["now"], lease) for id, row in free.items()}
        if free:
            newest = max(until.values())
            yield from self._each("renew", free, lease_until=as_moment(newest))
            until = dict.fromkeys(until, newest)
        locked = [claim for claim in claims if claim[0] not in free]
        others = yield from self._held("standing", locked)
        return [*({**row, "lease_until": until[id]} for id, row in free.items()), *others.values()]

    def _progress(self, job: UUID, token: int, fraction: float, message: str | None) -> Plan:
        if not (yield from self._held("held", [(job, token)])):
            return []
        yield Query("progress", {"job": job.hex, "fraction": fraction, "message": message})
        return (yield Query("standing", {"claims": as_json([(job.hex, token)])}))


def _gates_by_settlement(
    settlements: Iterable[Mapping[str, Any]], children: Iterable[tuple[Any, ...]]
) -> dict[UUID, set[Key]]:
    """Return the gates to lock for each settlement: its own, and its children's."""
    needed = {one["id"]: set(gates_of([one])) for one in settlements}
    for child in children:
        needed[child[_PARENT]] |= set(gates_of([{"train": child[_TRAIN], "slot": child[_SLOT]}]))
    return needed


def _put_back(given: dict[str, Any], job: Row) -> dict[str, Any]:
    state = put_back(given["state"], cancel_asked=job["cancel_reason"] is not None)
    if state == JobState.ready and job["slot"] is not None:
        state = JobState.blocked  # until its gate lets it through again
    return {**given, "state": state}


def _settlement(given: Mapping[str, Any]) -> list[Any]:
    return [given[name] for name in SETTLEMENT_COLUMNS]
