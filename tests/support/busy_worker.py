"""A worker process that writes a line at the start and the end of every job: job, token, gate, time.

python -m tests.support.busy_worker URL LEASE FILE
"""

from __future__ import annotations

import asyncio
import sys
import time

from dibs import Context, Dibs, Worker


def main(url: str, lease: str, file: str) -> None:
    app = Dibs(url, poll=1)
    out = open(file, "a", buffering=1)  # noqa: SIM115  (until the process ends)

    @app.job(name="busy", lease=float(lease))
    async def _(ctx: Context) -> None:
        about = f"{ctx.job.id} {ctx.token} {ctx.job.train or ctx.job.slot or '-'}"
        out.write(f"start {about} {time.monotonic()}\n")
        await asyncio.sleep(0.01)
        out.write(f"end {about} {time.monotonic()}\n")

    asyncio.run(Worker(app, concurrency=10).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
