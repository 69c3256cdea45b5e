"""What PostgreSQL's errors mean: try again, a clear word about what to do, or a bug."""

import re
from urllib.parse import unquote, urlsplit

from dibs.engines.postgresql.poolers import NOT_PREPARED, PREPARED_TWICE
from dibs.engines.sql.schema_files import schema_version
from dibs.engines.trouble import TryAgain, not_permitted
from dibs.errors import NotPermitted, SchemaOutdated, StoreRefused, StoreUnavailable

READ_ONLY, LOCKED = "25006", "55P03"
NOT_PERMITTED = "42501"
# SQLSTATEs after which the same operation may succeed: serialization, deadlock, a lock waited for too
# long, a key taken at the same moment, a server that starts, stops, became a replica or has no place left, a
# plan that the schema outgrew, a statement that was prepared in another session.
AGAIN = {
    *("40001", "40P01", LOCKED, "23505", "53300", "57P01", "57P02", "57P03", "0A000"),
    *(READ_ONLY, NOT_PREPARED, PREPARED_TWICE),
}
NO_TABLES = ("42P01", "42703", "3F000")
REFUSED = ("28", "3D")  # how these begin: credentials, no such database


def store_name(url: str) -> str:
    """A URL for people: host and database, never a password."""
    parts = urlsplit(url)
    host = f"{parts.hostname or 'local socket'}{f':{parts.port}' if parts.port else ''}"
    return f"PostgreSQL at {host}, database {parts.path.lstrip('/') or '(default)'}"


def is_ending(sqlstate: str | None) -> bool:
    """The server is about to close this connection, or has become a replica, though it may look fine."""
    return sqlstate is not None and sqlstate.startswith(("08", "57P", READ_ONLY))


def judge(error: BaseException, sqlstate: str | None, url: str) -> BaseException:
    """What an error of the server means for the operation."""
    if sqlstate in NO_TABLES:
        return SchemaOutdated(0, schema_version("postgresql"), store_name(url))
    if sqlstate is not None and (sqlstate in AGAIN or sqlstate.startswith("08")):
        unsure = sqlstate.startswith(("08", "57"))
        read_only, locked = sqlstate == READ_ONLY, sqlstate == LOCKED
        return TryAgain(error, store_name(url), unsure, read_only=read_only, locked=locked)
    if sqlstate == NOT_PERMITTED:
        return forbidden(error, url)
    if sqlstate is not None and sqlstate.startswith(REFUSED):
        return refused(error, url)
    return error


def forbidden(error: BaseException, url: str) -> NotPermitted:
    """Who may not do what, and the words that would let them."""
    parts = urlsplit(url)
    who = unquote(parts.username) if parts.username else None
    said = str(error).strip().splitlines()[0]
    return not_permitted(store_name(url), who, said, _grants(said, who or "USER"))


def _grants(said: str, who: str) -> str:
    """By what the server says; one that speaks another language is answered for the usual case."""
    if "owner" in said:
        return "do it as the owner of the tables"
    if found := re.search(r"for schema (\S+)", said):
        return f"as its owner: grant usage, create on schema {found[1]} to {who} (create only to migrate)"
    return (
        "as the owner of the tables: grant select, insert, update, delete on all tables in schema public "
        f"to {who}; grant usage, update on all sequences in schema public to {who}"
    )


# libpq gives no SQLSTATE for a connection that was refused, only the server's words. In another language
# they are not recognised, and the caller hears of it after the usual tries.
NO_HOST = re.compile("failed to resolve host|Name or service not known")  # yet: it may be about to start
HOPELESS = re.compile(
    r'FATAL:\s+(database|role) ".*" does not exist|FATAL:.*authentication failed|no pg_hba\.conf entry'
    rf"|{NO_HOST.pattern}|invalid URI|invalid sslmode"
)


def is_hopeless(error: BaseException) -> bool:
    """It would fail again in the same way: no such database, user, host or option, or a wrong password."""
    return HOPELESS.search(str(error)) is not None


def refused(error: BaseException, url: str) -> StoreUnavailable:
    """Why we are not let in, in the server's own words."""
    said = str(error).strip().splitlines()[-1].rpartition("FATAL:")[2].strip()
    kind = StoreUnavailable if NO_HOST.search(said) else StoreRefused
    return kind(f"{store_name(url)} can't be used: {said}; check the URL, then try again")
