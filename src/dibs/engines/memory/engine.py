"""The reference engine: the contract in plain Python, one method per question.

Everything lives in this process and ends with it. The other engines are compared with this one,
operation by operation, in `tests/model`.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from dibs.clock import from_micros, store_micros, to_micros
from dibs.engines.hints import Listeners
from dibs.engines.memory.gates import UNSET, Pair, Record, is_gated, pair_of
from dibs.engines.memory.moves import MemoryMoves
from dibs.engines.retries import Tries
from dibs.engines.store import Operation, WithoutTables
from dibs.errors import UnsupportedConnection
from dibs.jobs.gates import has_gate
from dibs.jobs.job import JOB_COLUMNS, NEW_JOB_COLUMNS
from dibs.jobs.states import FINISHED, WAITING, JobState, by_time, errors_with_death, put_back, swept_state
from dibs.operations.questions import SETTLEMENT_COLUMNS, STOP_HINT, Traits
from dibs.operations.scripts import Row, Rows, Step, Tuples, run

_PARENT = NEW_JOB_COLUMNS.index("parent_id")


class Memory(MemoryMoves):
    """A store in this process, apart from all others."""

    traits = Traits(durable=False, shared=False, migrates_itself=True, wakes=True)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def execute(self, step: Step) -> Rows:
        answer: Callable[..., Rows] = getattr(self, f"_{step.question}")
        with self._lock:
            self._moment = store_micros()  # one time per question, as a statement has
            rows = answer(**step.params)
            self._go_on()
            return rows

    # -- enqueue --------------------------------------------------------------------------------

    def _enqueue(self, jobs: Tuples, fresh: bool) -> Rows:
        with self._opening_once():
            stored = [self._store(dict(zip(NEW_JOB_COLUMNS, job, strict=True))) for job in jobs]
        return [self._answer(id, holder, is_new) for id, holder, is_new in stored]

    def _store(self, new: Record) -> tuple[UUID, UUID, bool]:
        """Return (its id, the id of the job that is kept, whether that is new)."""
        now, delay, run_at = self._clock(), new.pop("delay"), new["run_at"]
        new |= {"run_at": to_micros(run_at) if run_at else now + (delay or 0), "enqueued_at": now}
        if self._known(new["id"]):
            return new["id"], new["id"], False
        if (holder := self._has_key(new["unique_key"])) is not None:
            if new["replaces"]:
                self._replace(holder, new)
            return new["id"], holder, False
        if (holder := self._kept_instead(new)) is not None:
            return new["id"], holder, False
        self._add(new)
        return new["id"], new["id"], True

    def _add(self, new: Record) -> None:
        lasts, _ = new.pop("unique_for"), new.pop("replaces")
        until = None if lasts is None else new["enqueued_at"] + lasts
        job: Record = dict.fromkeys(JOB_COLUMNS) | new | _NEW | {"unique_until": until}
        self._live[job["id"]] = job
        self._join_pipeline(job)
        if job["unique_key"] is not None:
            self._by_unique[job["unique_key"]] = job["id"]
        if self._waits_for_parents(job):
            self._wait(job, JobState.blocked)
        else:
            self._set_off(job)

    def _answer(self, id: UUID, holder: UUID, is_new: bool) -> Row:
        """Return a job with its state at the end: a later job of the call may have superseded it."""
        if not is_new:
            return {"id": id, "holder": holder, "is_new": False}
        [job] = self._each([id])
        times = {name: from_micros(job[name]) for name in ("run_at", "enqueued_at")}
        return {"id": id, "holder": holder, "is_new": True, "state": job["state"], **times}

    def _has_key(self, key: str | None) -> UUID | None:
        """Return the job that has this unique key: a live one, or a finished one that keeps it for a time."""
        if key is None:
            return None
        if key in self._by_unique:
            return self._by_unique[key]
        job = self._finished.get(self._unique_for.get(key))  # type: ignore[arg-type]
        return job["id"] if job is not None and job["unique_until"] > self._clock() else None

    def _replace(self, holder: UUID, new: Record) -> None:
        """Give a waiting job the arguments and the time of a new one; one that runs or ran stays as it is."""
        job = self._live.get(holder)
        if job is not None and job["state"] in WAITING:
            job |= {"args": new["args"], "run_at": new["run_at"]}
            self._wait_again(job)

    def _enqueue_tick(
        self, schedule: str, since: datetime, revision: int, tick: datetime, jobs: Tuples
    ) -> Rows:
        if (known := self._schedule_at(schedule, since, revision)) is None:
            return []
        known["last_tick"] = to_micros(tick)
        return [{"name": schedule}, *self._enqueue(jobs, fresh=True)]

    # -- claim ----------------------------------------------------------------------------------

    def _claim(self, limit: int, look: bool, **wish: Any) -> Rows:
        taken: list[Record] = []
        pairs = [pair for pair in self._pairs if self._open(pair, wish["queues"], wish["kinds"])]
        while len(taken) < limit and (job := self._best(pairs)) is not None:
            taken.append(self._lease(job, wish))
        return self._claimed(taken, look)

    def _claim_job(self, job: UUID, look: bool, **wish: Any) -> Rows:
        record = self._live.get(job)
        if record is None or not self._open(pair_of(record)):
            return self._claimed([], look)
        if record["state"] == JobState.ready:
            return self._claimed([self._lease(record, wish)], look)
        if self._may_overtake(record):
            self._lease(record, wish)
            self._overtook(record)
            return self._claimed([record], look)
        return self._claimed([], look)

    def _claim_within_limits(self, **wish: Any) -> Rows:
        raise AssertionError("memory holds limits in every claim and never returns `limited`")

    def _open(self, pair: Pair, queues: Any = None, kinds: Any = None) -> bool:
        if (queues is not None and pair[0] not in queues) or (kinds is not None and pair[1] not in kinds):
            return False
        setting = self._settings.get(pair[0], UNSET)
        running = (job for job in self._running.values() if job["queue"] == pair[0])
        limit = setting["max_running"]
        return not setting["paused"] and (limit is None or sum(1 for _ in running) < limit)

    def _best(self, pairs: Iterable[Pair]) -> Record | None:
        heads = [(head, pair) for pair in pairs if (head := self._head(pair)) and self._open(pair)]
        return self._live[min(heads)[0][2]] if heads else None

    def _lease(self, job: Record, wish: Mapping[str, Any]) -> Record:
        now = self._clock()
        job |= {
            "state": JobState.running,
            "attempts": job["attempts"] + 1,
            "worker": wish["worker"],
            "token": next(self._tokens),
            "claimed_at": now,
            "lease_until": now + wish["leases"].get(job["kind"], wish["lease"]),
        }
        self._running[job["id"]] = job
        return job

    def _claimed(self, taken: Sequence[Record], look: bool) -> Rows:
        header = {"limited": False, "overdue": look and self._overdue(), "crowded": False}
        return [header | self._row(job) for job in taken] or [header | {"id": None}]

    # -- settle, renew, progress ----------------------------------------------------------------

    def _settle(self, settlements: Tuples, children: Tuples, steps: Any = ()) -> Rows:
        applied = []
        with self._opening_once():
            for values in settlements:
                given = dict(zip(SETTLEMENT_COLUMNS, values, strict=True))
                if job := self._held(given["id"], given["token"]):
                    self._apply(job, given)
                    applied.append({"id": job["id"]})
            won = {row["id"] for row in applied}
            for child in children:
                if child[_PARENT] in won:
                    self._store(dict(zip(NEW_JOB_COLUMNS, child, strict=True)))
        return applied

    def _apply(self, job: Record, given: Record) -> None:
        job |= {"settled_token": given["token"], "settled_as": given["settled_as"]}
        job |= {"errors": given["errors"], "attempts": job["attempts"] - given["refund"]}
        job["pipeline_id"] = job["pipeline_id"] or given["pipeline_id"]
        state = put_back(given["state"], cancel_asked=job["cancel_reason"] is not None)
        if state in FINISHED:
            job["result"] = given["result"]
            asked = job["cancel_reason"] if state == JobState.cancelled else None
            self._finish(job, state, given["message"] or asked)
            return
        if given["delay"] is not None:
            job["run_at"] = self._clock() + given["delay"]
        self._back(job, state)

    def _exchange(self, settlements: Tuples, children: Tuples, steps: Any = (), **wish: Any) -> Rows:
        settled = [row["id"] for row in self._settle(settlements, children)]
        self._go_on()
        first, *rest = self._claim(**wish)
        return [{**first, "settled": settled}, *rest]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Rows:
        held = [job for id, token in claims if (job := self._held(id, token))]
        for job in held:
            job["lease_until"] = self._clock() + lease
        return [self._standing(job) for job in held]

    def _progress(self, job: UUID, token: int, fraction: float, message: str | None) -> Rows:
        if (record := self._held(job, token)) is None:
            return []
        record |= {"progress": fraction, "message": message or record["message"]}
        return [self._standing(record)]

    # -- upkeep ---------------------------------------------------------------------------------

    def _stage(self, limit: int) -> Rows:
        staged: list[Row] = []
        with self._opening_once():
            while len(staged) < limit and (at := self._next_due()) is not None and at <= self._clock():
                _, id = heapq.heappop(self._scheduled)
                self._wait_again(self._live[id])
                staged.append({"id": id})
        self._end_offers(limit)
        return staged

    def _sweep(self, limit: int) -> Rows:
        now = self._clock()
        expired = [job for job in self._running.values() if job["lease_until"] <= now]
        expired.sort(key=lambda job: job["lease_until"])
        with self._opening_once():
            return [self._sweep_one(job, now) for job in expired[:limit]]

    def _sweep_one(self, job: Record, now: int) -> Row:
        names = ("id", "kind", "queue", "worker", "token", "attempts")
        answer = {name: job[name] for name in names}
        state = swept_state(job)
        job["errors"] = errors_with_death(job, from_micros(now))
        if state in FINISHED:
            self._finish(job, state, job["cancel_reason"])
        else:
            self._back(job, state)
        return answer | {"state": state}

    # -- act ------------------------------------------------------------------------------------

    def _cancel(self, ids: Sequence[UUID], reason: str | None) -> Rows:
        changed: list[Row] = []
        with self._opening_once():
            for job in [self._live[id] for id in dict.fromkeys(ids) if id in self._live]:
                is_running = job["state"] == JobState.running
                changed.append({"id": job["id"], "worker": job["worker"] if is_running else None})
                if is_running:
                    job["cancel_reason"] = reason or ""
                else:
                    self._finish(job, JobState.cancelled, reason)
        return changed

    def _update(self, job: UUID, priority: int | None, run_at: datetime | None) -> Rows:
        record = self._live.get(job)
        if record is None or record["state"] not in WAITING:
            return []
        record |= {} if priority is None else {"priority": priority}
        record |= {} if run_at is None else {"run_at": to_micros(run_at)}
        if not self._waits_for_parents(record):
            self._wait_again(record)
        return [{"id": job}]

    def _retry(self, ids: Sequence[UUID]) -> Rows:
        return [{"id": job["id"]} for job in self._each(ids) if self._retried(job)]

    def _retried(self, job: Record) -> bool:
        if job["state"] == JobState.scheduled:
            job["run_at"] = self._clock()
            self._wait_again(job)
            return True
        if job["state"] not in (JobState.failed, JobState.cancelled):
            return False
        if self._has_key(job["unique_key"]) not in (None, job["id"]):
            return False
        self._come_back(job)
        if self._waits_for_parents(job):
            job["position"] = None
            self._wait(job, JobState.blocked)
        else:
            self._go_now(job)
        self._came_back.append(job)
        return True

    def _go_now(self, job: Record) -> None:
        job["run_at"] = self._clock()
        if has_gate(job):
            self._rejoin(job)
        else:
            self._wait(job, JobState.ready)

    def _come_back(self, job: Record) -> None:
        self._live[job["id"]] = self._finished.pop(job["id"])
        if job["unique_key"] is not None:
            self._by_unique[job["unique_key"]] = job["id"]
        job |= _FRESH_BUDGET | {"worker": None}

    def _recover(self, job: UUID, token: int, stale_after: int, errors: str) -> Rows:
        record = self._running.get(job)
        if record is None or record["token"] != token or record["lease_until"] + stale_after > self._clock():
            return []
        record |= {"attempts": 0, "progress": 0.0, "message": None, "cancel_reason": None, "errors": errors}
        self._back(record, JobState.ready)
        return [{"id": job}]

    def _delete(self, ids: Sequence[UUID]) -> Rows:
        gone = [job for job in self._each(dict.fromkeys(ids)) if job["state"] != JobState.running]
        with self._opening_once():
            for job in gone:
                if job["id"] in self._live:
                    self._forget(job)
                else:
                    del self._finished[job["id"]]
                    self._let_go_of(job)
                self._deleted(job)
        return [{"id": job["id"]} for job in gone]

    def _prune(self, older_than: int, states: Sequence[str], before: UUID, limit: int) -> Rows:
        horizon = self._clock() - older_than
        ended = [(id, job) for id, job in self._finished.items() if id < before and job["state"] in states]
        old = [id for id, job in ended if job["finished_at"] < horizon and not self._is_needed(job)]
        for id in old[:limit]:
            self._leave_pipeline(self._finished.pop(id))
        return [{"id": id} for id in old[:limit]]

    def _is_needed(self, job: Record) -> bool:
        """Return whether a train or a job waits for it, or it keeps its unique key for some more time."""
        gate = self._gate_of(job)
        keeps_key = job["unique_until"] is not None and job["unique_until"] > self._clock()
        return keeps_key or self._is_waited_for(job) or (gate is not None and gate.held_by == job["id"])

    # -- the small changes that the answers are made of -----------------------------------------

    def _wait_again(self, job: Record) -> None:
        """Put back a waiting job that is due now or has another time."""
        if is_gated(job):
            self._take_place(job)
        else:
            self._wait(job, by_time(job["run_at"], self._clock()))

    def _back(self, job: Record, state: JobState) -> None:
        self._running.pop(job["id"], None)
        job |= {"worker": None, "lease_until": None}
        if is_gated(job):
            self._take_place(job)
        else:
            self._wait(job, state)

    def _finish(self, job: Record, state: JobState, message: str | None) -> None:
        self._forget(job, state)
        job |= {"state": state, "finished_at": self._clock(), "lease_until": None}
        job["message"] = message or (None if state == JobState.cancelled else job["message"])
        self._finished[job["id"]] = job
        if job["unique_until"] is not None:
            self._unique_for[job["unique_key"]] = job["id"]
        self._ended.append(job)

    def _forget(self, job: Record, state: JobState | None = None) -> None:
        self._running.pop(job["id"], None)
        if self._by_unique.get(job["unique_key"]) == job["id"]:
            del self._by_unique[job["unique_key"]]
        if is_gated(job):
            self._leave_gate(job, state)
        else:
            del self._live[job["id"]]


_NEW: Record = {
    "attempts": 0,
    "progress": 0.0,
    "errors": "[]",
    "cancel_reason": None,
    "settled_token": None,
    "settled_as": None,
    "position": None,
}
_FRESH_BUDGET: Record = {
    "attempts": 0,
    "progress": 0.0,
    "message": None,
    "result": None,
    "finished_at": None,
    "cancel_reason": None,
}


T = TypeVar("T")


class MemoryStore(WithoutTables):
    """A store in this process, for any thread and both faces."""

    traits = Memory.traits

    def __init__(self) -> None:
        self._engine = Memory()
        self._listeners = Listeners()

    def run(self, operation: Operation[T], within: Any = None) -> T:
        self._refuse(within)
        return run(operation(Tries()), self._execute)

    def _execute(self, step: Step) -> Rows:
        rows = self._engine.execute(step)
        self._listeners.announce(step, rows)
        return rows

    async def listen(self, hear: Callable[[str], None]) -> None:
        with self._listeners.listening(hear):
            hear(STOP_HINT)  # jobs may have been asked to stop before we listened
            await asyncio.Event().wait()

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        return self.run(operation, within)

    def close(self) -> None: ...
    async def close_async(self) -> None: ...
    async def leave_loop(self) -> None: ...

    def _refuse(self, within: Any) -> None:
        if within is not None:
            raise UnsupportedConnection(
                "memory:// has no transactions to work within; leave within= out, "
                "or use sqlite:///, postgresql:// or mysql://"
            )
