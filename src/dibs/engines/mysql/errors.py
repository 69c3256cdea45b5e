"""Errors of MySQL and MariaDB: which to try again after, which to explain to the caller, which are bugs.

After a deadlock, a lock wait that took too long (which undoes one statement, not the transaction) or a record
that changed meanwhile, the transaction must not continue: it is rolled back and run again from its start.
"""

from urllib.parse import unquote, urlsplit

from dibs.engines.retries import TryAgain, not_permitted
from dibs.engines.sql.blocks import schema_version
from dibs.errors import NotPermitted, SchemaOutdated, StoreRefused, StoreUnavailable, UnknownEngine

PARSE_ERROR, UNKNOWN_COLLATION, DUPLICATE, TOO_LARGE = 1064, 1273, 1062, 1153
# Errors after which the same operation may succeed on the same connection: deadlock, lock wait, record
# changed, a key taken at the same time, a table that was altered, a statement that took too long.
LOCKED = 1205
LIMITS = {1969: "max_statement_time", 3024: "max_execution_time"}
UNDONE = (1213, LOCKED, 1020, DUPLICATE, 1412, 1615, *LIMITS)
# The same on another connection: too many connections, shutting down, killed, idle too long, aborted,
# read-only since a failover, gone.
BROKEN = (
    *(1040, 1203, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1836, 1290),
    *(1927, 4031, 2002, 2003, 2006, 2013, 2014, 2027, 2055),
)
NEVER_BEGAN = (1040, 1203, 1290, 1836, 2002, 2003)  # of these, what surely did nothing
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
