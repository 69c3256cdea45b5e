"""The journal of a real store: a trigger, for tests only, notes every change of a job's row.

The numbers it gives out are in the order of the row locks, per job. A job that moves between the live
and the finished table is two rows of one transaction; `read_journal` makes one change of them.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from itertools import groupby
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row
from pymysql.cursors import DictCursor

from tests.model.history import Change
from tests.support.servers import mysql_connection

INSTALL = """
create table journal (
    n             bigserial primary key,
    job           uuid not null,
    transaction   bigint not null default txid_current(),
    before        text,
    after         text,
    old_token     bigint,
    token         bigint,
    old_settled   bigint,
    settled_token bigint,
    settled_as    text,
    old_lease     timestamptz,
    lease         timestamptz,
    was_asked     boolean,
    is_asked      boolean,
    at            timestamptz not null default statement_timestamp()
);

create function note_change() returns trigger language plpgsql as $$
begin
    insert into journal (
        job, before, after, old_token, token, old_settled, settled_token, settled_as,
        old_lease, lease, was_asked, is_asked
    )
    values (
        coalesce(new.id, old.id), old.state, new.state, old.token, new.token, old.settled_token,
        new.settled_token, new.settled_as, old.lease_until, new.lease_until,
        old.cancel_reason is not null, new.cancel_reason is not null
    );
    return null;
end
$$;

create trigger note_live after insert or update or delete on dibs_jobs
    for each row execute function note_change();
create trigger note_finished after insert or update or delete on dibs_finished
    for each row execute function note_change();
"""

# A failed attempt is one end to its worker, whether or not the job has another attempt.
ENDS = {"retried": "failed"}


MARIADB_TABLE = """
create table journal (
    n             bigint auto_increment primary key,
    job           binary(16) not null,
    connection    bigint not null,
    before        varchar(20),
    after         varchar(20),
    old_token     bigint,
    token         bigint,
    old_settled   bigint,
    settled_token bigint,
    settled_as    varchar(50),
    old_lease     datetime(6),
    lease         datetime(6),
    was_asked     boolean,
    is_asked      boolean,
    at            datetime(6) not null
)
"""

MARIADB_TRIGGER = """
create trigger {table}_{event} after {event} on {table} for each row
insert into journal (
    job, connection, before, after, old_token, token, old_settled, settled_token, settled_as,
    old_lease, lease, was_asked, is_asked, at
)
values (
    {row}.id, connection_id(), {old.state}, {new.state}, {old.token}, {new.token}, {old.settled_token},
    {new.settled_token}, {new.settled_as}, {old.lease_until}, {new.lease_until},
    {old.cancel_reason} is not null, {new.cancel_reason} is not null, utc_timestamp(6)
)
"""


class _Side:
    """`old.state` in a trigger that has an old row, else null."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __getattr__(self, column: str) -> str:
        return f"{self._name}.{column}" if self._name else "null"


def _install_on_mariadb(url: str) -> None:
    with closing(mysql_connection(url)) as connection, connection.cursor() as cursor:
        cursor.execute(MARIADB_TABLE.replace("before ", "`before` ").replace("after ", "`after` "))
        for table, (event, old, new) in itertools.product(("dibs_jobs", "dibs_finished"), EVENTS):
            text = MARIADB_TRIGGER.replace(" before, after,", " `before`, `after`,")
            sides = {"old": _Side(old), "new": _Side(new), "row": new or old}
            cursor.execute(text.format(table=table, event=event, **sides))


EVENTS = (("insert", None, "new"), ("update", "old", "new"), ("delete", "old", None))


def _read_from_mariadb(url: str) -> list[list[Any]]:
    """The rows of each change. A move between the tables is an insert that a delete follows at once."""
    with closing(mysql_connection(url, cursorclass=DictCursor)) as connection, connection.cursor() as cursor:
        cursor.execute("select * from journal order by job, n")
        rows = [SimpleNamespace(**{**row, "job": UUID(bytes=row["job"])}) for row in cursor.fetchall()]
    groups: list[list[Any]] = []
    for row in rows:
        last = groups[-1][-1] if groups else None
        if last is not None and row.after is None and _came_just_before(last, row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _came_just_before(last: Any, row: Any) -> bool:
    return last.before is None and (last.job, last.connection) == (row.job, row.connection)


def install_journal(url: str) -> None:
    if url.startswith("mysql"):
        _install_on_mariadb(url)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTALL)


def read_journal(url: str) -> list[Change]:
    groups = _read_from_mariadb(url) if url.startswith("mysql") else _read_from_postgresql(url)
    groups.sort(key=lambda rows: rows[0].n)
    return [change for rows in groups for change in _changes(rows)]


def _read_from_postgresql(url: str) -> list[list[Any]]:
    query = "select * from journal order by job, transaction, n"
    with psycopg.connect(url, row_factory=namedtuple_row) as connection:
        rows = connection.execute(query).fetchall()
    return [list(rows) for _, rows in groupby(rows, key=lambda row: (row.job, row.transaction))]


def _changes(rows: list[Any]) -> list[Change]:
    gone = [row for row in rows if row.after is None]
    come = [row for row in rows if row.after is not None]
    if len(gone) == 1 and len(come) == 1 and come[0].before is None:
        return [_change(gone[0], come[0])]
    return [_change(row, row) for row in come if not _changed_nothing(row)]


def _change(old: Any, new: Any) -> Change:
    """`old` knows what the job was, `new` what it became; for an update they are one row."""
    settled = None
    if new.settled_token is not None and new.settled_token != old.old_settled:
        settled = (new.settled_token, ENDS.get(new.settled_as, new.settled_as))
    same_claim = old.before == new.after == "running" and old.old_token == new.token
    return Change(
        new.job,
        old.before,
        new.after,
        token=new.token or 0,
        settled=settled,
        renewed=same_claim and old.old_lease != new.lease,
        asked=same_claim and not old.was_asked and new.is_asked,
        early=old.old_lease is not None and old.old_lease > old.at,
    )


def _changed_nothing(row: Any) -> bool:
    """The same request to cancel twice, say, or progress."""
    return row.before == row.after and (row.old_token, row.old_lease, row.was_asked) == (
        row.token,
        row.lease,
        row.is_asked,
    )
