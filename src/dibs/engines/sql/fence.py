"""Fence the user's own writes: one statement in the user's transaction that refuses a stale holder.

The rows named by `key` get this claim's token, unless they already have a later one. They stay locked until
the transaction ends; a holder with a smaller token is refused. dibs' own store takes no part, so the rows may
be in any database.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dibs.engines.sql.engine import Query
from dibs.engines.sql.within import Adapter, Face, known_adapter
from dibs.errors import BadRequest, LeaseLost, UnsupportedConnection
from dibs.operations.scripts import Rows

QUOTES = {"postgresql": '"', "sqlite": '"', "mysql": "`"}
LETTERS = "abcdefgh"  # parameters are named without digits


class Fence:
    """One fence: which rows, and the column that keeps the token."""

    def __init__(
        self, job: UUID, token: int, table: str, *, key: Any, column: str = "token", insert: bool = False
    ) -> None:
        self._job = job
        self._token = token
        self._table = table
        self._column = column
        self._key: Mapping[str, Any] = key if isinstance(key, Mapping) else {"id": key}
        self._insert = insert
        for name in (*table.split("."), column, *self._key) if isinstance(table, str) else (table,):
            _check_name(name)
        if not 1 <= len(self._key) <= len(LETTERS) or None in self._key.values():
            raise BadRequest(
                f"key={key!r}: give the columns and values that name the rows, none of them None"
            )

    def put_up_sync(self, connection: Any) -> None:
        adapter = _adapter(connection, "sync")
        words = self._words(adapter, connection)
        query = adapter.query(connection, words)
        for name in words.blocks:
            rows = query(self._query(name))
        self._judge(rows)

    async def put_up(self, connection: Any) -> None:
        adapter = _adapter(connection, "async")
        words = self._words(adapter, connection)
        query = adapter.query(connection, words)
        for name in words.blocks:
            answer = query(self._query(name))
            rows = await answer if adapter.is_async else answer
        self._judge(rows)

    def _query(self, name: str) -> Query:
        values = dict(zip(_params(self._key), self._key.values(), strict=True))
        return Query(name, {"token": self._token, **values})

    def _words(self, adapter: Adapter, connection: Any) -> "_Words":
        store = adapter.store(connection)
        if store not in QUOTES:
            raise UnsupportedConnection(
                f"can't fence rows in {store}; dibs can in {', '.join(sorted(QUOTES))}. Guard your own "
                "statement instead: … where token <= :token, and see how many rows it changed"
            )
        if store == "mysql":
            return _Words(self._mysql(QUOTES[store]))
        return _Words({"fence": self._returning(QUOTES[store])})

    def _mysql(self, quote: str) -> dict[str, str]:
        """Write first, then read under the lock: MySQL returns no rows from a write."""
        where = self._where(quote)
        table, token = _quoted(self._table, quote), _quoted(self._column, quote)
        write = self._update(quote)
        if self._insert:
            write = f"{self._new_row('', quote)} on duplicate key update {_later(token)}"
        look = f"select {token} as latest from {table} where {where} for update"  # noqa: S608
        return {"fence": write, "fenced": look}

    def _returning(self, quote: str) -> str:
        """Return also rows with a later token, unchanged, so that they differ from missing ones."""
        token, write = _quoted(self._column, quote), self._update(quote)
        if self._insert:
            keys = ", ".join(_quoted(name, quote) for name in self._key)
            newest = (
                f"case when fenced.{token} > excluded.{token} then fenced.{token} else excluded.{token} end"
            )
            new = self._new_row("as fenced ", quote)
            write = f"{new} on conflict ({keys}) do update set {token} = {newest}"
        return f"{write} returning {token} as latest"

    def _update(self, quote: str) -> str:
        table, later = _quoted(self._table, quote), _later(_quoted(self._column, quote))
        return f"update {table} set {later} where {self._where(quote)}"  # noqa: S608 (names are checked)

    def _new_row(self, alias: str, quote: str) -> str:
        names = ", ".join(_quoted(name, quote) for name in (*self._key, self._column))
        values = ", ".join(f":{param}" for param in (*_params(self._key), "token"))
        return f"insert into {_quoted(self._table, quote)} {alias}({names}) values ({values})"  # noqa: S608

    def _where(self, quote: str) -> str:
        pairs = zip(self._key, _params(self._key), strict=True)
        return " and ".join(f"{_quoted(name, quote)} = :{param}" for name, param in pairs)

    def _judge(self, rows: Rows) -> None:
        where = (
            f"{self._table} where {' and '.join(f'{name}={value!r}' for name, value in self._key.items())}"
        )
        if not rows:
            raise BadRequest(
                f"there is no row to fence in {where}: insert it first, with 0 in {self._column!r}, "
                "or pass insert=True where the key is unique"
            )
        latest = max(row["latest"] for row in rows)
        if latest > self._token:
            raise LeaseLost(
                f"job {self._job} was claimed again: {where} was written under token {latest} and ours is "
                f"{self._token}; roll your transaction back"
            )


class _Words:
    """The part of an engine that an adapter uses: the text of a statement, and how to read its rows."""

    def __init__(self, blocks: Mapping[str, str]) -> None:
        self.blocks = blocks

    @property
    def dialect(self) -> "_Words":
        return self

    def read(self, names: Any, rows: Any) -> Rows:
        return [dict(zip(names, row, strict=True)) for row in rows]


def _adapter(connection: Any, face: Face) -> Adapter:
    adapter = known_adapter(connection)
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if adapter is None:
        raise UnsupportedConnection(f"can't fence through {name}: it is not a connection that dibs knows")
    if face not in adapter.faces:
        other = "ctx.sync.fence" if face == "async" else "await ctx.fence"
        raise UnsupportedConnection(f"can't fence through {name} here: use {other} for it")
    if not adapter.in_transaction(connection):
        raise UnsupportedConnection(
            f"no transaction is open on this {adapter.label}, and a fence stands as long as one: begin it"
        )
    return adapter


def _check_name(name: Any) -> None:
    """Refuse names that are no identifiers: they can't be bound like values."""
    if not isinstance(name, str) or not name.isidentifier():
        raise BadRequest(f"{name!r} can't name a table or a column here: use letters, digits and underscores")


def _quoted(name: str, quote: str) -> str:
    return ".".join(f"{quote}{part}{quote}" for part in name.split("."))


def _later(token: str) -> str:
    return f"{token} = case when {token} > :token then {token} else :token end"


def _params(key: Mapping[str, Any]) -> list[str]:
    return [f"key_{letter}" for letter, _ in zip(LETTERS, key, strict=False)]
