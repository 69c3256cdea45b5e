"""Do slow work in the background of a script: no web framework, no server to set up.

    python plain_script.py

Jobs are kept in the file dibs.db (or wherever $DIBS_URL points), so what is not done when the script ends is
still there when it is started again.
"""

import asyncio

from dibs import Context, Dibs, Retry, Worker

app = Dibs()  # $DIBS_URL, else the file dibs.db


# A job is a function. Its arguments are stored as JSON, and so is what it returns.
@app.job(queue="pictures")
async def shrink(picture: str) -> str:
    await asyncio.sleep(0.05)  # whatever takes long
    return f"{picture} is small"


# A plain function works, too; it runs in a thread. An exception is a failed attempt, and the job runs again.
# A parameter annotated Context is no argument: it has the job of the handler.
@app.job(queue="mail", max_attempts=5, retry=Retry.fixed(0.1))
def notify(ctx: Context, address: str) -> str:
    if ctx.job.attempts == 1:
        raise ConnectionError("the mail server is busy")
    return f"told {address}"


async def main() -> None:
    await app.migrate()  # creates missing tables

    # Enqueueing is quick and durable. All of these are stored, or none.
    jobs = await app.enqueue(
        shrink.new("cat.png"),
        shrink.new("dog.png"),
        notify.new("ann@example.com"),
    )
    print(f"enqueued {len(jobs)} jobs")

    # Here the worker runs beside the script. Usually it is a process of its own, or many on many machines:
    #     dibs work plain_script:app
    worker = Worker(app, concurrency=5)
    running = asyncio.create_task(worker.run())

    for job in jobs:
        done = await app.wait(job.id, timeout=30)
        print(f"{done.kind}: {done.result} (attempts: {done.attempts})")

    worker.stop()
    await running
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
