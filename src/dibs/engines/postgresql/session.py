"""A session with PostgreSQL: how it is set up, what its errors mean, what else dibs asks there.

A pooler such as PgBouncer in transaction mode shares a session between clients, one transaction at a time.
Behind one nothing may be left in a session: no prepared statement, no parameter, no LISTEN. A pool finds out
by itself, and from then on puts every step into a transaction of its own, with no prepared statements.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.retries import TryAgain, not_permitted
from dibs.engines.sql.blocks import schema_version
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
from dibs.engines.store import spoken_hosts
from dibs.errors import NotPermitted, SchemaOutdated, StoreRefused, StoreUnavailable

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


# -- Errors: which to try again after, which to explain to the caller, which are bugs ------------

READ_ONLY, LOCKED = "25006", "55P03"
# The session was idle in a transaction, or in a transaction, or idle, for longer than its limit.
TOO_LONG = ("25P03", "25P04", "57P05")
ENDED = "57014"  # a statement that took longer than its limit, or that an operator cancelled
NOT_PREPARED, PREPARED_TWICE = "26000", "42P05"
NOT_PERMITTED = "42501"
# SQLSTATEs after which the same operation may succeed: serialization, deadlock, a lock waited for too long, a
# key taken at the same time, a session or a statement that took too long, a server that starts, stops, became
# a replica or has no room, a query plan that the schema outgrew, a statement prepared in another session.
AGAIN = {
    *("40001", "40P01", LOCKED, "23505", "53300", "57P01", "57P02", "57P03", "0A000"),
    *(READ_ONLY, NOT_PREPARED, PREPARED_TWICE, ENDED, *TOO_LONG),
}
NO_TABLES = ("42P01", "42703", "3F000")
REFUSED = ("28", "3D")  # how these begin: credentials, no such database


def store_name(url: str) -> str:
    """Return host and database of a URL, never a password."""
    database = urlsplit(url).path.lstrip("/") or "(default)"
    return f"PostgreSQL at {spoken_hosts(url, 'local socket')}, database {database}"


def is_ending(sqlstate: str | None) -> bool:
    """Return whether the server is closing this connection, or has become a replica."""
    return sqlstate is not None and sqlstate.startswith(("08", "57P", READ_ONLY, *TOO_LONG))


def judge(error: BaseException, sqlstate: str | None, url: str) -> BaseException:
    """Return `TryAgain`, an error for the caller, or the error itself if it is a bug."""
    if sqlstate in NO_TABLES:
        return SchemaOutdated(0, schema_version("postgresql"), store_name(url))
    if sqlstate is not None and (sqlstate in AGAIN or sqlstate.startswith("08")):
        unsure = sqlstate.startswith(("08", "57P"))
        read_only, locked = sqlstate == READ_ONLY, sqlstate == LOCKED
        limit = "statement_timeout" if sqlstate == ENDED else None
        return TryAgain(error, store_name(url), unsure, read_only=read_only, locked=locked, limit=limit)
    if sqlstate == NOT_PERMITTED:
        return forbidden(error, url)
    if sqlstate is not None and sqlstate.startswith(REFUSED):
        return refused(error, url)
    return error


def unanswered(error: BaseException, url: str) -> TryAgain:
    """Return the error for a broken connection, or for several servers of which none takes changes now."""
    return TryAgain(error, store_name(url), unsure=True, read_only=NO_PRIMARY.search(str(error)) is not None)


def forbidden(error: BaseException, url: str) -> NotPermitted:
    """Return the error that names the user, what it may not do, and the statements that would permit it."""
    parts = urlsplit(url)
    user = unquote(parts.username) if parts.username else None
    said = str(error).strip().splitlines()[0]
    return not_permitted(store_name(url), user, said, _grants(said, user or "USER"))


def _grants(said: str, user: str) -> str:
    """Return advice that fits the server's message; in another language, for the usual case."""
    if "owner" in said:
        return "do it as the owner of the tables"
    if found := re.search(r"for schema (\S+)", said):
        return f"as its owner: grant usage, create on schema {found[1]} to {user} (create only to migrate)"
    return (
        "as the owner of the tables: grant select, insert, update, delete on all tables in schema public "
        f"to {user}; grant usage, update on all sequences in schema public to {user}"
    )


# libpq gives no SQLSTATE for a refused connection, only the server's message. In another language it is not
# recognised, and the caller gets the error after the usual tries.
NO_HOST = re.compile("failed to resolve host|Name or service not known")  # yet: it may be about to start
NO_PRIMARY = re.compile("session is read-only|in hot standby mode|match the target attribute")
HOPELESS = re.compile(
    r'FATAL:\s+(database|role) ".*" does not exist|FATAL:.*authentication failed|no pg_hba\.conf entry'
    rf"|{NO_HOST.pattern}|invalid URI|invalid sslmode"
)


def is_hopeless(error: BaseException) -> bool:
    """Return whether a retry would fail as well: no such database, user, host or option, wrong password."""
    return HOPELESS.search(str(error)) is not None


def refused(error: BaseException, url: str) -> StoreUnavailable:
    """Return the error for a refused connection, in the server's own words."""
    said = str(error).strip().splitlines()[-1].rpartition("FATAL:")[2].strip()
    kind = StoreUnavailable if NO_HOST.search(said) else StoreRefused
    return kind(f"{store_name(url)} can't be used: {said}; check the URL, then try again")
