"""The journal of a real store: a trigger, for tests only, notes every change of a job's row.

The numbers it gives out are in the order of the row locks, per job. A job that moves between the live
and the finished table is two rows of one transaction; `read_journal` makes one change of them.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import psycopg
from history import Change
from psycopg.rows import namedtuple_row

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


def install_journal(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTALL)


def read_journal(url: str) -> list[Change]:
    query = "select * from journal order by job, transaction, n"
    with psycopg.connect(url, row_factory=namedtuple_row) as connection:
        rows = connection.execute(query).fetchall()
    groups = [list(rows) for _, rows in groupby(rows, key=lambda row: (row.job, row.transaction))]
    groups.sort(key=lambda rows: rows[0].n)
    return [change for rows in groups for change in _changes(rows)]


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
