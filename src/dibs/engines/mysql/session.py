"""A session with MySQL or MariaDB: how it is set up, what its errors mean, what else dibs asks there."""

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.engines.mysql.engine import OLDEST, MySQL
from dibs.engines.retries import TryAgain, not_permitted
from dibs.engines.sql.blocks import schema_version
from dibs.engines.sql.engine import Query
from dibs.engines.sql.migrations import LOCK_SECONDS, Blocker, pending, schema_table
from dibs.engines.sql.pools import IDLE_LIMIT, Conversation
from dibs.errors import (
    BadRequest,
    NotPermitted,
    SchemaOutdated,
    StoreRefused,
    StoreUnavailable,
    UnknownEngine,
)

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without an answer to a statement; the connection is then given up
LOCK_TIMEOUT = 5  # seconds that a statement waits for a row before its transaction starts over
TURN_TIMEOUT = 25  # seconds that a migration waits for another one

# Whatever the server's defaults are: at REPEATABLE READ an idle claim would block every enqueue.
SESSION = (
    "set session transaction isolation level read committed",
    f"set session innodb_lock_wait_timeout = {LOCK_TIMEOUT}, lock_wait_timeout = {LOCK_TIMEOUT}, "
    f"/*M! idle_transaction_timeout = {IDLE_LIMIT}, */ "
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
)

# MySQL has no limit for idle transactions, only one for idle sessions: ours is short while a transaction is
# open. Each pair of statements is one round trip.
BEGIN, COMMIT, ROLLBACK = "start transaction", "commit", "rollback"
_LIMITED = f"set session wait_timeout = {IDLE_LIMIT}; {BEGIN}"
_UNLIMITED = f"set session wait_timeout = default, innodb_lock_wait_timeout = {LOCK_TIMEOUT}"

# What an old server does not understand: locks that are skipped, JSON as rows, names that end in spaces.
PROBE = """
select 'a' collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */
from (select given.n from json_table('[1]', '$[*]' columns (n integer path '$')) given) found
for update skip locked
"""

TLS = frozenset(("ssl", "ssl_ca", "ssl_cert", "ssl_key"))
_IGNORED = ("charset",)  # part of SQLAlchemy's URLs; ours is always utf8mb4


def connect_options(url: str) -> dict[str, Any]:
    """Return the parameters of a URL that both drivers know; SQLAlchemy's `mysql+asyncmy://…` is fine."""
    parts = urlsplit(url)
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise BadRequest("the URL of the store names no database; write mysql://user:password@host/database")
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": ANSWER_TIMEOUT,
        **_extras(dict(parse_qsl(parts.query))),
    }


def _extras(given: Mapping[str, str]) -> dict[str, Any]:
    known = {"unix_socket", *TLS, *_IGNORED}
    if unknown := given.keys() - known:
        raise BadRequest(f"{', '.join(sorted(unknown))}: unknown in a MySQL URL; known: {', '.join(known)}")
    extras: dict[str, Any] = {name: given[name] for name in ("unix_socket",) if name in given}
    return extras | ({"ssl": tls_of(given)} if given.keys() & TLS else {})


def tls_of(given: Mapping[str, str]) -> ssl.SSLContext:
    """Return TLS that checks certificate and name, against the system's authorities or `ssl_ca`."""
    if given.get("ssl", "verify") != "verify":
        raise BadRequest(f"ssl={given['ssl']}: unknown in a MySQL URL; write ssl=verify, or leave it out")
    context = ssl.create_default_context(cafile=given.get("ssl_ca"))
    if "ssl_cert" in given:
        context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    return context


# Methods by which a server asks for the password as it is; the others scramble or encrypt it.
_REVEALING = (b"mysql_clear_password", b"dialog")


def check_method(method: bytes, options: Mapping[str, Any]) -> None:
    """Refuse to send the password itself to a server that could be anyone's."""
    if method in _REVEALING and not options.keys() & {"ssl", "unix_socket"}:
        raise StoreRefused(
            f"MySQL at {options['host']} asked for the password in clear text ({method.decode()}), which is "
            "sent only over TLS that checks the server: add ?ssl=verify or ?ssl_ca=FILE to the URL, or let "
            "the user log in by another method"
        )


# -- Transactions -------------------------------------------------------------------------------


def limits_transactions(connection: Any) -> bool:
    """Return whether the server has `idle_transaction_timeout`, which SESSION sets."""
    return "MariaDB" in connection.get_server_info()


def begin_on(connection: Any) -> str:
    return BEGIN if limits_transactions(connection) else _LIMITED


def end_on(connection: Any, end: str) -> str:
    return end if limits_transactions(connection) else f"{end}; {_UNLIMITED}"


# -- Scripts for both faces ---------------------------------------------------------------------


def schema_version_script(engine: MySQL) -> Conversation[int]:
    table = engine.dialect.rename("dibs_schema")
    if not (yield f"show tables like '{table}'"):
        return 0
    [(found,)] = yield f"select max(version) from {table}"  # noqa: S608
    return int(found or 0)


def probe_script() -> Conversation[None]:
    """Refuse a server that lacks what dibs needs. It is tried out, not read from the version."""
    names = "'version', 'log_bin', 'binlog_format'"  # by name: MySQL 9 warns of every `@@binlog_format`
    server = dict((yield f"show variables where variable_name in ({names})"))
    version = server["version"]
    if (yield PROBE) is None:
        oldest = " or ".join(f"{name} {number}" for name, number in OLDEST.items())
        raise UnknownEngine(f"the server is {version}, which is too old; dibs needs {oldest} or later")
    if server["log_bin"] == "ON" and server.get("binlog_format") == "STATEMENT":
        raise UnknownEngine(
            f"the server ({version}) replicates by statement, which can't repeat what `skip locked` chose; "
            "set binlog_format to ROW or MIXED"
        )


def migration_script(engine: MySQL, url: str) -> Conversation[list[int]]:
    """Migrate, one process at a time. DDL commits here, so every statement can be repeated."""
    lock = f"concat(database(), '.{engine.dialect.rename('dibs_migrate')}')"  # locks are the whole server's
    [(got,)] = yield f"select get_lock({lock}, {TURN_TIMEOUT})"
    if got != 1:
        raise TryAgain(TimeoutError("another process has been migrating it for long"), store_name(url))
    # While a migration waits for a table, all others wait behind it; by default for a day.
    yield f"set session lock_wait_timeout = {LOCK_SECONDS}"
    create, versions = schema_table(engine.dialect)
    exactly = engine.dialect.rename("dibs_schema").replace("_", r"\_")
    if not (yield f"show tables like '{exactly}'"):  # else the server warns, and asyncmy logs it
        yield create
    applied = {version for (version,) in (yield versions)}
    steps = pending(engine.dialect, applied)
    for _, statement in steps:
        yield statement
    return sorted({version for version, _ in steps})


def blocker_script() -> Conversation[Blocker | None]:
    """Find the oldest open transaction; which tables it uses is not shown by default."""
    rows = yield Query("oldest_transaction", {})
    return Blocker(**rows[0]) if rows else None


# -- Errors: which to try again after, which to explain to the caller, which are bugs ------------

# After a deadlock, a lock wait that took too long (which undoes one statement, not the transaction) or a
# record that changed meanwhile, the transaction must not continue: it is rolled back and run again.

PARSE_ERROR, UNKNOWN_COLLATION, DUPLICATE, TOO_LARGE = 1064, 1273, 1062, 1153
# Errors after which the same operation may succeed on the same connection: deadlock, lock wait, record
# changed, a key taken at the same time, a table that was altered, a statement that took too long.
LOCKED = 1205
LIMITS = {1969: "max_statement_time", 3024: "max_execution_time"}
UNDONE = (1213, LOCKED, 1020, DUPLICATE, 1412, 1615, *LIMITS)
# The same on another connection: too many connections, shutting down, killed, idle too long, aborted,
# read-only since a failover, gone; of Galera a node that has lost the others, before and at the commit.
BROKEN = (
    *(1040, 1203, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1836, 1290),
    *(1047, 1180, 1927, 4031, 2002, 2003, 2006, 2013, 2014, 2027, 2055),
)
NEVER_BEGAN = (1040, 1047, 1203, 1290, 1836, 2002, 2003)  # of these, what surely did nothing
NO_TABLES = (1146, 1054, 4091)
NOT_PERMITTED = (1044, 1142, 1143, 1227, 1370)  # known, without the rights
# Credentials, no such database, no TLS; the last ones: a password that expired, an account that is locked.
REFUSED = (1045, 1049, 1130, 1251, 1524, 1698, 1820, 1862, 2026, 3118, 4151)
READ_ONLY = (1290, 1836)

# Where PyMySQL stands in for MySQLdb, as in many Django projects, its errors may be of that module's name.
DRIVERS = ("pymysql", "asyncmy", "MySQLdb")


def store_name(url: str) -> str:
    """Return host and database of a URL, never a password."""
    parts = urlsplit(url)
    host = f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}"
    return f"MySQL at {host}, database {parts.path.lstrip('/') or '(none)'}"


def judge(error: BaseException, url: str) -> BaseException:
    """Return `TryAgain`, an error for the caller, or the error itself if it is a bug."""
    match error:
        case TryAgain() | SchemaOutdated() | StoreUnavailable() | NotPermitted() | UnknownEngine():
            return error
        case OSError() | TimeoutError() | EOFError():
            return TryAgain(error, store_name(url), unsure=True)
    number = error_number(error)
    if number is None:
        return error
    if number in NO_TABLES:
        return SchemaOutdated(0, schema_version("mysql"), store_name(url))
    if number in UNDONE:
        return TryAgain(error, store_name(url), locked=number == LOCKED, limit=LIMITS.get(number))
    if number in BROKEN or number == 0:
        return TryAgain(error, store_name(url), number not in NEVER_BEGAN, read_only=number in READ_ONLY)
    if number in NOT_PERMITTED:
        return forbidden(error, url)
    if number in REFUSED:
        return refused(error, url)
    if number == TOO_LARGE:
        return StoreUnavailable(
            f"{store_name(url)} takes no statement of that size; raise max_allowed_packet"
        )
    return error


def refused(error: BaseException, url: str) -> StoreRefused:
    """Return the error for a refused connection, in the server's own words."""
    return StoreRefused(f"{store_name(url)} refused us: {error.args[-1]}; check the URL, then try again")


def forbidden(error: BaseException, url: str) -> NotPermitted:
    """Return the error that names the user, what it may not do, and the grants that would permit it."""
    parts = urlsplit(url)
    user = unquote(parts.username) if parts.username else None
    advice = (
        f"grant select, insert, update, delete on `{unquote(parts.path.lstrip('/'))}`.* to {user or 'it'}, "
        "and to migrate also create, alter, index, drop, references"
    )
    return not_permitted(store_name(url), user, str(error.args[-1]), advice)


def error_number(error: BaseException) -> int | None:
    """Return the number of the server's, or the driver's, error; None for any other exception."""
    if type(error).__module__.split(".")[0] not in DRIVERS:
        return None
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def is_known_state(error: BaseException) -> bool:
    """Return whether the server itself reported the error, so that the connection is still usable."""
    number = error_number(error)
    if number is None or number in BROKEN or number == TOO_LARGE:
        return False
    return 1000 <= number < 2000 or number in LIMITS


def lacks(error: BaseException) -> bool:
    """Return whether the server did not understand a probe."""
    return error_number(error) in (PARSE_ERROR, UNKNOWN_COLLATION)
