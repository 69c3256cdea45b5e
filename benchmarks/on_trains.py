"""A long train of jobs that do nothing: with convoys, and by one round trip per job."""

import asyncio
import statistics
import time
from uuid import uuid4

from dibs import Dibs, NewJob, Worker

LENGTH = 2_000


def drain(url: str, rounds: int, length: int) -> str:
    """A table of the two, and how much longer the other takes."""
    turns = asyncio.run(_turns(url, rounds, length))
    for turn in turns:
        print(f"  a train of {length:,}: {', '.join(f'{one:.2f} s' for one in turn)}", flush=True)
    medians = [statistics.median(column) for column in zip(*turns, strict=True)]
    lines = [
        f"| {how} | {one:.2f} | {length / one:,.0f} | {one / medians[0]:.1f} |"
        for how, one in zip(("convoys", "one by one"), medians, strict=True)
    ]
    heading = f"One train of {length:,} async jobs that do nothing, one worker with 10 places."
    return "\n".join([heading, "", "| how | s | jobs/s | times |", "|---|---:|---:|---:|", *lines])


async def _turns(url: str, rounds: int, length: int) -> list[tuple[float, float]]:
    app = Dibs(url)
    await app.migrate()
    async with app:
        await _timed(app, length // 10, convoys=True)  # connections and plans are made
        return [
            (await _timed(app, length, convoys=True), await _timed(app, length, convoys=False))
            for _ in range(rounds)
        ]


async def _timed(app: Dibs, length: int, *, convoys: bool) -> float:
    ran: list[int] = []
    kind = f"nothing-{uuid4()}"

    @app.job(name=kind)
    async def nothing(number: int) -> None:
        ran.append(number)

    await app.enqueue(*(NewJob(kind, args={"number": n}, train="bench") for n in range(length)))
    worker = Worker(app, convoys=convoys)
    began = time.perf_counter()
    await worker.run(until_idle=True, handle_signals=False)
    spent = time.perf_counter() - began
    assert ran == list(range(length)), "not in order, or not once each"
    return spent
