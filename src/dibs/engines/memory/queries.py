"""The reference engine's answers to questions that only read, and to the reports of workers."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import from_micros
from dibs.engines.memory.pipelines import MemoryPipelines
from dibs.engines.memory.storage import KEPT_TIMES, UNSET, Record
from dibs.jobs.states import WAITING, JobState
from dibs.operations.scripts import Rows


class MemoryQueries(MemoryPipelines):
    """The memory engine's answers that change no job."""

    def _get(self, ids: Sequence[UUID]) -> Rows:
        return [self._row(job) for job in self._each(ids)]

    def _find(self, limit: int, after: UUID | None, **filter: Any) -> Rows:
        found = sorted({**self._live, **self._finished}.items(), reverse=True)
        matching = (job for id, job in found if (after is None or id < after) and _matches(job, **filter))
        return [self._row(job) for _, job in zip(range(limit), matching, strict=False)]

    def _find_oldest(self, limit: int, after: UUID, **filter: Any) -> Rows:
        found = sorted({**self._live, **self._finished}.items())
        matching = (id for id, job in found if id > after and _matches(job, **filter))
        return [{"id": id} for _, id in zip(range(limit), matching, strict=False)]

    def _glance(self, ids: Sequence[UUID]) -> Rows:
        return [self._glanced(job) for job in self._each(ids)]

    def _glance_at_queue(self, queue: str | None, since: UUID, limit: int) -> Rows:
        ended = {id: job for id, job in self._finished.items() if id > since}
        both = [sorted(jobs.items(), reverse=True) for jobs in (self._live, ended)]
        found = [[job for _, job in jobs if queue in (None, job["queue"])][:limit] for jobs in both]
        return [self._glanced(job) for jobs in found for job in jobs]

    def _counts(self, queue: str | None) -> Rows:
        jobs = [*self._live.values(), *self._finished.values()]
        states = Counter(job["state"] for job in jobs if queue in (None, job["queue"]))
        return [{"state": state, "jobs": jobs} for state, jobs in states.items()]

    def _queues(self) -> Rows:
        states = Counter((job["queue"], job["state"]) for job in self._live.values())
        named = {queue for queue, _ in states} | set(self._settings)
        settings = {name: self._settings.get(name, UNSET) for name in named}
        rows = [{"name": q, "state": s, "jobs": n, **settings[q]} for (q, s), n in states.items()]
        return rows + [{"name": q, "state": None, "jobs": 0, **settings[q]} for q in named]

    def _explain(self, job: UUID) -> Rows:
        rows = []
        for record in self._each([job]):
            setting = self._settings.get(record["queue"], UNSET)
            running = sum(other["queue"] == record["queue"] for other in self._running.values())
            about = {"running": running, "cancel_reason": record["cancel_reason"], **self._now()[0]}
            rows.append({**self._row(record), **setting, **about})
        return rows

    def _tick(self, worker: str, forget_after: int, **about: Any) -> Rows:
        now = self._clock()
        self._here = {name: row for name, row in self._here.items() if row["seen_at"] >= now - forget_after}
        known = self._here.get(worker, {"started_at": now})
        self._here[worker] = {**known, **about, "name": worker, "seen_at": now}
        return self._upcoming()

    def _upcoming(self) -> Rows:
        now = self._clock()
        due = [at for at in (self._next_due(), self._next_offer()) if at is not None]
        leases = [job["lease_until"] for job in self._running.values()]
        upcoming = {"next_due": min(due, default=None), "next_lease": min(leases, default=None), "now": now}
        times = {name: None if at is None else from_micros(at) for name, at in upcoming.items()}
        ready = any(self._head(pair) is not None for pair in self._pairs)
        return [{"overdue": self._overdue(), "ready": ready, **times}]

    def _leave(self, worker: str) -> Rows:
        return [{"name": worker}] if self._here.pop(worker, None) else []

    def _workers(self, silence: int) -> Rows:
        seen = [row for row in self._here.values() if row["seen_at"] >= self._clock() - silence]
        return [
            {**row, **{name: from_micros(row[name]) for name in ("started_at", "seen_at")}}
            for row in sorted(seen, key=lambda row: row["name"])
        ]

    def _schedules(self) -> Rows:
        return [{"name": name, "last_tick": from_micros(at)} for name, at in self._last_ticks.items()]

    def _ready_lines(self, queues: Sequence[str] | None) -> Rows:
        ready = sorted(pair for pair in self._pairs if self._head(pair) is not None)
        return [
            {"queue": queue, "kind": kind}
            for queue, kind in ready
            if (queues is None or queue in queues) and not self._settings.get(queue, UNSET)["paused"]
        ]

    def _backlog(self) -> Rows:
        since: defaultdict[str, list[int]] = defaultdict(list)
        for job in self._live.values():
            if job["state"] == JobState.ready:
                since[job["queue"]].append(job["run_at"])
        return [
            {"queue": queue, "jobs": len(times), "since": from_micros(min(times))}
            for queue, times in since.items()
        ]

    def _examine(self) -> Rows:
        facts = [("version", "memory", "of this process"), ("kept", "jobs", "nowhere")]
        facts += [("isolation", "own connections", "one question at a time")]
        return [{"fact": fact, "about": about, "value": value} for fact, about, value in facts]

    def _echo(self, hint: str) -> Rows:
        return [{"told": hint}]

    def _now(self) -> Rows:
        return [{"now": from_micros(self._clock())}]

    def _age(self, micros: int) -> Rows:
        for job in [*self._live.values(), *self._finished.values()]:
            job |= {name: job[name] - micros for name in KEPT_TIMES if job[name] is not None}
            if job["state"] in WAITING:
                self._wait(job, job["state"])
        self._age_gates(micros)
        self._last_ticks = {name: at - micros for name, at in self._last_ticks.items()}
        return []

    def _overdue(self) -> bool:
        now = self._clock()
        due = any(at is not None and at <= now for at in (self._next_due(), self._next_offer()))
        return due or any(job["lease_until"] <= now for job in self._running.values())


def _matches(job: Record, states: Any, tags: Sequence[str], **equal: Any) -> bool:
    return (
        (states is None or job["state"] in states)
        and set(tags) <= set(msgspec.json.decode(job["tags"]))
        and all(value is None or job[name] == value for name, value in equal.items())
    )
