"""Redis' answers: which script answers a question, what it is told, and how its reply reads as rows.

Every question is one call of one script, so it happens at once or not at all. Two are asked in pieces, each
of bounded work: an enqueue of more than a thousand jobs, and a find that has to look far. And who examines a
server also asks for settings that no script may see.
"""

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dibs.contract import ECHO_HINT, Traits
from dibs.engines.hints import Hints, hints_for
from dibs.engines.redis.facts import about_server, read_info
from dibs.engines.redis.moves import RedisMoves
from dibs.engines.redis.rows import (
    claimed_rows,
    distinct_states,
    glanced_row,
    id_or_none,
    id_rows,
    job_row,
    new_row,
    setting,
    settlement_rows,
    standings,
    stored_row,
    upcoming_rows,
    whole,
    worker_row,
)
from dibs.engines.redis.scripts import Call, IfAllowed, Plan, lua_script
from dibs.engines.redis.steps import RedisSteps
from dibs.engines.redis.values import MOST_AT_ONCE, micros
from dibs.engines.redis.values import moment as time_of
from dibs.jobs import NEW_JOB_COLUMNS
from dibs.scripts import Row, Step
from dibs.states import WORKER_DIED

_QUEUE, _RUN_AT = (NEW_JOB_COLUMNS.index(name) for name in ("queue", "run_at"))


class Redis(RedisMoves, RedisSteps):
    """One node (or one slot of a cluster): scripts that nothing can interrupt, one counter for the tokens."""

    traits = Traits(
        durable=True,
        shared=True,
        joins_caller=False,
        migrates_itself=True,
        wakes=True,
        echoes=True,
        joins_pipeline=True,
        may_rewind=True,
        atomic_up_to=MOST_AT_ONCE,
    )

    def __init__(self, prefix: str = "dibs") -> None:
        self.key = f"{{{prefix}}}"  # the hash tag: all keys of this store live in one slot
        self.channel = f"{self.key}:wake"
        self.in_cluster = False
        self.script = lua_script
        self._hints = Hints()

    def answer(self, step: Step) -> Plan:
        plan: Callable[..., Plan] = getattr(self, f"_{step.question}")
        return plan(**step.params)

    def call(self, question: str, **given: Any) -> Call:
        if self.in_cluster:
            given["in_cluster"] = True
        return Call(self.script(question), msgspec.json.encode(given))

    def ask(self, question: str, **given: Any) -> Generator[Call, Any, Any]:
        """The reply of a script that may leave something to do; then that is done, too."""
        return (yield from self.all_of(self.call(question, **given)))

    def all_of(self, call: Call) -> Generator[Call, Any, Any]:
        reply, is_more = yield call
        while is_more:
            _, is_more = yield self.call("go_on")
        return reply

    # -- enqueue --------------------------------------------------------------------------------

    def _enqueue(self, jobs: Sequence[tuple[Any, ...]], fresh: bool) -> Plan:
        wake = self._hints.due(jobs)
        rows: list[Row] = []
        for call in self.enqueue_calls(jobs, fresh, wake):
            now, *answers = yield from self.all_of(call)
            enqueued_at = time_of(now)
            part = jobs[len(rows) : len(rows) + len(answers)]
            rows += [
                stored_row(job[0], answer, enqueued_at) for job, answer in zip(part, answers, strict=True)
            ]
        return rows

    def _enqueue_tick(
        self,
        schedule: str,
        since: datetime | None,
        tick: datetime,
        jobs: Sequence[tuple[Any, ...]],
    ) -> Plan:
        move = {"since": None if since is None else micros(since), "tick": micros(tick)}
        wake = sorted({job[_QUEUE] for job in jobs})
        stored = {"jobs": list(map(new_row, jobs)), "fresh": True, "wake": wake}
        reply = yield from self.ask("enqueue_tick", schedule=schedule, **move, **stored)
        if not reply:
            return []
        now, *answers = reply
        rows = [stored_row(job[0], answer, time_of(now)) for job, answer in zip(jobs, answers, strict=True)]
        return [{"name": schedule}, *rows]

    def enqueue_calls(
        self, jobs: Sequence[tuple[Any, ...]], fresh: bool, wake: Sequence[str] | None = None
    ) -> list[Call]:
        """At most a thousand jobs each; without `wake` every queue in question is woken."""
        hints = list(hints_for(jobs).values()) if wake is None else wake
        return [
            self.call(
                "enqueue",
                jobs=list(map(new_row, jobs[first : first + MOST_AT_ONCE])),
                fresh=fresh,
                wake=hints if first == 0 else [],
            )
            for first in range(0, len(jobs), MOST_AT_ONCE)
        ]

    # -- claim ----------------------------------------------------------------------------------

    def _claim(self, **wish: Any) -> Plan:
        return claimed_rows((yield self.call("claim", **wish)))

    def _claim_job(self, **wish: Any) -> Plan:
        return claimed_rows((yield self.call("claim_job", **wish)))

    def _claim_within_limits(self, **wish: Any) -> Plan:
        raise AssertionError("Redis holds limits in every claim and never answers `limited`")

    # -- settle, renew, progress ----------------------------------------------------------------

    def _settle(self, **settled: Any) -> Plan:
        return id_rows((yield from self.ask("settle", **settlement_rows(**settled))))

    def settle_or_raise(self, **settled: Any) -> Call:
        """For a caller's pipeline: a claim that was lost is an error among the replies of its EXEC."""
        return self.call("settle_or_raise", **settlement_rows(**settled))

    def _exchange(self, settlements: Any, children: Any, steps: Any = (), **wish: Any) -> Plan:
        settled = settlement_rows(settlements, children, steps)
        applied, *claimed = yield from self.ask("exchange", **settled, **wish)
        first, *rest = claimed_rows(claimed)
        return [{**first, "settled": list(map(UUID, applied))}, *rest]

    def _settled(self, ids: Sequence[UUID]) -> Plan:
        found = yield self.call("settled", ids=ids)
        return [
            {
                "id": UUID(id),
                "state": state,
                "token": whole(token),
                "settled_token": whole(settled_token),
                "settled_as": settled_as,
            }
            for id, state, token, settled_token, settled_as in found
        ]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Plan:
        pairs = [(id, str(token)) for id, token in claims]
        return standings((yield self.call("renew", claims=pairs, lease=lease)))

    def _progress(self, token: int, fraction: float, **given: Any) -> Plan:
        exact = {"token": str(token), "fraction": repr(fraction)}
        return standings((yield self.call("progress", **given, **exact)))

    # -- upkeep and acts ------------------------------------------------------------------------

    def _stage(self, limit: int) -> Plan:
        return id_rows((yield self.call("stage", limit=limit)))

    def _sweep(self, limit: int) -> Plan:
        names = ("id", "kind", "queue", "worker", "token", "attempts", "state")
        swept = yield from self.ask("sweep", limit=limit, death=WORKER_DIED)
        rows = [dict(zip(names, values, strict=True)) for values in swept]
        return [
            row | {"id": UUID(row["id"]), "token": int(row["token"]), "attempts": int(row["attempts"])}
            for row in rows
        ]

    def _cancel(self, **which: Any) -> Plan:
        changed = yield from self.ask("cancel", **which)
        return [{"id": UUID(id), "worker": worker or None} for id, worker in changed]

    def _retry(self, **which: Any) -> Plan:
        return id_rows((yield from self.ask("retry", **which)))

    def _recover(self, token: int, **which: Any) -> Plan:
        return id_rows((yield self.call("recover", token=str(token), **which)))

    def _delete(self, **which: Any) -> Plan:
        return id_rows((yield from self.ask("delete", **which)))

    def _prune(self, **which: Any) -> Plan:
        return id_rows((yield from self.ask("prune", **which)))

    def _set_queue(self, **setting: Any) -> Plan:
        yield self.call("set_queue", **setting)
        return []

    def _tick(self, **about: Any) -> Plan:
        return upcoming_rows((yield self.call("tick", echo=ECHO_HINT + about["worker"], **about)))

    def _leave(self, worker: str) -> Plan:
        return [{"name": name} for name in (yield self.call("leave", worker=worker))]

    # -- trains and slots -----------------------------------------------------------------------

    def _release_train(self, name: str) -> Plan:
        return [{"was_held": bool(held)} for held in (yield self.call("release_train", name=name))]

    def _mend(self, **page: Any) -> Plan:
        return [{"sort": sort, "name": name} for sort, name in (yield from self.ask("mend", **page))]

    def _gates(self, **which: Any) -> Plan:
        return [
            {"name": name, "head": id_or_none(head), "length": length, "held": bool(held)}
            for name, head, length, held in (yield self.call("gates", **which))
        ]

    def _current(self, slots: Sequence[str]) -> Plan:
        found = yield self.call("current", slots=slots)
        return [{"slot": slot, "id": UUID(id), "token": int(token)} for slot, id, token in found]

    # -- look -----------------------------------------------------------------------------------

    def _get(self, ids: Sequence[UUID]) -> Plan:
        return list(map(job_row, (yield self.call("get", ids=ids))))

    def _find(self, limit: int, after: UUID | None, **filter: Any) -> Plan:
        found: list[Row] = []
        start = None if after is None else str(after)
        while len(found) < limit and start != "":
            start, *page = yield self.call(
                "find", limit=limit - len(found), after=start, **distinct_states(filter)
            )
            found += map(job_row, page)
        return found

    def _find_oldest(self, limit: int, after: UUID, **filter: Any) -> Plan:
        found: list[Row] = []
        start = str(after)
        while len(found) < limit and start != "":
            start, *page = yield self.call(
                "find_oldest", limit=limit - len(found), after=start, **distinct_states(filter)
            )
            found += [{"id": UUID(id)} for id in page]
        return found

    def _glance(self, ids: Sequence[UUID]) -> Plan:
        return list(map(glanced_row, (yield self.call("glance", ids=ids))))

    def _glance_at_queue(self, **which: Any) -> Plan:
        return list(map(glanced_row, (yield self.call("glance_at_queue", **which))))

    def _counts(self, queue: str | None) -> Plan:
        return [{"state": state, "jobs": jobs} for state, jobs in (yield self.call("counts", queue=queue))]

    def _queues(self) -> Plan:
        return [
            {"name": name, "state": state or None, "jobs": jobs, **setting(paused, limit)}
            for name, state, jobs, paused, limit in (yield self.call("queues"))
        ]

    def _workers(self, silence: int) -> Plan:
        rows = list(map(worker_row, (yield self.call("workers", silence=silence))))
        return sorted(rows, key=lambda row: str(row["name"]))

    def _schedules(self) -> Plan:
        values = iter((yield self.call("schedules")))
        return [{"name": name, "last_tick": time_of(at)} for name, at in zip(values, values, strict=True)]

    def _upcoming(self) -> Plan:
        return upcoming_rows((yield self.call("upcoming")))

    def _explain(self, job: UUID) -> Plan:
        found = yield self.call("explain", job=job)
        if not found:
            return []
        flat, paused, limit, running, asked, now = found
        about = {"running": running, "cancel_reason": asked, "now": time_of(now)}
        return [{**job_row(flat), **setting(paused, limit), **about}]

    def _ready_lines(self, queues: Sequence[str] | None) -> Plan:
        lines = yield self.call("ready_lines", queues=queues)
        return [{"queue": queue, "kind": kind} for queue, kind in sorted(lines)]

    def _backlog(self) -> Plan:
        found = yield self.call("backlog")
        return [{"queue": queue, "jobs": jobs, "since": time_of(since)} for queue, jobs, since in found]

    def _examine(self) -> Plan:
        info = read_info((yield self.call("examine")))
        fsync = yield IfAllowed(("CONFIG", "GET", "appendfsync"))
        save = yield IfAllowed(("CONFIG", "GET", "save"))
        return list(about_server(info, fsync, save))

    def _echo(self, hint: str) -> Plan:
        return [{"told": (yield self.call("echo", hint=hint))}]

    def _now(self) -> Plan:
        return [{"now": time_of((yield self.call("now")))}]

    def _age(self, micros: int) -> Plan:
        yield self.call("age", micros=micros)
        return []
