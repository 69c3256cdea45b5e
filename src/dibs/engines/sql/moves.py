"""`dibs move` on SQL: how jobs depart for another store, and arrive from one.

Each answer is one transaction: a job is either in the tables of jobs or noted as departed. The databases
differ only in how many rows are sent at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.engines.sql.engine import Answer, Plan, Query, SqlEngine
from dibs.jobs.ids import may_have_steps
from dibs.jobs.job import StoredJob, read_stored, stored_text
from dibs.jobs.states import FINISHED, JobState
from dibs.operations.move import behind, by_train, key_of, placed, sorted_out
from dibs.operations.scripts import Row

FIRST = UUID(int=0)


class MovingEngine(SqlEngine):
    """An SQL engine with the answers for `dibs move`."""

    def _own_answers(self) -> dict[str, Answer]:
        return {
            **super()._own_answers(),
            "identify": self._identify,
            "depart": self._depart,
            "arrive": self._arrive,
            "give_back": self._give_back,
            "landed": self._landed,
            **self._blocks("departed"),
        }

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Store these rows by a block, in the way this database takes many."""
        raise NotImplementedError

    def _key_holders(self, keys: Sequence[str]) -> Plan:
        return (yield Query("key_holders", self.adapt({"keys": list(keys)})))

    def _outrun(self, token: int) -> Plan:
        """Make all later claims have a greater token than this."""
        return (yield Query("outrun", {"token": token}))

    def _identify(self, new: UUID | None) -> Plan:
        rows = yield Query("identity", {})
        if rows or new is None:
            return rows
        yield Query("become", self.adapt({"new": new}))
        return [{"id": new}]

    # -- out ------------------------------------------------------------------------------------

    def _depart(self, store: UUID, after: UUID | None, limit: int) -> Plan:
        which = self.adapt({"after": after or FIRST, "limit": limit})
        live = yield Query("departing", which)
        ended = yield Query("departing_finished", which)
        leaving = sorted([*live, *ended], key=lambda row: row["id"])[:limit]
        rows = [{"id": row["id"], "job": stored_text(row)} for row in leaving]
        if rows:
            yield from self._note("out", store, rows)
            yield from self._forget_these(leaving)
            yield from self._forget_pipelines(leaving)
            yield from self._let_next_go([row for row in leaving if _has_place(row)])
        return rows

    def _forget_these(self, leaving: Sequence[Row]) -> Plan:
        """Delete these jobs from both tables."""
        params = self.adapt({"ids": [row["id"] for row in leaving]})
        yield Query("delete_live", params)
        return (yield Query("delete_finished", params))

    def _forget_pipelines(self, leaving: Sequence[Row]) -> Plan:
        """Remove the edges of jobs that depart; all jobs of their pipelines have ended."""
        if pipelines := {row["pipeline_id"] for row in leaving if may_have_steps(row["pipeline_id"])}:
            yield Query("forget_parents", {"ids": self.ids(row["id"] for row in leaving)})
            yield Query("forget_pipelines", {"ids": self.ids(pipelines)})
        return []

    def _let_next_go(self, departed: Sequence[Row]) -> Plan:
        """Open the gates of these jobs. Their rows are locked, so a locked gate is left to `mend`."""
        raise NotImplementedError

    def _note(self, way: str, store: UUID, rows: Iterable[Row]) -> Plan:
        return (yield from self._many("note_moves", [{**row, "way": way, "store": store} for row in rows]))

    # -- in -------------------------------------------------------------------------------------

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Plan:
        come = [read_stored(text) for text in jobs]
        noted = yield Query("noted", self.adapt({"store": store, "ids": [job.id for job in come]}))
        seen = {row["id"] for row in noted}
        answers = yield from self._take_in([job for job in come if job.id not in seen])
        new = [{"id": row["id"], "job": None} for row in answers if row["is_new"]]
        if new:
            yield from self._note("in", store, new)
        known = [{"id": job.id, "holder": job.id, "is_new": False} for job in come if job.id in seen]
        return [*answers, *known]

    def _give_back(self, store: UUID, ids: Sequence[UUID]) -> Plan:
        rows = yield Query("departed_these", self.adapt({"store": store, "ids": list(ids)}))
        answers = yield from self._take_in([read_stored(row["job"]) for row in rows])
        back = [row["id"] for row in answers if row["holder"] == row["id"]]
        yield from self._landed("out", store, back)
        return answers

    def _landed(self, way: str, store: UUID, ids: Sequence[UUID] | None) -> Plan:
        if ids is None:
            yield Query("landed_all", self.adapt({"way": way, "store": store}))
        elif ids:
            yield Query("landed", self.adapt({"way": way, "store": store, "ids": list(ids)}))
        return []

    def _take_in(self, jobs: Sequence[StoredJob]) -> Plan:
        """Store the jobs with a free id and unique key; return one row for each job."""
        if not jobs:
            return []
        known = yield Query("settled", self.adapt({"ids": [job.id for job in jobs]}))
        holders: dict[Any, UUID] = {row["id"]: row["id"] for row in known}
        if keys := [key for job in jobs if (key := key_of(job)) is not None]:
            holders |= {row["unique_key"]: row["holder"] for row in (yield from self._key_holders(keys))}
        answers, new = sorted_out(jobs, holders)
        new = yield from self._with_places(new)
        if tokens := [job.token for job in new if job.token is not None]:
            yield from self._outrun(max(tokens))
        yield from self._insert(
            "store_live", [blocked(job) if job.is_gated else job for job in new if not job.is_finished]
        )
        if gated := [job for job in new if job.is_gated]:
            yield from self._join_again(gated)
        yield from self._insert("store_finished", [job for job in new if job.is_finished])
        return answers

    def _with_places(self, jobs: Sequence[StoredJob]) -> Any:
        """Return the jobs with their positions; if one is taken, all of its train go to the end."""
        if keys := [_gate(job) for job in jobs if job.is_gated]:
            yield from self._lock_gates(keys)
        places: dict[UUID, int] = {}
        for name, coming in by_train(jobs).items():
            given = {"name": name, "positions": [job.position for job in coming]}
            [train] = yield Query("clash", self.adapt({**given, "first": coming[0].position}))
            if train["is_clash"]:
                places |= behind(train["last_position"], coming)
        return placed(jobs, places)

    def _lock_gates(self, keys: Sequence[tuple[str, str]]) -> Any:
        raise NotImplementedError

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        """Open the gates of jobs that arrived with positions of another store."""
        return []
        yield

    def _insert(self, block: str, jobs: Sequence[StoredJob]) -> Plan:
        return (yield from self._many(block, [columns(job) for job in jobs])) if jobs else []


def columns(job: StoredJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def blocked(job: StoredJob) -> StoredJob:
    """Return the job in the state in which it waits for its gate, or for its time."""
    later = job.train is None and job.state == JobState.scheduled
    return structs.replace(job, state=str(JobState.scheduled if later else JobState.blocked))


def _gate(job: StoredJob) -> tuple[str, str]:
    return ("slot", job.slot or "") if job.train is None else ("train", job.train)


def _has_place(row: Row) -> bool:
    return row["position"] is not None and row["state"] not in FINISHED
