"""Rebuild a projection with several workers: each position is advanced by one worker at a time.

    python rebuild_projection.py

A projection (here: the balance of each account) is built by reading events from the start. The stream is cut
into shards, and a table remembers how far each one was read. A worker leases a shard, reads a few events,
stores the new sums and the new position in one transaction, and releases the shard. The lease of a worker
that dies runs out, and nothing is counted twice.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import String, create_engine, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dibs.tables.sync import Claimable, Claims

URL = os.environ.get("DIBS_URL", "sqlite:///events.db")
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
AT_ONCE = 20  # events per turn


class Base(DeclarativeBase):
    pass


class Event(Base):
    __tablename__ = "event"
    id: Mapped[int] = mapped_column(primary_key=True)
    shard: Mapped[int]
    amount: Mapped[int]


class Balance(Base):
    __tablename__ = "balance"
    account: Mapped[str] = mapped_column(String(20), primary_key=True)
    amount: Mapped[int]


class Cursor(Base, Claimable):
    __tablename__ = "projection_cursor"
    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]
    end: Mapped[int]


# A shard can be claimed while it has unread events; the shards furthest behind come first.
cursors = Claims(
    Cursor, engine, ready=Cursor.position < Cursor.end, lease=30, order_by=[Cursor.position, Cursor.shard]
)


def project_some(cursor: Cursor) -> int:
    with Session(engine) as session, session.begin():
        unread = (
            select(Event)
            .where(Event.shard == cursor.shard, Event.id > cursor.position, Event.id <= cursor.end)
            .order_by(Event.id)
            .limit(AT_ONCE)
        )
        events = session.scalars(unread).all()
        total = sum(event.amount for event in events)
        session.execute(
            update(Balance)
            .where(Balance.account == f"account {cursor.shard}")
            .values(amount=Balance.amount + total)
        )
        # Sums and position are one transaction. If another worker has claimed the shard by now, this raises
        # LeaseLost, and the sums are rolled back.
        moved = events[-1].id if len(events) == AT_ONCE else cursor.end
        cursors.done(cursor, set={"position": moved}, within=session)
        return len(events)


def work(name: str) -> int:
    return sum(project_some(cursor) for cursor in cursors.stream(batch=1, until_idle=True, worker=name))


def main() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Event(id=id, shard=id % 4, amount=1) for id in range(1, 401))
        session.add_all(Balance(account=f"account {shard}", amount=0) for shard in range(4))
        session.add_all(Cursor(shard=shard, position=0, end=400) for shard in range(4))

    with ThreadPoolExecutor(3) as workers:
        projected = sum(workers.map(work, ["a", "b", "c"]))

    with Session(engine) as session:
        for balance in session.scalars(select(Balance).order_by(Balance.account)):
            print(f"{balance.account}: {balance.amount}")
        print(f"events projected: {projected} of {session.scalar(select(func.count()).select_from(Event))}")
    engine.dispose()


if __name__ == "__main__":
    main()
