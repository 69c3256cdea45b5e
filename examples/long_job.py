"""A job that takes long: show its progress, and stop it when it is no longer needed.

    python long_job.py

While a job runs its lease is renewed, so it may take hours. Its progress is in the store, for any process to
read: this one, a web page, `dibs jobs show ID`.
"""

import asyncio

from dibs import Context, Dibs, Worker

app = Dibs()

ROWS_PER_BATCH = 10


@app.job(lease=30)  # a crash is noticed this long after the last renewal, however long the job takes
async def import_rows(ctx: Context, rows: int) -> int:
    try:
        for done in range(0, rows, ROWS_PER_BATCH):
            await asyncio.sleep(0.02)  # import a batch
            await ctx.progress(done / rows, f"{done} of {rows} rows")
            ctx.check()  # raises when the job was cancelled, or lost to another worker
        return rows
    finally:
        print("import_rows: cleaned up")  # runs in any case: close files, remove what is half done


async def follow(id: object, until: float) -> None:
    """Print each reported progress, until the job is finished or has got so far."""
    seen = None
    while True:
        job = await app.get(id)
        if job.message != seen:
            seen = job.message
            print(f"{job.progress:4.0%}  {seen}")
        if job.is_finished or job.progress >= until:
            return
        await asyncio.sleep(0.01)


async def main() -> None:
    await app.migrate()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())

    job = await import_rows.enqueue(50)
    await follow(job.id, until=1)
    done = await app.wait(job.id, timeout=30)
    print(f"{done.state}: {done.result} rows")

    # A running job is never interrupted: it is *asked* to stop, and leaves `running` when it has.
    job = await import_rows.enqueue(1_000_000)
    await follow(job.id, until=0.00001)
    await app.cancel(job.id, "wrong file")
    done = await app.wait(job.id, timeout=30)
    print(f"{done.state}: {done.message}")

    worker.stop()
    await running
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
