"""Find the process that an event belongs to, and take the step it was waiting for, once.

    python process_manager.py

An order waits for its payment, then for its parcel. Events come from brokers: late, twice, to several
consumers at once. "Is an order waiting for this?" and "then it is my step" are one statement, so the second
consumer of the same event finds nothing, and does nothing.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dibs.tables.sync import claim_rows

URL = os.environ.get("DIBS_URL", "sqlite:///orders.db")
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
NEXT = {"paid": "delivered", "delivered": None}


class Base(DeclarativeBase):
    pass


class Process(Base):
    __tablename__ = "order_process"
    order: Mapped[str] = mapped_column("order_id", String(20), primary_key=True)
    waits_for: Mapped[str | None] = mapped_column(String(20))
    steps: Mapped[int] = mapped_column(default=0)


def consume(event: tuple[str, str]) -> str | None:
    order, name = event
    found = claim_rows(
        engine,
        Process,
        where=(Process.order == order) & (Process.waits_for == name),
        set={"waits_for": NEXT[name], "steps": Process.steps + 1},
        limit=1,
    )
    return f"{order}: {name}, step {found[0].steps}" if found else None


def main() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Process(order=f"order {number}", waits_for="paid") for number in (1, 2))

    with ThreadPoolExecutor(4) as consumers:
        for name in ("paid", "delivered"):
            events = [(f"order {number}", name) for number in (1, 2) for _ in range(5)]  # each five times
            print(*sorted(filter(None, consumers.map(consume, events))), sep="\n")

    with Session(engine) as session:
        for process in session.scalars(select(Process).order_by(Process.order)):
            print(f"{process.order}: {process.steps} steps, waits for {process.waits_for}")
    engine.dispose()


if __name__ == "__main__":
    main()
