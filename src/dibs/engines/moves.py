"""How the SQL engines let jobs leave for another store, and take those that come.

Each answer is one transaction: a job is in the tables of jobs, or noted as departed, never both and never
neither. What differs between the databases is only how many rows are sent at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import structs

from dibs.engines.sql import Plan, Query, SqlEngine
from dibs.jobs import StoredJob, read_stored, stored_text
from dibs.scripts import Row
from dibs.states import JobState

FIRST = UUID(int=0)


class MovingEngine(SqlEngine):
    """An SQL engine with the answers that `dibs move` asks for."""

    def _many(self, block: str, rows: Sequence[Mapping[str, Any]]) -> Plan:
        """Give these rows to a block that stores them, as this database takes many."""
        raise NotImplementedError

    def _key_holders(self, keys: Sequence[str]) -> Plan:
        return (yield Query("key_holders", self.adapt({"keys": list(keys)})))

    def _outrun(self, token: int) -> Plan:
        """Every claim from now on has a greater token than this."""
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
            yield from self._forget_these([row["id"] for row in rows])
        return rows

    def _forget_these(self, ids: Sequence[UUID]) -> Plan:
        """Out of both tables. Not as `delete` does it: who waits behind a job is moved after it."""
        params = self.adapt({"ids": list(ids)})
        yield Query("delete_live", params)
        return (yield Query("delete_finished", params))

    def _note(self, way: str, store: UUID, rows: Iterable[Row]) -> Plan:
        return (yield from self._many("note_moves", [{**row, "way": way, "store": store} for row in rows]))

    # -- in -------------------------------------------------------------------------------------

    def _arrive(self, store: UUID, jobs: Sequence[str]) -> Plan:
        come = [read_stored(text) for text in jobs]
        noted = yield Query("noted", self._these(store, come))
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
        """Those whose id and unique key are free; one row for each says which."""
        if not jobs:
            return []
        known = yield Query("settled", self.adapt({"ids": [job.id for job in jobs]}))
        holders: dict[Any, UUID] = {row["id"]: row["id"] for row in known}
        if keys := [key for job in jobs if (key := _key(job)) is not None]:
            holders |= {row["unique_key"]: row["holder"] for row in (yield from self._key_holders(keys))}
        answers, new = _sorted_out(jobs, holders)
        if tokens := [job.token for job in new if job.token is not None]:
            yield from self._outrun(max(tokens))
        yield from self._insert(
            "store_live", [blocked(job) if job.is_gated else job for job in new if not job.is_finished]
        )
        if gated := [job for job in new if job.is_gated]:
            yield from self._join_again(gated)
        yield from self._insert("store_finished", [job for job in new if job.is_finished])
        return answers

    def _join_again(self, jobs: Sequence[StoredJob]) -> Plan:
        """They have their places in trains and at slots from where they come: let through who may go."""
        return []
        yield

    def _insert(self, block: str, jobs: Sequence[StoredJob]) -> Plan:
        return (yield from self._many(block, [columns(job) for job in jobs])) if jobs else []

    def _these(self, store: UUID, jobs: Iterable[StoredJob]) -> Mapping[str, Any]:
        return self.adapt({"store": store, "ids": [job.id for job in jobs]})


def columns(job: StoredJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def blocked(job: StoredJob) -> StoredJob:
    """As it waits until its gate lets it through; one of a slot that is not due waits for its time."""
    later = job.train is None and job.state == JobState.scheduled
    return structs.replace(job, state=str(JobState.scheduled if later else JobState.blocked))


def _key(job: StoredJob) -> str | None:
    """The unique key that it needs for itself; one that has finished needs none."""
    return None if job.is_finished else job.unique_key


def _sorted_out(
    jobs: Sequence[StoredJob], holders: dict[Any, UUID]
) -> tuple[list[dict[str, Any]], list[StoredJob]]:
    """(an answer for each, those that are new); `holders` are ids and keys that are taken."""
    answers, new = [], []
    for job in jobs:
        holder = holders.get(job.id) or holders.get(_key(job))
        answers.append({"id": job.id, "holder": holder or job.id, "is_new": holder is None})
        if holder is None:
            new.append(job)
            holders |= {job.id: job.id} | ({} if _key(job) is None else {_key(job): job.id})
    return answers, new
