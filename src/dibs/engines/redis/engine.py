"""The answers of Redis: which script answers a question, what it receives, and how its reply reads as rows.

A question is one call of one script, so it happens at once or not at all. Some are asked in pieces, each of
bounded work: an enqueue of more than a thousand jobs, a find that reads many pages, and whatever ends a job
with many children. `examine` also reads settings that no script may read.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from dibs.engines.hints import Hints, hints_for
from dibs.engines.redis.connection import read_info, server_facts
from dibs.engines.redis.rows import (
    MOST_AT_ONCE,
    READERS,
    READERS_WITH_REST,
    Reader,
    arrived_rows,
    arriving,
    claim_rows,
    claimed_rows,
    departed_rows,
    distinct_states,
    id_rows,
    job_row,
    micros,
    minute_rows,
    moved_rows,
    new_row,
    parent_rows,
    pipeline_rows,
    settlement_rows,
    stored_rows,
    swept_rows,
    upcoming_rows,
)
from dibs.engines.redis.scripts import Answer, OptionalCommand, ScriptCall, Scripts
from dibs.jobs.job import NEW_JOB_COLUMNS, read_stored
from dibs.jobs.states import WORKER_DIED
from dibs.operations.minutes import KEPT
from dibs.operations.questions import ECHO_HINT, Traits
from dibs.operations.scripts import Row, Step, Tuples

_QUEUE = NEW_JOB_COLUMNS.index("queue")


class Redis:
    """One node (or one slot of a cluster): scripts that nothing can interrupt, one counter for the tokens."""

    traits = Traits(
        migrates_itself=True,
        wakes=True,
        echoes=True,
        joins_pipeline=True,
        may_rewind=True,
        atomic_up_to=MOST_AT_ONCE,
    )

    def __init__(self, prefix: str = "dibs") -> None:
        self.scripts = Scripts(f"{{{prefix}}}")  # the hash tag: all keys of this store are in one slot
        self.channel = f"{self.scripts.key}:wake"
        self.pipelines = RedisPipelineAnswers(self.scripts)
        self._hints = Hints()
        self.answers: Mapping[str, Callable[..., Answer]] = {
            **{name: partial(self._read, name, reader) for name, reader in READERS.items()},
            **{name: partial(self._read_all, name, reader) for name, reader in READERS_WITH_REST.items()},
            "enqueue": self._enqueue,
            "enqueue_tick": self._enqueue_tick,
            "set_schedule": self._set_schedule,
            "enqueue_pipeline": self.pipelines.enqueue,
            "parents": self.pipelines.parents,
            "pipelines": self.pipelines.pipelines,
            "pipeline_counts": self.pipelines.counts,
            "claim_within_limits": self._claim_within_limits,
            "settle": self._settle,
            "exchange": self._exchange,
            "renew": self._renew,
            "progress": self._progress,
            "sweep": self._sweep,
            "recover": self._recover,
            "update": self._update,
            "tick": self._tick,
            "find": self._find,
            "find_oldest": self._find_oldest,
            "search": self._search,
            "add_to_minute": self._add_to_minute,
            "minutes": self._minutes,
            "forget_minutes": self._forget,
            "refuse": self._refuse,
            "forget_refusals": self._forget,
            "count": self._count,
            "examine": self._examine,
            "depart": self._depart,
            "departed": self._departed,
            "arrive": self._arrive,
            "give_back": self._give_back,
        }

    def answer(self, step: Step) -> Answer:
        return self.answers[step.question](**step.params)

    def _read(self, question: str, reader: Reader, **given: Any) -> Answer:
        return reader((yield self.scripts.call(question, **given)))

    def _read_all(self, question: str, reader: Reader, **given: Any) -> Answer:
        return reader((yield from self.scripts.ask(question, **given)))

    # -- enqueue --------------------------------------------------------------------------------

    def _enqueue(self, jobs: Tuples, fresh: bool) -> Answer:
        rows: list[Row] = []
        for call in self.enqueue_calls(jobs, fresh, self._hints.due(jobs)):
            reply = yield from self.scripts.finish(call)
            rows += stored_rows(jobs[len(rows) : len(rows) + MOST_AT_ONCE], reply)
        return rows

    def enqueue_calls(self, jobs: Tuples, fresh: bool, wake: Sequence[str] | None = None) -> list[ScriptCall]:
        """Return calls of at most a thousand jobs each; without `wake` every queue concerned is woken."""
        hints = list(hints_for(jobs).values()) if wake is None else wake
        return [
            self.scripts.call(
                "enqueue",
                jobs=list(map(new_row, jobs[first : first + MOST_AT_ONCE])),
                fresh=fresh,
                wake=hints if first == 0 else [],
            )
            for first in range(0, len(jobs), MOST_AT_ONCE)
        ]

    def _enqueue_tick(
        self, schedule: str, since: datetime, revision: int, tick: datetime, jobs: Tuples
    ) -> Answer:
        ticks = {"since": micros(since), "revision": str(revision), "tick": micros(tick)}
        wake = sorted({job[_QUEUE] for job in jobs})
        stored = {"jobs": list(map(new_row, jobs)), "fresh": True, "wake": wake}
        reply = yield from self.scripts.ask("enqueue_tick", schedule=schedule, **ticks, **stored)
        return [{"name": schedule}, *stored_rows(jobs, reply)] if reply else []

    def _set_schedule(self, since: datetime | None, tick: datetime, **to: Any) -> Answer:
        numbers = {name: str(to.pop(name)) for name in ("revision", "new_revision")}
        ticks = {"since": None if since is None else micros(since), "tick": micros(tick)}
        reply = yield self.scripts.call("set_schedule", **ticks, **numbers, **to)
        return [{"name": name} for name in reply]

    # -- claim, settle --------------------------------------------------------------------------

    def _claim_within_limits(self, **_: Any) -> Answer:
        raise AssertionError("Redis keeps limits in every claim and never returns `limited`")

    def _settle(self, **settled: Any) -> Answer:
        return id_rows((yield from self.scripts.ask("settle", **settlement_rows(**settled))))

    def settle_or_raise(self, **settled: Any) -> ScriptCall:
        """Return a call for a caller's pipeline: a lost claim is an error among the replies of its EXEC."""
        return self.scripts.call("settle_or_raise", **settlement_rows(**settled))

    def _exchange(self, settlements: Any, children: Any, steps: Any = (), **wanted: Any) -> Answer:
        settled = settlement_rows(settlements, children, steps)
        applied, *claimed = yield from self.scripts.ask("exchange", **settled, **wanted)
        first, *rest = claimed_rows(claimed)
        return [{**first, "settled": list(map(UUID, applied))}, *rest]

    def _renew(self, claims: Sequence[tuple[UUID, int]], lease: int) -> Answer:
        pairs = [(id, str(token)) for id, token in claims]
        return claim_rows((yield self.scripts.call("renew", claims=pairs, lease=lease)))

    def _progress(self, token: int, fraction: float, **given: Any) -> Answer:
        exact = {"token": str(token), "fraction": repr(fraction)}
        return claim_rows((yield self.scripts.call("progress", **given, **exact)))

    # -- upkeep ---------------------------------------------------------------------------------

    def _sweep(self, limit: int) -> Answer:
        return swept_rows((yield from self.scripts.ask("sweep", limit=limit, message=WORKER_DIED)))

    def _recover(self, token: int, **which: Any) -> Answer:
        return id_rows((yield self.scripts.call("recover", token=str(token), **which)))

    def _update(self, run_at: datetime | None, **change: Any) -> Answer:
        at = None if run_at is None else micros(run_at)
        return id_rows((yield self.scripts.call("update", run_at=at, **change)))

    def _tick(self, **about: Any) -> Answer:
        return upcoming_rows((yield self.scripts.call("tick", echo=ECHO_HINT + about["worker"], **about)))

    # -- find, examine --------------------------------------------------------------------------

    def _find(self, **wanted: Any) -> Answer:
        return list(map(job_row, (yield from self._pages("find", **wanted))))

    def _find_oldest(self, **wanted: Any) -> Answer:
        return id_rows((yield from self._pages("find_oldest", **wanted)))

    def _search(self, limit: int, scan: int, after: UUID | None, contained: Any, **wanted: Any) -> Answer:
        del contained  # there is no index
        rows: list[Row] = []
        looked, start, last = 0, None if after is None else str(after), ""
        while start != "" and looked < scan and len(rows) < limit:
            left = {"limit": limit - len(rows), "scan": scan - looked}
            page = yield self.scripts.call("search", **left, after=start, **distinct_states(wanted))
            start, number, newest, *hits = page
            rows += [{"id": UUID(id), "nth": looked + nth, "hit": True} for id, nth in hits]
            looked, last = looked + number, newest or last
        if looked and len(rows) < limit and not (rows and rows[-1]["nth"] == looked):
            rows.append({"id": UUID(last), "nth": looked, "hit": False})
        return rows

    def _count(self, scan: int, after: UUID | None, **wanted: Any) -> Answer:
        counted, start = 0, None if after is None else str(after)
        while start != "" and counted < scan:
            left = {"scan": scan - counted, "after": start}
            start, number = yield self.scripts.call("count", **left, **distinct_states(wanted))
            counted += number
        return [{"jobs": counted}]

    def _add_to_minute(self, width: int, at_minute: int, queue: str, kind: str, **counts: int) -> Answer:
        line = {"queue": queue, "kind": kind, "counts": [pair for pair in counts.items() if pair[1]]}
        about = {"width": width, "at_minute": at_minute, "seconds": 60 * KEPT[width]}
        yield self.scripts.call("add_to_minute", **about, **line)
        return []

    def _minutes(self, width: int, first: int, last: int, **which: Any) -> Answer:
        begin = -(-first // width) * width
        return minute_rows((yield self.scripts.call("minutes", width=width, first=begin, last=last)), **which)

    def _refuse(self, token: int, **write: Any) -> Answer:
        yield self.scripts.call("refuse", token=str(token), **write)
        return []

    def _forget(self, **_: Any) -> Answer:
        """Do nothing: counts of minutes expire, and refusals go with their job."""
        yield from ()
        return []

    def _pages(
        self, question: str, limit: int, after: UUID | None, **filter: Any
    ) -> Generator[ScriptCall, Any, list[Any]]:
        found: list[Any] = []
        start = None if after is None else str(after)
        while len(found) < limit and start != "":
            start, *page = yield self.scripts.call(
                question, limit=limit - len(found), after=start, **distinct_states(filter)
            )
            found += page
        return found

    def _examine(self) -> Answer:
        info = read_info((yield self.scripts.call("examine")))
        fsync = yield OptionalCommand(("CONFIG", "GET", "appendfsync"))
        save = yield OptionalCommand(("CONFIG", "GET", "save"))
        return list(server_facts(info, fsync, save))

    # -- move -----------------------------------------------------------------------------------

    def _depart(self, store: UUID, after: UUID | None, limit: int) -> Answer:
        found: list[Any] = []
        seen, most = str(after or ""), min(limit, MOST_AT_ONCE)
        while len(found) < most:
            which = {"after": seen or None, "limit": most - len(found), "piece": most}
            (leaving, seen), _ = yield self.scripts.call("depart", store=store, **which)
            found += leaving
            if not seen:
                break
        return moved_rows(found)

    def _departed(self, limit: int) -> Answer:
        return departed_rows(sorted((yield self.scripts.call("departed")))[:limit])

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Answer:
        rows: list[Row] = []
        for first in range(0, len(jobs), MOST_AT_ONCE):
            come = [read_stored(text) for text in jobs[first : first + MOST_AT_ONCE]]
            rows += arrived_rows(come, (yield self.scripts.call("arrive", store=store, **arriving(come))))
        return rows

    def _give_back(self, store: UUID, ids: Sequence[UUID]) -> Answer:
        wanted = set(ids)
        rows = yield from self._departed(MOST_AT_ONCE)
        back = [read_stored(row["job"]) for row in rows if row["store"] == store and row["id"] in wanted]
        return arrived_rows(back, (yield self.scripts.call("give_back", **arriving(back))))


# -- Pipelines: how they are stored, in pieces if they are large, and read (ADR 18) --------------

PipelineRow = tuple[UUID, str, str]  # id, name, on_failed
Edge = tuple[UUID, float, UUID]  # child, order, parent

MOST_EDGES = 1000  # of one piece
_BEFORE_ALL = 0.5  # the order of the pipeline itself, before every parent


class RedisPipelineAnswers:
    """The answers about pipelines with jobs that wait for parents."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def enqueue(self, pipeline: PipelineRow, edges: Sequence[tuple[UUID, UUID]], jobs: Tuples) -> Answer:
        rows: list[Row] = []
        calls = self.enqueue_calls(pipeline, edges, jobs)
        for call in calls:
            reply = yield from self._scripts.finish(call)
            if not reply:
                return []  # it is known
            rows += stored_rows(jobs[len(rows) : len(rows) + len(reply) - 1], reply)
        return rows if len(calls) == 1 else (yield from self._with_states_now(rows))

    def enqueue_calls(
        self, pipeline: PipelineRow, edges: Sequence[tuple[UUID, UUID]], jobs: Tuples
    ) -> list[ScriptCall]:
        """Return one call; or one per piece, and a last one that lets the first jobs go.

        In pieces, a job without a parent waits for the pipeline itself.
        """
        wake = list(hints_for(jobs).values())
        pieces = list(_pieces(jobs, edges))
        if len(pieces) == 1:
            [(part, known)] = pieces
            return [self._call(pipeline, part, known, is_piece=False, is_whole=True, wake=wake)]
        waiting = {child for _, child in edges}
        calls = []
        for part, known in pieces:
            first_jobs = [(job[0], _BEFORE_ALL, pipeline[0]) for job in part if job[0] not in waiting]
            calls.append(self._call(pipeline, part, [*known, *first_jobs], is_piece=True, is_whole=False))
        return [*calls, self._call(pipeline, [], [], is_piece=True, is_whole=True, wake=wake)]

    def _call(
        self,
        pipeline: PipelineRow,
        jobs: list[Any],
        edges: list[Edge],
        *,
        wake: Sequence[str] = (),
        **which: bool,
    ) -> ScriptCall:
        given = {"pipeline": pipeline, "jobs": jobs, "edges": edges, "wake": wake}
        return self._scripts.call("enqueue_pipeline", **given, **which)

    def _with_states_now(self, rows: Sequence[Row]) -> Answer:
        """Read the states again: jobs without a parent were let go after all had been stored."""
        states: dict[str, str] = {}
        for first in range(0, len(rows), MOST_AT_ONCE):
            ids = [row["id"] for row in rows[first : first + MOST_AT_ONCE]]
            states |= {id: state for id, state, *_ in (yield self._scripts.call("settled", ids=ids))}
        return [{**row, "state": states.get(str(row["id"]), row["state"])} for row in rows]

    def parents(self, jobs: Sequence[UUID]) -> Answer:
        rows: list[Row] = []
        for first in range(0, len(jobs), MOST_AT_ONCE):
            rows += parent_rows(
                (yield self._scripts.call("parents", jobs=jobs[first : first + MOST_AT_ONCE]))
            )
        return rows

    def pipelines(self, ids: Sequence[UUID] | None) -> Answer:
        rows: list[Row] = []
        after: str | None = None
        while after != "" and len(rows) < MOST_AT_ONCE:
            after, *found = yield self._scripts.call("pipelines", ids=ids, after=after)
            rows += pipeline_rows(found)
        return rows

    def counts(self, ids: Sequence[UUID]) -> Answer:
        rows: list[Row] = []
        for id in ids:
            found: Counter[str] = Counter()
            progress: Counter[str] = Counter()
            first: int | None = 0
            while first is not None:
                after, states = yield self._scripts.call("pipeline_counts", id=id, first=first)
                for state, jobs, done in states:
                    found[state] += jobs
                    progress[state] += float(done)  # type: ignore[assignment]
                first = after or None
            rows += [
                {"pipeline_id": id, "state": state, "jobs": jobs, "progress": progress[state]}
                for state, jobs in found.items()
            ]
        return rows


def _pieces(jobs: Tuples, edges: Sequence[tuple[UUID, UUID]]) -> Iterator[tuple[list[Any], list[Edge]]]:
    """Yield jobs and their parents, as many as one script stores."""
    by_child: dict[UUID, list[Edge]] = {}
    for order, (parent, child) in enumerate(edges, 1):
        by_child.setdefault(child, []).append((child, order, parent))
    part: list[Any] = []
    known: list[Edge] = []
    for job in jobs:
        if len(part) == MOST_AT_ONCE or len(known) >= MOST_EDGES:
            yield part, known
            part, known = [], []
        part.append(new_row(job))
        known += by_child.get(job[0], [])
        while len(known) > MOST_EDGES:  # of the last job: nothing runs before all of it is stored
            yield part, known[:MOST_EDGES]
            part, known = [], known[MOST_EDGES:]
    yield part, known
