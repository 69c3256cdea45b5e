"""A desk: one database with the tables of user_tables.py, and one driver to claim through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs import tables
from dibs.tables import sync as blocking

BLOCKING = ["postgresql+psycopg", "mysql+pymysql", "sqlite+pysqlite"]
AWAITED = ["postgresql+psycopg_async", "postgresql+asyncpg", "mysql+asyncmy", "sqlite+aiosqlite"]


def open_engine(driver: str, url: str, archive: str, **options: Any) -> Any:
    """An engine of SQLAlchemy's; SQLite gets its archive as a schema."""
    make: Any = create_async_engine if driver in AWAITED else create_engine
    made = make(driver + url[url.index(":") :], **options)
    if driver.startswith("sqlite"):
        beneath = made.sync_engine if driver in AWAITED else made
        event.listen(beneath, "connect", lambda connection, _: _attach(connection, archive))
    return made


class Desk:
    """A database with our tables in it, and a driver to claim through."""

    def __init__(self, driver: str, url: str, archive: str, home: Engine) -> None:
        self.driver = driver
        self.home = home
        """For looking and preparing, always blocking."""
        self.tested: Any = open_engine(driver, url, archive)
        self._loop = asyncio.Runner()

    @property
    def database(self) -> str:
        return self.driver.split("+")[0]

    @property
    def is_awaited(self) -> bool:
        return self.driver in AWAITED

    def close(self) -> None:
        if self.is_awaited:
            self.run(self.tested.dispose())
        else:
            self.tested.dispose()
        self._loop.close()

    def run(self, answer: Any) -> Any:
        return self._loop.run(answer) if self.is_awaited else answer

    # -- the call ---------------------------------------------------------------------------------

    def claim(self, model: Any, **how: Any) -> list[Any]:
        """Through the engine; `on=` for something else."""
        on = how.pop("on", self.tested)
        return self.run((tables if self.is_awaited else blocking).claim_rows(on, model, **how))

    def claim_on_connection(self, model: Any, before: Callable[[Any], Any] | None = None, **how: Any) -> Any:
        """Through one connection, on which `before(connection)` was done, blocking."""
        if not self.is_awaited:
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
        """Through a session; the answer of `after(session, rows)`."""
        before, after = before or (lambda session: None), after or (lambda session, rows: rows)
        if not self.is_awaited:
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
        """Three things one after the other on one connection; the answer of the last."""
        if not self.is_awaited:
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
        """Just the call: rows, or what is to be awaited for them."""
        return (tables if self.is_awaited else blocking).claim_rows(on, model, **how)

    def claims(self, model: Any, **how: Any) -> Any:
        """`Claims`, with each of its verbs blocking."""
        made = (tables if self.is_awaited else blocking).Claims(model, self.tested, **how)
        return _Blocking(self, made) if self.is_awaited else made

    # -- around it --------------------------------------------------------------------------------

    def add(self, *instances: Any) -> None:
        with Session(self.home) as session, session.begin():
            session.add_all(instances)

    def insert(self, table: Any, *rows: dict[str, Any]) -> None:
        with self.home.begin() as connection:
            connection.execute(insert(table), list(rows))

    def look(self, *columns: Any) -> list[tuple[Any, ...]]:
        """These columns of all rows, in the order of the first."""
        with self.home.connect() as connection:
            return [tuple(row) for row in connection.execute(select(*columns).order_by(columns[0]))]

    def look_in_order(self, column: Any, order: list[Any]) -> list[Any]:
        with self.home.connect() as connection:
            return list(connection.execute(select(column).order_by(*order)).scalars())

    def statements(self) -> list[str]:
        """Everything that the tested driver is told from now on."""
        told: list[str] = []
        engine: Engine = self.tested.sync_engine if isinstance(self.tested, AsyncEngine) else self.tested
        event.listen(engine, "before_cursor_execute", lambda *args: told.append(args[2]))
        return told


def _attach(connection: Any, archive: str) -> None:
    cursor = connection.cursor()
    cursor.execute("attach database ? as dibs_archive", (archive,))
    cursor.close()


class _Blocking:
    """An awaited `Claims` as a test uses it; a stream is read to its end, or as far as asked."""

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
