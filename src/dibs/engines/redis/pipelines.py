"""Pipelines on Redis: how they are stored, in pieces if they are large, and what is told of them (ADR 18)."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from uuid import UUID

from dibs.engines.hints import hints_for
from dibs.engines.redis.rows import MOST_AT_ONCE, new_row, stored_row, time_of
from dibs.operations.scripts import Row, Rows

Plan = Generator[Any, Any, Rows]
About = tuple[UUID, str, str]  # id, name, on_failed
Edge = tuple[UUID, float, UUID]  # child, place, parent

MOST_EDGES = 1000  # of one piece
_FOR_ALL = 0.5  # the place of the pipeline itself, before every parent


class RedisSteps:
    """The answers about pipelines whose jobs wait for each other."""

    call: Callable[..., Any]
    ask: Callable[..., Any]
    all_of: Callable[..., Any]

    def _enqueue_pipeline(
        self, pipeline: About, edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[tuple[Any, ...]]
    ) -> Plan:
        rows: list[Row] = []
        calls = self.enqueue_pipeline_calls(pipeline, edges, jobs)
        for call in calls:
            reply = yield from self.all_of(call)
            if not reply:
                return []  # it is known
            now, *answers = reply
            part = jobs[len(rows) : len(rows) + len(answers)]
            rows += [
                stored_row(job[0], answer, time_of(now)) for job, answer in zip(part, answers, strict=True)
            ]
        return rows if len(calls) == 1 else (yield from self._as_they_are(rows))

    def enqueue_pipeline_calls(
        self, pipeline: About, edges: Sequence[tuple[UUID, UUID]], jobs: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """One; or pieces, in which who waits for nobody waits for the pipeline, and one that ends them."""
        given = {"pipeline": pipeline, "wake": []}
        wake = list(hints_for(jobs).values())
        pieces = list(_pieces(jobs, edges))
        waiting = {child for _, child in edges}
        if len(pieces) == 1:
            [(part, known)] = pieces
            whole = {"jobs": part, "edges": known, "is_piece": False, "is_whole": True}
            return [self.call("enqueue_pipeline", **{**given, **whole, "wake": wake})]
        calls = [
            self.call(
                "enqueue_pipeline",
                **given,
                jobs=part,
                edges=[*known, *((job[0], _FOR_ALL, pipeline[0]) for job in part if job[0] not in waiting)],
                is_piece=True,
                is_whole=False,
            )
            for part, known in pieces
        ]
        end = {"jobs": [], "edges": [], "is_piece": True, "is_whole": True, "wake": wake}
        return [*calls, self.call("enqueue_pipeline", **{**given, **end})]

    def _as_they_are(self, rows: Sequence[Row]) -> Plan:
        """Those that wait for nobody were let go after all of them had been stored."""
        states: dict[str, str] = {}
        for first in range(0, len(rows), MOST_AT_ONCE):
            ids = [row["id"] for row in rows[first : first + MOST_AT_ONCE]]
            states |= {id: state for id, state, *_ in (yield self.call("settled", ids=ids))}
        return [{**row, "state": states.get(str(row["id"]), row["state"])} for row in rows]

    def _parents(self, jobs: Sequence[UUID]) -> Plan:
        rows: list[Row] = []
        for first in range(0, len(jobs), MOST_AT_ONCE):
            found = yield self.call("parents", jobs=jobs[first : first + MOST_AT_ONCE])
            rows += [
                {"child": UUID(child), "parent": UUID(parent), "met": bool(met)}
                for child, parent, met in found
            ]
        return rows

    def _pipelines(self, ids: Sequence[UUID] | None) -> Plan:
        rows: list[Row] = []
        after: str | None = None
        while after != "" and len(rows) < MOST_AT_ONCE:
            after, *found = yield self.call("pipelines", ids=ids, after=after)
            rows += [{"id": UUID(id), "name": name, "on_failed": on_failed} for id, name, on_failed in found]
        return rows


def _pieces(
    jobs: Sequence[tuple[Any, ...]], edges: Sequence[tuple[UUID, UUID]]
) -> Iterator[tuple[list[Any], list[Edge]]]:
    """Jobs and whom they wait for, as many as one script stores."""
    by_child: dict[UUID, list[Edge]] = {}
    for place, (parent, child) in enumerate(edges, 1):
        by_child.setdefault(child, []).append((child, place, parent))
    part: list[Any] = []
    known: list[Edge] = []
    for job in jobs:
        if len(part) == MOST_AT_ONCE or len(known) >= MOST_EDGES:
            yield part, known
            part, known = [], []
        part.append(new_row(job))
        known += by_child.get(job[0], [])
        while len(known) > MOST_EDGES:  # of the last job: it waits, since nothing goes before all is there
            yield part, known[:MOST_EDGES]
            part, known = [], known[MOST_EDGES:]
    yield part, known
