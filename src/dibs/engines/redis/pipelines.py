"""Pipelines on Redis: how they are stored, in pieces if they are large, and read (ADR 18)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from dibs.engines.hints import hints_for
from dibs.engines.redis.rows import MOST_AT_ONCE, new_row, parent_rows, pipeline_rows, stored_rows
from dibs.engines.redis.scripts import Answer, ScriptCall, Scripts
from dibs.operations.scripts import Row

PipelineRow = tuple[UUID, str, str]  # id, name, on_failed
Edge = tuple[UUID, float, UUID]  # child, order, parent

MOST_EDGES = 1000  # of one piece
_BEFORE_ALL = 0.5  # the order of the pipeline itself, before every parent


class RedisPipelineAnswers:
    """The answers about pipelines with jobs that wait for parents."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def enqueue(
        self, pipeline: PipelineRow, edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[tuple[Any, ...]]
    ) -> Answer:
        rows: list[Row] = []
        calls = self.enqueue_calls(pipeline, edges, jobs)
        for call in calls:
            reply = yield from self._scripts.finish(call)
            if not reply:
                return []  # it is known
            rows += stored_rows(jobs[len(rows) : len(rows) + len(reply) - 1], reply)
        return rows if len(calls) == 1 else (yield from self._with_states_now(rows))

    def enqueue_calls(
        self, pipeline: PipelineRow, edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[tuple[Any, ...]]
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


def _pieces(
    jobs: Sequence[tuple[Any, ...]], edges: Sequence[tuple[UUID, UUID]]
) -> Iterator[tuple[list[Any], list[Edge]]]:
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
