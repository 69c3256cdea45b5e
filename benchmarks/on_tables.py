"""Batches of a user's table: `claim_rows` beside handwritten code, one select and an update per row.

Both run on one connection of SQLAlchemy to PostgreSQL, and alternate on tables of the same size.
"""

import statistics
import time
from collections.abc import Callable

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Update,
    create_engine,
    insert,
    select,
    update,
)

from dibs.tables.sync import claim_rows

BATCHES, BATCH, ROWS = 10, 100, 20_000

metadata = MetaData()
message = Table(
    "message",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("status", String(20), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("locked_by", String(50)),
    Column("body", String(200)),
)
ORDER = [message.c.priority.desc(), message.c.id]
READY = message.c.status == "ready"
TAKEN = {"status": "taken", "locked_by": "w1"}


def batches(url: str, rounds: int) -> str:
    """Return a table of the three, and how much longer the others take."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        turns = [[_timed(engine, flow) for flow in FLOWS.values()] for _ in range(rounds)]
    finally:
        engine.dispose()
    for turn in turns:
        print(
            f"  {BATCHES} batches of {BATCH}: {', '.join(f'{one * 1000:,.0f} ms' for one in turn)}",
            flush=True,
        )
    medians = [statistics.median(column) for column in zip(*turns, strict=True)]
    lines = [
        f"| {how} | {one * 1000:,.0f} | {one / medians[0]:.1f} |"
        for how, one in zip(FLOWS, medians, strict=True)
    ]
    heading = f"{BATCHES} batches of {BATCH} rows of a table with {ROWS:,}, ordered by priority and id."
    return "\n".join([heading, "", "| how | ms | times |", "|---|---:|---:|", *lines])


def _timed(engine: Engine, flow: Callable[[Engine], int]) -> float:
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
        rows = [
            {"id": id, "status": "ready", "priority": id % 7, "body": "x" * 150} for id in range(1, ROWS + 1)
        ]
        connection.execute(insert(message), rows)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("create index message_claim on message (status, priority desc, id)")
        connection.exec_driver_sql("vacuum analyze message")
    began = time.perf_counter()
    taken = sum(flow(engine) for _ in range(BATCHES))
    spent = time.perf_counter() - began
    assert taken == BATCHES * BATCH, taken
    return spent


def _by_dibs(engine: Engine) -> int:
    return len(claim_rows(engine, message, where=READY, set=TAKEN, limit=BATCH, order_by=ORDER))


def _update_each(engine: Engine) -> int:
    """Find rows, then claim each with a check: another worker may have claimed it meanwhile."""
    with engine.begin() as connection:
        found = connection.execute(FIND).all()
        return sum(connection.execute(_guarded(row.id)).rowcount for row in found)


def _commit_each(engine: Engine) -> int:
    """Claim row by row, with every claim durable before the next."""
    with engine.connect() as connection:
        found = connection.execute(FIND).all()
        taken = 0
        for row in found:
            taken += connection.execute(_guarded(row.id)).rowcount
            connection.commit()
        return taken


def _guarded(id: int) -> Update:
    return update(message).where(message.c.id == id, READY).values(TAKEN)


FIND = select(message).where(READY).order_by(*ORDER).limit(BATCH)
FLOWS: dict[str, Callable[[Engine], int]] = {
    "`claim_rows`": _by_dibs,
    "a select, an update per row, one commit": _update_each,
    "a select, an update and a commit per row": _commit_each,
}
