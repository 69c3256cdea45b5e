"""Store an order and enqueue its receipt together, or neither; send the receipt exactly once.

    python transaction.py

Uses SQLAlchemy's AsyncSession. Both ends of a job can be part of *your* transaction: it exists exactly when
the order does (`within=`), and it is done exactly when its effect is stored (`ctx.complete`).
"""

import asyncio
import os

from sqlalchemy import ForeignKey, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dibs import Context, Dibs, Worker

# The jobs live in the database of the shop: that is what makes one transaction possible.
URL = os.environ.get("DIBS_URL", "sqlite:///shop.db")
app = Dibs(URL)
engine = create_async_engine(
    URL.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql://", "postgresql+asyncpg://")
)


class Table(DeclarativeBase):
    pass


class Order(Table):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class Receipt(Table):
    __tablename__ = "receipts"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


@app.job(queue="mail")
async def write_receipt(ctx: Context, order_id: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        session.add(Receipt(order_id=order_id))
        # One commit for the receipt and for "this job is done". If this worker has lost the job by
        # now, LeaseLost is raised here, and the receipt is rolled back with everything else.
        await ctx.complete(f"receipt for order {order_id}", within=session)


async def place_order(customer: str) -> None:
    async with AsyncSession(engine) as session, session.begin():
        order = Order(customer=customer)
        session.add(order)
        await session.flush()  # gives the order its id
        await write_receipt.using(within=session).enqueue(order.id)
        if customer == "Eve":
            raise PermissionError("the card was refused")  # rolls back the order, and the job with it


async def main() -> None:
    await app.migrate()  # before the first transaction
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)

    await place_order("Ann")
    try:
        await place_order("Eve")
    except PermissionError as error:
        print(f"Eve's order: {error}")
    print(f"jobs: {len(await app.find(kind='write_receipt'))}")

    await Worker(app).run(until_idle=True)

    async with AsyncSession(engine) as session:
        print(f"orders: {await session.scalar(select(func.count()).select_from(Order))}")
        print(f"receipts: {await session.scalar(select(func.count()).select_from(Receipt))}")
    [job] = await app.find(kind="write_receipt")
    print(f"{job.state}: {job.result}")

    await engine.dispose()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
