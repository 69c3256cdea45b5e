"""Delete what is too old, a few rows at a time, from as many processes as you like.

    python retention_sweep.py

Uploads are kept for 30 days; each has a file somewhere that must go first. A worker marks a bounded batch as
its own, removes the files, then deletes exactly these rows. No other worker removes the same files, no
statement locks the whole table, and the batch of a worker that died is claimed again after a while.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from sqlalchemy import create_engine, delete, func, or_, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dibs.tables.sync import Moment, claim_rows, store_time

URL = os.environ.get("DIBS_URL", "sqlite:///uploads.db")
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase):
    pass


class Upload(Base):
    __tablename__ = "upload"
    id: Mapped[int] = mapped_column(primary_key=True)
    stored_at: Mapped[datetime] = mapped_column(Moment, index=True)
    sweeping_until: Mapped[datetime | None] = mapped_column(Moment)


def claim_some() -> list[Upload]:
    """Select by the database's time, so that a wrong clock of a worker deletes nothing too early."""
    days, minutes = timedelta(days=30), timedelta(minutes=5)
    return claim_rows(
        engine,
        Upload,
        where=[
            Upload.stored_at < store_time(-days),
            or_(Upload.sweeping_until.is_(None), Upload.sweeping_until < store_time()),
        ],
        set={"sweeping_until": store_time(minutes)},
        limit=25,
        order_by=Upload.stored_at,
    )


def sweep(_: int) -> list[int]:
    swept: list[int] = []
    while uploads := claim_some():
        ids = [upload.id for upload in uploads]
        swept += ids  # here the files are removed
        with Session(engine) as session, session.begin():
            session.execute(delete(Upload).where(Upload.id.in_(ids)))
    return swept


def main() -> None:
    Base.metadata.create_all(engine)
    now = datetime.now(UTC)
    with Session(engine) as session, session.begin():
        session.add_all(Upload(id=age, stored_at=now - timedelta(days=age)) for age in range(1, 131))

    with ThreadPoolExecutor(3) as workers:
        swept = [id for ids in workers.map(sweep, range(3)) for id in ids]

    with Session(engine) as session:
        kept = session.scalar(select(func.count()).select_from(Upload))
    print(f"swept {len(swept)}, each of them once: {len(swept) == len(set(swept))}")
    print(f"kept {kept}")
    engine.dispose()


if __name__ == "__main__":
    main()
