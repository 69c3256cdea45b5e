"""The reference engine's answers that only read, and to reports of workers and settings of queues."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from dibs.clock import from_micros, to_micros
from dibs.engines.memory.gates import KEPT_TIMES, UNSET, Record
from dibs.engines.memory.pipelines import MemoryPipelines
from dibs.jobs.search import is_like
from dibs.jobs.states import WAITING, JobState
from dibs.operations.minutes import MINUTE_COLUMNS, NOTHING, added
from dibs.operations.scripts import Rows
from dibs.operations.settle import MOST_KEPT


class MemoryQueries(MemoryPipelines):
    """The memory engine's answers that change no job."""

    def _get(self, ids: Sequence[UUID]) -> Rows:
        return [self._row(job) for job in self._each(ids)]

    def _find(self, limit: int, after: UUID | None, **filter: Any) -> Rows:
        return [self._row(job) for job in islice(self._newest(after, filter), limit)]

    def _find_oldest(self, limit: int, after: UUID, **filter: Any) -> Rows:
        matching = [{"id": job["id"]} for job in self._newest(None, filter) if job["id"] > after]
        return matching[: -limit - 1 : -1]

    def _search(
        self,
        in_args: str | None,
        in_errors: str | None,
        in_text: str | None,
        limit: int,
        scan: int,
        after: UUID | None,
        contained: Any,
        **filter: Any,
    ) -> Rows:
        del contained  # there is no index

        def may_match(job: Record) -> bool:
            texts = (job["kind"], job["message"] or "", job["errors"])
            sought = [(in_args, (job["args"],)), (in_errors, (job["errors"],)), (in_text, texts)]
            return all(part is None or any(part in text.lower() for text in among) for part, among in sought)

        jobs = list(islice(self._newest(after, filter), scan))
        rows = [{"id": job["id"], "nth": n, "hit": may_match(job)} for n, job in enumerate(jobs, 1)]
        return [row for row in rows if row["hit"] or row is rows[-1]][:limit]

    def _count(self, scan: int, after: UUID | None, **filter: Any) -> Rows:
        return [{"jobs": sum(1 for _ in islice(self._newest(after, filter), scan))}]

    def _newest(self, after: UUID | None, filter: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the jobs that match, newest first."""
        filter = dict(filter)
        since, newer_than = filter.pop("since"), filter.pop("newer_than")
        earliest = None if since is None else self._clock() - since
        for id, job in sorted({**self._live, **self._finished}.items(), reverse=True):
            is_between = (after is None or id < after) and (newer_than is None or id > newer_than)
            is_young = earliest is None or job["enqueued_at"] >= earliest
            if is_between and is_young and _matches(job, **filter):
                yield job

    def _settled(self, ids: Sequence[UUID]) -> Rows:
        names = ("id", "state", "token", "settled_token", "settled_as")
        return [{name: job[name] for name in names} for job in self._each(ids)]

    def _glance(self, ids: Sequence[UUID]) -> Rows:
        return [self._glanced(job) for job in self._each(ids)]

    def _glance_at_queue(self, queue: str | None, since: UUID, limit: int) -> Rows:
        ended = {id: job for id, job in self._finished.items() if id > since}
        both = [sorted(jobs.items(), reverse=True) for jobs in (self._live, ended)]
        found = [[job for _, job in jobs if queue in (None, job["queue"])][:limit] for jobs in both]
        return [self._glanced(job) for jobs in found for job in jobs]

    def _traffic(self, since: UUID, limit: int) -> Rows:
        del limit  # all are counted
        jobs = {**self._live, **self._finished}
        new = (("enqueued", job["queue"]) for id, job in jobs.items() if id > since)
        failed = (("failed", job["queue"]) for job in jobs.values() if job["state"] == JobState.failed)
        found = Counter([*new, *failed])
        return [{"queue": queue, "what": what, "jobs": number} for (what, queue), number in found.items()]

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

    def _set_queue(self, queue: str, paused: bool | None, max_running: int | None, set_limit: bool) -> Rows:
        if not paused and max_running is None and queue not in self._settings:
            return []  # there is no setting to remove
        setting = self._settings.setdefault(queue, dict(UNSET))
        if paused is not None:
            setting["paused"] = paused
        if set_limit:
            setting["max_running"] = max_running
        return []

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
        changes = sum(schedule["revision"] for schedule in self._schedules_by_name.values())
        return [{"overdue": self._overdue(), "ready": ready, "schedules": changes, **times}]

    def _leave(self, worker: str) -> Rows:
        return [{"name": worker}] if self._here.pop(worker, None) else []

    def _workers(self, silence: int) -> Rows:
        seen = [row for row in self._here.values() if row["seen_at"] >= self._clock() - silence]
        running = Counter(job["worker"] for job in self._running.values())
        return [
            {
                **row,
                "running": running[row["name"]],
                **{name: from_micros(row[name]) for name in ("started_at", "seen_at")},
            }
            for row in sorted(seen, key=lambda row: row["name"])
        ]

    def _schedules(self) -> Rows:
        known = self._schedules_by_name.values()
        return [{**row, "last_tick": from_micros(row["last_tick"])} for row in known]

    def _set_schedule(
        self, schedule: str, since: datetime | None, revision: int, tick: datetime, **to: Any
    ) -> Rows:
        if since is None and schedule not in self._schedules_by_name:
            self._schedules_by_name[schedule] = {"name": schedule}
        elif since is None or self._schedule_at(schedule, since, revision) is None:
            return []
        known = self._schedules_by_name[schedule]
        known |= {"last_tick": to_micros(tick), "about": to["about"], "revision": to["new_revision"]}
        return [{"name": schedule}]

    def _schedule_at(self, schedule: str, since: datetime, revision: int) -> Record | None:
        known = self._schedules_by_name.get(schedule)
        if known is None or (known["last_tick"], known["revision"]) != (to_micros(since), revision):
            return None
        return known

    def _delete_schedule(self, schedule: str) -> Rows:
        return [{"name": schedule}] if self._schedules_by_name.pop(schedule, None) else []

    def _newest_pipelines(self, after: UUID, limit: int) -> Rows:
        jobs = [*self._live.values(), *self._finished.values()]
        ids = {job["pipeline_id"] for job in jobs if job["pipeline_id"] is not None}
        return [{"id": id} for id in sorted((id for id in ids if id < after), reverse=True)[:limit]]

    def _pipeline_counts(self, ids: Sequence[UUID]) -> Rows:
        counts: defaultdict[tuple[UUID, str], list[float]] = defaultdict(list)
        for job in [*self._live.values(), *self._finished.values()]:
            if job["pipeline_id"] in ids:
                counts[job["pipeline_id"], job["state"]].append(job["progress"])
        return [
            {"pipeline_id": id, "state": state, "jobs": len(progress), "progress": sum(progress)}
            for (id, state), progress in counts.items()
        ]

    def _add_to_minute(self, width: int, at_minute: int, queue: str, kind: str, **counts: int) -> Rows:
        key = (width, at_minute, queue, kind)
        self._counted[key] = added(
            [[counts[name] for name in MINUTE_COLUMNS], self._counted.get(key, NOTHING)]
        )
        return []

    def _minutes(
        self,
        width: int,
        first: int,
        last: int,
        queue: str | None,
        kind: str | None,
        by_queue: bool,
        by_kind: bool,
    ) -> Rows:
        rows: defaultdict[Any, list[tuple[int, ...]]] = defaultdict(list)
        for (wide, at, its_queue, its_kind), counts in self._counted.items():
            if (
                wide == width
                and first <= at < last
                and queue in (None, its_queue)
                and kind in (None, its_kind)
            ):
                rows[at, its_queue if by_queue else None, its_kind if by_kind else None].append(counts)
        return [
            {**dict(zip(MINUTE_COLUMNS, added(counts), strict=True)), "at_minute": at, "queue": q, "kind": k}
            for (at, q, k), counts in rows.items()
        ]

    def _refuse(self, job: UUID, token: int, tried: str, worker: str | None) -> Rows:
        noted = self._refused.setdefault(job, {}) if self._known(job) else {}
        noted.setdefault(
            (token, tried), {"token": token, "tried": tried, "worker": worker, "at": self._clock()}
        )
        if len(noted) > MOST_KEPT:
            del noted[next(iter(noted))]
        return []

    def _refusals(self, job: UUID) -> Rows:
        noted = self._refused.get(job, {}) if self._known(job) else {}
        return [{**row, "refused_at": from_micros(row["at"])} for row in noted.values()]

    def _forget_refusals(self) -> Rows:
        self._refused = {job: noted for job, noted in self._refused.items() if self._known(job)}
        return []

    def _forget_minutes(self, width: int, before: int) -> Rows:
        self._counted = {key: n for key, n in self._counted.items() if key[0] != width or key[1] >= before}
        return []

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
        for schedule in self._schedules_by_name.values():
            schedule["last_tick"] -= micros
        return []

    def _overdue(self) -> bool:
        now = self._clock()
        due = any(at is not None and at <= now for at in (self._next_due(), self._next_offer()))
        return due or any(job["lease_until"] <= now for job in self._running.values())


def _matches(job: Record, states: Any, tags: Sequence[str], **equal: Any) -> bool:
    return (
        (states is None or job["state"] in states)
        and set(tags) <= set(msgspec.json.decode(job["tags"]))
        and all(value is None or _is_equal(job, name, value) for name, value in equal.items())
    )


def _is_equal(job: Record, name: str, value: Any) -> bool:
    column = name.removesuffix("_like")
    if column == name:
        return bool(job[name] == value)
    return job[column] is not None and is_like(job[column], value)
