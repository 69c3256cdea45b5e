"""A desk: one database with the tables of user_tables.py, and one driver to claim through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs import tables
from dibs.tables import sync

SYNC_DRIVERS = ["postgresql+psycopg", "mariadb+pymysql", "mysql+pymysql", "sqlite+pysqlite"]
ASYNC_DRIVERS = ["postgresql+psycopg_async", "postgresql+asyncpg", "mariadb+asyncmy", "mysql+asyncmy"]
ASYNC_DRIVERS += ["sqlite+aiosqlite"]


def open_engine(driver: str, url: str, archive: str, **options: Any) -> Any:
    """Make an engine of SQLAlchemy; SQLite gets its archive as a schema."""
    make: Any = create_async_engine if driver in ASYNC_DRIVERS else create_engine
    made = make(driver + url[url.index(":") :], **options)
    if driver.startswith("sqlite"):
        beneath = made.sync_engine if driver in ASYNC_DRIVERS else made
        event.listen(beneath, "connect", lambda connection, _: _attach(connection, archive))
    return made


class Desk:
    """A database with our tables in it, and a driver to claim through."""

    def __init__(self, driver: str, url: str, archive: str, home: Engine) -> None:
        self.driver = driver
        self.home = home
        """The sync engine that prepares and reads the tables."""
        self.tested: Any = open_engine(driver, url, archive)
        self._loop = asyncio.Runner()

    @property
    def database(self) -> str:
        return self.driver.split("+")[0]

    @property
    def is_async(self) -> bool:
        return self.driver in ASYNC_DRIVERS

    def close(self) -> None:
        if self.is_async:
            self.run(self.tested.dispose())
        else:
            self.tested.dispose()
        self._loop.close()

    def run(self, answer: Any) -> Any:
        return self._loop.run(answer) if self.is_async else answer

    # -- the call ---------------------------------------------------------------------------------

    def claim(self, model: Any, **how: Any) -> list[Any]:
        """Claim through the engine, or through `on=`."""
        on = how.pop("on", self.tested)
        return self.run((tables if self.is_async else sync).claim_rows(on, model, **how))

    def claim_on_connection(self, model: Any, before: Callable[[Any], Any] | None = None, **how: Any) -> Any:
        """Claim through one connection, after `before(connection)`."""
        if not self.is_async:
            with self.tested.connect() as connection:
                before and before(connection)
                return self.claim(model, on=connection, **how)

        async def claim() -> Any:
            async with self.tested.connect() as connection:
                before and await connection.run_sync(before)
                return await tables.claim_rows(connection, model, **how)

        return self.run(claim())

    def claim_in_session(
        self, model: Any, before: Any = None, after: Any = None, make: Any = None, **how: Any
    ) -> Any:
        """Claim through a session; return the result of `after(session, rows)`."""
        before, after = before or (lambda session: None), after or (lambda session, rows: rows)
        if not self.is_async:
            with (make or Session)(self.tested) as session:
                before(session)
                return after(session, self.claim(model, on=session, **how))

        async def claim() -> Any:
            async with (make or AsyncSession)(self.tested) as session:
                await session.run_sync(before)
                rows = await tables.claim_rows(session, model, **how)
                return await session.run_sync(after, rows)

        return self.run(claim())

    def on_connection(self, before: Callable[[Any], Any], claim: Any, after: Callable[[Any], Any]) -> Any:
        """Call three functions on one connection; return the result of the last."""
        if not self.is_async:
            with self.tested.connect() as connection:
                before(connection)
                claim(connection)
                return after(connection)

        async def work() -> Any:
            async with self.tested.connect() as connection:
                await connection.run_sync(before)
                await claim(connection)
                return await connection.run_sync(after)

        return self.run(work())

    def ask(self, on: Any, model: Any, **how: Any) -> Any:
        """Return rows, or the coroutine for them."""
        return (tables if self.is_async else sync).claim_rows(on, model, **how)

    def claims(self, model: Any, **how: Any) -> Any:
        """Return `Claims` with sync verbs."""
        made = (tables if self.is_async else sync).Claims(model, self.tested, **how)
        return _SyncVerbs(self, made) if self.is_async else made

    # -- around it --------------------------------------------------------------------------------

    def add(self, *instances: Any) -> None:
        with Session(self.home) as session, session.begin():
            session.add_all(instances)

    def insert(self, table: Any, *rows: dict[str, Any]) -> None:
        with self.home.begin() as connection:
            connection.execute(insert(table), list(rows))

    def look(self, *columns: Any) -> list[tuple[Any, ...]]:
        """Return these columns of all rows, in the order of the first."""
        with self.home.connect() as connection:
            return [tuple(row) for row in connection.execute(select(*columns).order_by(columns[0]))]

    def look_in_order(self, column: Any, order: list[Any]) -> list[Any]:
        with self.home.connect() as connection:
            return list(connection.execute(select(column).order_by(*order)).scalars())

    def statements(self) -> list[str]:
        """Return a list that collects the statements of the tested driver from now on."""
        sent: list[str] = []
        engine: Engine = self.tested.sync_engine if isinstance(self.tested, AsyncEngine) else self.tested
        event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        return sent


def _attach(connection: Any, archive: str) -> None:
    cursor = connection.cursor()
    cursor.execute("attach database ? as dibs_archive", (archive,))
    cursor.close()


class _SyncVerbs:
    """An async `Claims` with sync verbs; a stream is read to its end, or as far as asked."""

    def __init__(self, desk: Desk, claims: Any) -> None:
        self._desk = desk
        self._claims = claims

    def __getattr__(self, verb: str) -> Any:
        return lambda *args, **how: self._desk.run(getattr(self._claims, verb)(*args, **how))

    def stream(self, **how: Any) -> Iterator[Any]:
        rows = self._claims.stream(**how)
        try:
            while (row := self._desk.run(anext(rows, None))) is not None:
                yield row
        finally:
            self._desk.run(rows.aclose())
