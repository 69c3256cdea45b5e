"""Do something every so often: once per tick, however many workers run.

    python every_second.py

Start it in several terminals at the same time, on the same store: every tick is still done once.
"""

import asyncio

from dibs import Context, Dibs, Worker

TICKS = 3

app = Dibs()  # $DIBS_URL, else the file dibs.db
seen: list[str] = []


# Five fields as cron has them, or six with seconds in front. tz="Europe/Berlin" is for local times; missed=
# decides about ticks while no worker ran: enqueue the latest of them, all, or none.
@app.every("* * * * * *", missed="latest")
@app.job
async def measure(ctx: Context) -> None:
    # run_at moves when a job is tried again; the tick that it was made for does not.
    seen.append(ctx.job.meta["tick"])


async def main() -> None:
    await app.migrate()

    # Any worker enqueues what is due and works on it. `dibs work every_second:app` would do so all day.
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    while len(seen) < TICKS:
        await asyncio.sleep(0.1)
    worker.stop()
    await working

    print(f"{TICKS} ticks, each of them once: {len(set(seen[:TICKS])) == TICKS}")
    for schedule in await app.schedules.list():
        print(schedule.name, "at", schedule.rule, "runs", schedule.kind)
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
