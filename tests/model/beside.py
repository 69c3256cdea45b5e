"""A real store beside memory: both are asked the same, and what a user sees of each is compared.

Ids are the same on both sides. Tokens are not: they are compared by the claim that gave them out.
Times are not either: two clocks read one after the other are equal when they differ by less than
anything the machine ever waits for.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import redis

from dibs import Dibs, DibsError, Job, Retry
from dibs.app.claims import SyncClaim
from dibs.clock import SECOND
from dibs.operations import upkeep
from tests.support.internals import engine_of, store_of
from tests.support.redis_checks import break_script, misplaced, places
from tests.support.servers import mysql_connection

CLOCKS_DIFFER_BY = 5  # seconds; the machine lets 30 or more pass where it matters

QUEUES = ("mail", "reports")
KINDS = ("soon", "later")


def make_app(url: str) -> Dibs:
    """An app that knows two kinds; a failed attempt of one is due at once, of the other in a minute."""
    app = Dibs(url)
    app.job(name="soon", retry=Retry.fixed(0))(_handler)
    app.job(name="later", retry=Retry.fixed(60), lease=600)(_handler)
    return app


def _handler(n: int = 0) -> int:
    return n


TWO_HOURS_AGO = int(time.time() * 1000) - 7_200_000


def old_ids(step: int = 1) -> Iterator[UUID]:
    """Ids made two hours ago, each greater (or smaller) than the one before: `prune` looks at their age."""
    for millis in itertools.count(TWO_HOURS_AGO + step, step):
        yield UUID(int=millis << 80 | 0x7 << 76 | 0b10 << 62)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time that equals every other one that the machine could not tell from it."""

    at: datetime

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Moment):
            return NotImplemented
        return abs((self.at - other.at).total_seconds()) < CLOCKS_DIFFER_BY

    __hash__ = None  # type: ignore[assignment]


Seen = dict[str, Any]


@dataclass(slots=True)
class Side:
    """One of the two stores, and which claim each of its tokens was given out by."""

    app: Dibs
    claim_of: dict[int | None, int | None] = field(default_factory=lambda: {None: None})

    @property
    def face(self) -> Any:
        return self.app.sync

    def run(self, script: Callable[[], Any]) -> Any:
        return store_of(self.app).run(script)

    def age(self, seconds: float) -> None:
        self.run(lambda _: upkeep.age(round(seconds * SECOND)))

    def note_claims(self, claims: list[SyncClaim], number: int) -> list[SyncClaim]:
        """Remember whose tokens these are; they must be greater than all that came before."""
        newest = max((token for token in self.claim_of if token is not None), default=0)
        for claim in claims:
            assert claim.token > newest, f"token {claim.token} was given out after {newest}"
            self.claim_of[claim.token] = number
        return claims

    def answer(self, deed: Callable[[Side], Any]) -> tuple[Any, Any]:
        """(what the caller got, the same as it can be compared)."""
        try:
            got = deed(self)
        except DibsError as error:
            return error, type(error).__name__
        return got, self.seen(got)

    def seen(self, value: Any) -> Any:
        match value:
            case Job():
                return self._seen_job(value)
            case SyncClaim():
                return self._seen_job(value.job)
            case datetime():
                return Moment(value)
            case list() | tuple():
                return [self.seen(each) for each in value]
            case _:
                return value

    def everything(self) -> dict[UUID, Seen]:
        return {job.id: self._seen_job(job) for job in self.face.find(limit=1000)}

    def _seen_job(self, job: Job) -> Seen:
        seen = msgspec.structs.asdict(job)
        seen |= {name: Moment(at) for name, at in seen.items() if isinstance(at, datetime)}
        seen["token"] = self.claim_of[job.token]
        seen["errors"] = [self._seen_error(msgspec.structs.asdict(error)) for error in job.errors]
        return seen

    def _seen_error(self, error: dict[str, Any]) -> dict[str, Any]:
        return error | {"at": Moment(error["at"]), "token": self.claim_of[error["token"]]}


def take_out(app: Dibs, block: str, text: str, instead: str) -> None:
    """Make a mutant of a SQL store: in one of its blocks a guard gives way to something else."""
    blocks = engine_of(app).dialect.blocks
    assert text in blocks[block], f"{block} has changed: find the guard {text!r} again"
    blocks[block] = blocks[block].replace(text, instead)


# What must never be in the tables of a SQL store; each select answers the ids that break its rule.
NEVER = """
select 'live and finished' as wrong, cast(live.id as text)
from dibs_jobs live join dibs_finished finished on finished.id = live.id
union all
select 'two live jobs of one unique key', unique_key
from dibs_jobs where unique_key is not null group by unique_key having count(*) > 1
union all
select 'running without a holder', cast(id as text)
from dibs_jobs
where state = 'running' and (worker is null or lease_until is null or token is null or claimed_at is null)
union all
select 'waiting with a holder', cast(id as text)
from dibs_jobs
where state <> 'running' and (worker is not null or lease_until is not null or cancel_reason is not null)
union all
select 'live in a finished state', cast(id as text)
from dibs_jobs where state not in ('scheduled', 'blocked', 'ready', 'running')
union all
select 'finished in a live state', cast(id as text)
from dibs_finished
where state not in ('succeeded', 'failed', 'cancelled') or finished_at is null or lease_until is not null
"""

# Who is at a gate, and what only the store knows of it: its place, how many may go beside it, whether it was
# asked to stop.
PLACES = """
select id, position, slot_limit, cancel_reason from dibs_jobs where train is not null or slot is not null
"""

Places = dict[UUID, tuple[int | None, int, str | None]]

TABLES = (
    "dibs_parents",
    "dibs_pipelines",
    "dibs_gates",
    "dibs_jobs",
    "dibs_finished",
    "dibs_queues",
    "dibs_schedules",
    "dibs_moving",
)


def _as_id(value: Any) -> UUID:
    match value:
        case bytes():
            return UUID(bytes=value)
        case str():
            return UUID(value)
        case _:
            return value


def places_in_memory(app: Dibs) -> Places:
    live = engine_of(app)._live.values()
    return {
        job["id"]: (job["position"], job["slot_limit"] or 1, job["cancel_reason"])
        for job in live
        if job["train"] is not None or job["slot"] is not None
    }


class SqlStore:
    """A real engine for a whole run of the machine, with a second way in that sees the tables."""

    can_be_torn = True

    def __init__(self, url: str, connection: Any) -> None:
        self.app = make_app(url)
        self._connection = connection

    def empty(self) -> None:
        for table in TABLES:
            self._connection.execute(f"delete from {table}")

    def never_rows(self) -> list[tuple[str, str]]:
        return list(self._connection.execute(NEVER).fetchall())

    def delete_by_hand(self, id: UUID) -> None:
        """As a person would who knows nothing of gates."""
        self._connection.execute(f"delete from dibs_jobs where id = '{id}'")

    def places(self) -> Places:
        rows = self._connection.execute(PLACES).fetchall()
        return {_as_id(id): (position, limit or 1, asked) for id, position, limit, asked in rows}

    def take_out(self, block: str, text: str, instead: str) -> None:
        take_out(self.app, block, text, instead)

    def close(self) -> None:
        self.app.sync.close()
        self._connection.close()


class RedisStore:
    """The same for Redis."""

    can_be_torn = False  # a sweep mends gates, and not the other places where a deleted hash was named

    def __init__(self, url: str) -> None:
        self.app = make_app(url)
        self._client = redis.Redis.from_url(url, decode_responses=True)

    def empty(self) -> None:
        self._client.flushdb()

    def never_rows(self) -> list[tuple[str, str]]:
        return misplaced(self._client)

    def places(self) -> Places:
        return places(self._client)

    def take_out(self, question: str, text: str, instead: str) -> None:
        break_script(self.app, question, text, instead)

    def close(self) -> None:
        self.app.sync.close()
        self._client.close()


RealStore = SqlStore | RedisStore


def sqlite_store(path: str) -> SqlStore:
    url = f"sqlite:///{path}"
    make_app(url).sync.open()
    return SqlStore(url, sqlite3.connect(path, isolation_level=None))


_ID = re.compile("'([0-9a-f-]{36})'")


class _ByCursor:
    """A connection to MariaDB or MySQL that is used as one of psycopg's."""

    def __init__(self, url: str) -> None:
        self._connection = mysql_connection(url)
        self.close = self._connection.close

    def execute(self, text: str) -> Any:
        cursor = self._connection.cursor()
        text = text.replace("cast(id as text)", "hex(id)").replace("cast(live.id as text)", "hex(live.id)")
        cursor.execute(_ID.sub(lambda id: f"x'{UUID(id[1]).hex}'", text))
        return cursor


def mysql_store(url: str) -> SqlStore:
    store = SqlStore(url, _ByCursor(url))
    store.app.sync.migrate()
    return store


def postgresql_store(url: str) -> SqlStore:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("alter database " + connection.info.dbname + " set synchronous_commit = off")
    store = SqlStore(url, connection)
    store.app.sync.migrate()
    return store
