"""Times on the user's rows: by the database's own clock, in UTC."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime, Dialect, Float, func, literal, literal_column
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from dibs.clock import SECOND
from dibs.errors import BadRequest
from dibs.settings import Duration, micros

WITH_ZONE = ("postgresql",)


class Moment(TypeDecorator[datetime]):
    """A time in UTC, to the microsecond, with its zone everywhere. Example: `mapped_column(Moment())`"""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise BadRequest(f"{value!r} has no time zone: use datetime.now(UTC) or the like")
        utc = value.astimezone(UTC)
        return utc if dialect.name in WITH_ZONE else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StoreTime(FunctionElement[datetime]):
    """The database's clock when the statement began, plus some seconds."""

    name = "store_time"
    type = Moment()
    inherit_cache = True


class NaiveStoreTime(StoreTime):
    """The database's clock without a zone, for columns that have none."""

    type = DateTime()  # type: ignore[assignment]
    inherit_cache = True


def store_time(after: Duration = 0, *, like: Column[Any] | None = None) -> StoreTime:
    """Return the database's time plus `after`, with a zone if `like` has one. Example: `store_time(60)`"""
    has_zone = like is None or isinstance(like.type, Moment) or bool(getattr(like.type, "timezone", False))
    element = StoreTime if has_zone else NaiveStoreTime
    return element(literal(micros(after, what="after") / SECOND, Float()))


# -- the clock of each database -------------------------------------------------------------------


@compiles(StoreTime)
def _unknown(element: StoreTime, compiler: Any, **kw: Any) -> str:
    raise BadRequest(
        f"dibs does not know the clock of {compiler.dialect.name}: leases need PostgreSQL, MySQL, MariaDB or "
        "SQLite; claim_rows works here with times that you set yourself"
    )


@compiles(StoreTime, "postgresql")
def _postgresql(element: StoreTime, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(_postgresql_time(element), **kw))


@compiles(NaiveStoreTime, "postgresql")
def _naive_postgresql(element: NaiveStoreTime, compiler: Any, **kw: Any) -> str:
    zone: Any = literal_column("'UTC'")
    return str(compiler.process(func.timezone(zone, _postgresql_time(element)), **kw))


def _postgresql_time(element: StoreTime) -> Any:
    """Return the time of the statement: `now()` would be the start of the transaction."""
    none: list[Any] = [literal_column("0")] * 6
    return func.statement_timestamp().op("+")(func.make_interval(*none, *element.clauses))


@compiles(StoreTime, "mysql", "mariadb")
def _mysql(element: StoreTime, compiler: Any, **kw: Any) -> str:
    later = func.round(*(each * literal_column("1000000") for each in element.clauses))
    now = func.utc_timestamp(literal_column("6"))
    return str(compiler.process(func.timestampadd(literal_column("microsecond"), later, now), **kw))


@compiles(StoreTime, "sqlite")
def _sqlite(element: StoreTime, compiler: Any, **kw: Any) -> str:
    """Return the text that SQLAlchemy stores for a time: six digits after the point."""
    later = func.printf(literal_column("'%+.3f seconds'"), *element.clauses)
    form: Any = literal_column("'%Y-%m-%d %H:%M:%f000'")
    return str(compiler.process(func.strftime(form, literal_column("'now'"), later), **kw))
