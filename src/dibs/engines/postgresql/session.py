"""A session with PostgreSQL: how it is set up, and what dibs asks there besides questions.

A pooler such as PgBouncer in transaction mode shares a session between clients, one transaction at a time.
Behind one nothing may be left in a session: no prepared statement, no parameter, no LISTEN. A pool finds out
by itself, and from then on puts every step into a transaction of its own, with no prepared statements.
"""

from dataclasses import dataclass

from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.postgresql.errors import NOT_PREPARED, PREPARED_TWICE
from dibs.engines.sql.engine import Query
from dibs.engines.sql.migrations import (
    LOCK_SECONDS,
    MIGRATION_LOCK,
    Blocker,
    pending,
    schema_table,
    table_names,
)
from dibs.engines.sql.pools import IDLE_LIMIT, Conversation

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without an answer to a statement; the connection is then given up
BULK_TIMEOUT = 600
LOCK_TIMEOUT = 5  # seconds that a statement waits for a lock before its transaction starts over

# The settings come with it in one round trip, and end with the transaction.
BEGIN = (
    f"begin isolation level read committed; set local idle_in_transaction_session_timeout = '{IDLE_LIMIT}s'"
)

# Sent with the connection request. The planner can't know how few rows a claim takes and overrates its cost:
# with JIT it compiles for 50 ms what runs in one, and left the choice it plans every single claim anew
# (0.9 ms instead of 0.2 for an empty one). The tests of query plans hold for generic plans. Such a plan may
# be made while there are ten jobs and is kept until the next ANALYZE, even with thousands: for ten it would
# read the whole table, and a settlement then took 50 ms. So an index is used where there is one.
SESSION = {
    "application_name": "dibs",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "timezone": "UTC",
    "lock_timeout": f"{LOCK_TIMEOUT}s",
}


@dataclass
class SessionMode:
    """What may be kept in the sessions of a pool; learned from what the other side is and refuses."""

    pooled: bool | None = None
    """Sessions are shared with other clients. None: each new connection is tested."""
    bare: bool = False
    """No parameters may be sent with the connection request."""

    def __post_init__(self) -> None:
        self.bare = self.bare or self.pooled is True

    @property
    def begin(self) -> str:
        """Return what opens a transaction, with the settings that a shared session can't keep."""
        if not self.pooled:
            return BEGIN
        return f"{BEGIN}; set local jit = off; set local lock_timeout = '{LOCK_TIMEOUT}s'"

    @property
    def session(self) -> dict[str, str]:
        return {"application_name": SESSION["application_name"]} if self.bare else SESSION

    @property
    def options(self) -> str | None:
        """Return the same for libpq, which has one parameter for all of them."""
        if self.bare:
            return None
        return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION.items())

    def learn_from_refusal(self, error: BaseException) -> bool:
        """Return whether a refused connection is worth another try without parameters."""
        if self.bare or "unsupported startup parameter" not in str(error):
            return False
        self.bare = True
        self.pooled = True if self.pooled is None else self.pooled
        return True

    def learn_from_pid(self, is_own: bool) -> bool:
        """Recognise a pooler: the connection's process id is not that of its session."""
        if self.pooled is None and not is_own:
            self.pooled = self.bare = True
            return True
        return False

    def learn_from_error(self, sqlstate: str | None) -> bool:
        """Recognise a pooler: a statement of ours was prepared in another session. Nothing was executed."""
        if sqlstate not in (NOT_PREPARED, PREPARED_TWICE):
            return False
        self.pooled = self.bare = True
        return True


# -- Scripts for both faces ---------------------------------------------------------------------


def schema_version_script(engine: PostgreSQL) -> Conversation[int]:
    """Read it in one round trip; without the table the server's error is a schema version of 0."""
    [row] = yield f"select max(version) as version from {engine.dialect.rename('dibs_schema')}"  # noqa: S608
    return int(row["version"] or 0)


def migration_script(engine: PostgreSQL) -> Conversation[list[int]]:
    """Migrate, one process at a time, within a transaction."""
    yield "set local lock_timeout = 0"
    yield f"select pg_advisory_xact_lock({MIGRATION_LOCK})"
    # While a migration waits for a table, all others wait behind it.
    yield f"set local lock_timeout = '{LOCK_SECONDS}s'"
    create, versions = schema_table(engine.dialect)
    yield create
    applied = {row["version"] for row in (yield versions)}
    steps = pending(engine.dialect, applied)
    for _, statement in steps:
        yield statement
    return sorted({version for version, _ in steps})


def blocker_script(engine: PostgreSQL) -> Conversation[Blocker | None]:
    rows = yield Query("oldest_lock", {"tables": table_names(engine.dialect)})
    return Blocker(**rows[0]) if rows else None
