"""Claims and settlements on MySQL and MariaDB: a locking read, a decision in Python, one write.

The queue-kind pairs are found first; then the first jobs of one pair are locked, or the best of several.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dibs.clock import to_micros
from dibs.engines.mysql.enqueue import MysqlEnqueue
from dibs.engines.mysql.gates import MysqlGates, gates_of, leave
from dibs.engines.sql.engine import LOOKS, Plan, Query, claiming_order
from dibs.engines.sql.values import as_ids, as_json, as_moment, chunks, later
from dibs.jobs.gates import Key
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.jobs.states import FINISHED, JobState, put_back
from dibs.operations.questions import SETTLEMENT_COLUMNS, Cursor
from dibs.operations.scripts import Row, Rows, Tuples

# Above this number of pairs it is cheaper to find the ones that exist.
MOST_NAMED_LINES = 32

Line = tuple[str, str]  # queue, kind

_PARENT, _TRAIN, _SLOT = (NEW_JOB_COLUMNS.index(name) for name in ("parent_id", "train", "slot"))


class MysqlClaims(MysqlGates):
    """The answers to claims."""

    def _claim(self, look: bool, marks: Sequence[Cursor] = (), **wish: Any) -> Plan:
        opening = yield from self._opening(look)
        if not marks or any(mark.queue in opening.limits for mark in marks):
            return (yield from self._claim_from(opening, {}, wish))
        return (yield from self._claim_on(opening, marks, wish))

    def _claim_within_limits(self, look: bool, **wish: Any) -> Plan:
        yield Query("lock_limits", {})
        running = {row["name"]: row["running"] for row in (yield Query("running", {}))}
        opening = yield from self._opening(look)
        room = {queue: most - running.get(queue, 0) for queue, most in opening.limits.items()}
        if wish["job"] is not None:
            return (yield from self._claim_one(opening, room, wish))
        return (yield from self._claim_from(opening, room, wish))

    def _claim_job(self, look: bool, **wish: Any) -> Plan:
        opening = yield from self._opening(look)
        return (yield from self._claim_one(opening, {}, wish))

    def _opening(self, look: bool) -> Any:
        rows = yield Query("opening", {"look": look})
        paused = frozenset(row["name"] for row in rows if row["paused"])
        limits = {row["name"]: row["max_running"] for row in rows if row["max_running"] is not None}
        return Opening(bool(rows[0]["overdue"]), paused, limits)

    def _claim_one(self, opening: "Opening", room: Mapping[str, int], wish: Mapping[str, Any]) -> Plan:
        """Retry for up to 1.5 s while another transaction has the job's row locked; it may not claim it."""
        for pause in LOOKS:
            if pause:
                yield Query("rest", {"seconds": pause})
            if (claimed := (yield from self._try_one(opening, room, wish))) is not None:
                return claimed  # type: ignore[no-any-return]
        return (yield from self._leased(opening, [], wish))

    def _try_one(self, opening: "Opening", room: Mapping[str, int], wish: Mapping[str, Any]) -> Any:
        """Return None if another transaction has locked the job, or its slot."""
        rows = yield Query("lock_these", {"ids": as_ids([wish["job"]])})
        behind = [] if rows else (yield Query("behind_slot", {"job": wish["job"].hex}))
        if not rows and not behind and (yield Query("looks_ready", {"job": wish["job"].hex})):
            return None
        free = [row for row in rows or behind if row["queue"] not in opening.paused]
        if any(row["queue"] in opening.limits and row["queue"] not in room for row in free):
            return [opening.header | {"limited": True, "id": None}]
        free = [row for row in free if room.get(row["queue"], 1) > 0]
        if free and behind:
            return (yield from self._overtake(opening, free[0], wish))
        return (yield from self._leased(opening, free, wish))

    def _overtake(self, opening: "Opening", job: Row, wish: Mapping[str, Any]) -> Any:
        """Claim a job that waits for its slot, if fewer jobs run there than the limit."""
        gates, taken = yield from self._lock_with_patience([("slot", job["slot"])], "none")
        if taken:
            return None
        [gate] = gates.values()
        has_room = yield from self._has_room(gate, job["slot_limit"])
        rows = (yield Query("lock_behind_slot", {"job": wish["job"].hex})) if has_room else []
        claimed = yield from self._leased(opening, rows, wish)
        if rows:
            yield from self._open_gates(gates)
        return claimed

    def _claim_from(self, opening: "Opening", room: Mapping[str, int], wish: Mapping[str, Any]) -> Plan:
        named = _named_lines(opening, wish)
        if named is not None and len(named) == 1 and not opening.limits:
            return (yield from self._claim_line(opening, named[0], wish))
        lines = yield from self._walk(opening, wish) if named is None else self._near(named, wish["limit"])
        if any(queue in opening.limits and queue not in room for queue, _ in lines):
            return [opening.header | {"limited": True, "id": None}]
        if len(lines) == 1 and not room:
            return (yield from self._claim_line(opening, next(iter(lines)), wish))
        near = sorted((job for jobs in lines.values() for job in jobs), key=_rank)
        return (yield from self._claim_best(opening, near, room, wish))

    def _claim_line(self, opening: "Opening", line: Line, wish: Mapping[str, Any]) -> Plan:
        rows = yield Query("lock_first", _first_of(line, wish["limit"]))
        return (yield from self._leased(opening, rows, wish))

    def _claim_on(self, opening: "Opening", marks: Sequence[Cursor], wish: Mapping[str, Any]) -> Plan:
        """Claim only behind these cursors."""
        places = [_place(mark, wish["limit"]) for mark in marks if mark.queue not in opening.paused]
        if len(places) == 1:
            return (yield from self._leased(opening, (yield Query("lock_first_on", places[0])), wish))
        near: list[Row] = []
        for at in places:
            near += yield Query("near_on", at)
        return (yield from self._claim_best(opening, sorted(near, key=_rank), {}, wish))

    def _claim_best(
        self, opening: "Opening", near: Sequence[Row], room: Mapping[str, int], wish: Mapping[str, Any]
    ) -> Plan:
        """Claim the first of the first jobs of several queue-kind pairs, else free ones behind them."""
        wanted = _within(near, wish["limit"], room)
        rows = (yield Query("lock_these", {"ids": as_ids(row["near"] for row in wanted)})) if wanted else []
        if len(rows) < len(wanted) and not room:
            rows = yield from self._fill(rows, [_line(row) for row in near], wish["limit"])
        crowded = len(rows) < len(wanted)
        return (yield from self._leased(opening, rows, wish, crowded=crowded))

    def _near(self, lines: Sequence[Line], limit: int) -> Any:
        """Return the queue-kind pairs of these that have ready jobs, with the first ones of each."""
        found: dict[Line, Rows] = {}
        for line in lines:
            if jobs := (yield Query("near", _first_of(line, limit))):
                found[line] = jobs
        return found

    def _walk(self, opening: "Opening", wish: Mapping[str, Any]) -> Any:
        """Return the same for every pair that exists and may be claimed from."""
        found: dict[Line, Rows] = {}
        line, ours = ("", ""), False  # before the first one: a name is never empty
        while True:
            rows = yield Query("line", _first_of(line, wish["limit"] if ours else 0))
            if jobs := [row for row in rows if not row["is_next"]]:
                found[line] = jobs
            following = [row for row in rows if row["is_next"]]
            if not following:
                return found
            line = _line(following[0])
            ours = opening.admits(line, wish["queues"], wish["kinds"])

    def _fill(self, rows: Rows, lines: Sequence[Line], limit: int) -> Plan:
        """Lock free jobs further down, pair by pair, in place of jobs that others have locked."""
        taken = {row["id"]: row for row in rows}
        for line in dict.fromkeys(lines):
            if len(taken) >= limit:
                break
            own = sum(_line(row) == line for row in taken.values())
            for row in (yield Query("lock_first", _first_of(line, limit - len(taken) + own))):
                if len(taken) < limit:
                    taken.setdefault(row["id"], row)
        return list(taken.values())

    def _leased(
        self, opening: "Opening", rows: Rows, wish: Mapping[str, Any], *, crowded: bool = False
    ) -> Plan:
        """Lease these locked rows, and return them as they are now."""
        header = opening.header | {"crowded": crowded}
        if not rows:
            return [header | {"id": None}]
        now = max(row["now"] for row in rows)
        first, *rest = sorted(rows, key=claiming_order)
        leased = [_leased(row, n, now, wish) for n, row in enumerate((first, *rest))]
        taken = as_json([[job["id"].hex, job["token"], as_moment(job["lease_until"])] for job in leased])
        yield Query("lease", {"taken": taken, "worker": wish["worker"], "now": as_moment(now)})
        return [{**header, **job} for job in leased]


class MysqlSettle(MysqlClaims, MysqlEnqueue):
    """The answers for holders of claims: settle, exchange, renew, progress."""

    def _settle(
        self,
        settlements: Tuples,
        children: Tuples,
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

    def _chain(self, children: Tuples) -> Plan:
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


@dataclass(frozen=True, slots=True)
class Opening:
    """What a claim knows before it reads jobs."""

    overdue: bool
    paused: frozenset[str]
    limits: Mapping[str, int]

    @property
    def header(self) -> dict[str, Any]:
        return {"limited": False, "overdue": self.overdue, "crowded": False}

    def admits(self, line: Line, queues: Sequence[str] | None, kinds: Sequence[str] | None) -> bool:
        queue, kind = line
        wanted = (queues is None or queue in queues) and (kinds is None or kind in kinds)
        return wanted and queue not in self.paused


def _named_lines(opening: Opening, wish: Mapping[str, Any]) -> list[Line] | None:
    """Return the open queue-kind pairs by name; None where they are not named, or too many."""
    queues, kinds = wish["queues"], wish["kinds"]
    if queues is None or kinds is None or len(queues) * len(kinds) > MOST_NAMED_LINES:
        return None
    lines = [(queue, kind) for queue in dict.fromkeys(queues) for kind in dict.fromkeys(kinds)]
    return [line for line in lines if line[0] not in opening.paused]


def _within(near: Sequence[Row], limit: int, room: Mapping[str, int]) -> list[Row]:
    """Return the first `limit` jobs in claiming order, within the limits of their queues."""
    left = dict(room)
    wanted: list[Row] = []
    for job in near:
        places = left.get(job["queue"])
        if len(wanted) < limit and (places is None or places > 0):
            wanted.append(job)
            if places is not None:
                left[job["queue"]] = places - 1
    return wanted


def _leased(job: Row, number: int, now: datetime, wish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claimed job; `number` distinguishes claims of the same time."""
    leased = {name: value for name, value in job.items() if name not in ("now", "next_token")}
    return leased | {
        "state": JobState.running,
        "attempts": job["attempts"] + 1,
        "worker": wish["worker"],
        "token": job["next_token"] or max((job["token"] or 0) + 1, to_micros(now) + number),
        "claimed_at": now,
        "lease_until": later(now, wish["leases"].get(job["kind"], wish["lease"])),
    }


def _line(job: Row) -> Line:
    return job["queue"], job["kind"]


def _first_of(line: Line, limit: int) -> dict[str, Any]:
    return {"queue": line[0], "kind": line[1], "limit": limit}


def _place(mark: Cursor, limit: int) -> dict[str, Any]:
    behind = {"precedence": -mark.priority, "run_at": as_moment(mark.run_at), "id": mark.id.hex}
    return _first_of((mark.queue, mark.kind), limit) | behind


def _rank(job: Row) -> tuple[Any, ...]:
    return job["precedence"], job["due"], job["near"]


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
