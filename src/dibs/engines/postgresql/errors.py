"""PostgreSQL's errors: which to try again after, which to explain to the caller, which are bugs."""

import re
from urllib.parse import unquote, urlsplit

from dibs.engines.hosts import spoken_hosts
from dibs.engines.retries import TryAgain, not_permitted
from dibs.engines.sql.blocks import schema_version
from dibs.errors import NotPermitted, SchemaOutdated, StoreRefused, StoreUnavailable

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
