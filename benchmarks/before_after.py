"""Compare two checkouts of dibs in one run, round by round: the same script, the public face only.

    python -m benchmarks.before_after ../before/src        # this checkout beside another one
    python -m benchmarks.before_after ../before/src --store sqlite --rounds 3

Each round runs both in processes of their own, one after the other, on fresh stores of one server; the order
alternates, so that neither always has the warmer machine. What counts is the ratio of the medians.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 7


# -- Measured in a process of its own -----------------------------------------------------------


async def measure(url: str) -> dict[str, float]:
    """Return jobs per second of each thing that is measured; of pick-up, jobs per second of waiting."""
    from dibs import Dibs, NewJob, Worker

    app = Dibs(url)
    await app.migrate()
    ran: list[int] = []

    @app.job
    async def work(n: int = 0) -> None:
        ran.append(n)

    async def drained(concurrency: int) -> None:
        await Worker(app, concurrency=concurrency).run(until_idle=True)

    async def one_by_one() -> int:
        for n in range(300):
            await work.enqueue(n)
        return 300

    async def bulk() -> int:
        await app.enqueue(*(NewJob("elsewhere", {"n": n}, queue="bulk") for n in range(20_000)))
        return 20_000

    async def by_hand() -> int:
        await app.enqueue(*(NewJob("hand", queue="hand") for _ in range(300)))
        for _ in range(300):
            [claim] = await app.claim(queues=["hand"])
            await claim.succeed()
        return 300

    async def drain(concurrency: int, count: int) -> int:
        await app.enqueue(*(NewJob("work", {"n": n}) for n in range(count)))
        begun = time.perf_counter()
        await drained(concurrency)
        drain_seconds[concurrency] = time.perf_counter() - begun
        return count

    drain_seconds: dict[int, float] = {}

    async def trains() -> int:
        await app.enqueue(*(NewJob("work", train=f"t{n % 20}") for n in range(1_000)))
        await drained(20)
        return 1_000

    async def slots() -> int:
        await app.enqueue(*(NewJob("work", slot=f"s{n % 20}") for n in range(600)))
        await drained(20)
        return 600

    rates = {
        "enqueue one by one": await _rate(one_by_one),
        "enqueue in bulk": await _rate(bulk),
        "claim and settle by hand": await _rate(by_hand),
    }
    for concurrency, count in ((10, 4_000), (1_000, 20_000)):
        await drain(concurrency, count)
        rates[f"drain at concurrency {concurrency:,}"] = count / drain_seconds[concurrency]
    rates["trains"] = await _rate(trains)
    rates["slots"] = await _rate(slots)
    rates["pick-up"] = await _pick_up(app)
    await app.close()
    return rates


async def _rate(work: Callable[[], Awaitable[int]]) -> float:
    begun = time.perf_counter()
    return await work() / (time.perf_counter() - begun)


async def _pick_up(app: object) -> float:
    """Return 1 / median seconds from enqueue to the first line of an idle worker's handler."""
    from dibs import Dibs, Worker

    assert isinstance(app, Dibs)
    started: asyncio.Queue[float] = asyncio.Queue()

    @app.job
    async def noted() -> None:
        started.put_nowait(time.perf_counter())

    worker = Worker(app, concurrency=10)
    run = asyncio.create_task(worker.run())
    await asyncio.sleep(1.0)
    seconds = []
    for _ in range(100):
        begun = time.perf_counter()
        await noted.enqueue()
        seconds.append(await started.get() - begun)
        await asyncio.sleep(0.01)
    worker.stop()
    await run
    return 1 / statistics.median(seconds)


# -- The rounds ---------------------------------------------------------------------------------


def compare(before: Path, urls: Iterator[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the medians of both sides for each thing that is measured."""
    sides = {"before": before, "after": HERE / "src"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(sides):
            found[name].append(_in_process(sides[name], next(urls)))
            print(f"  round {number + 1} of {rounds}: {name} measured", flush=True)
    return {
        what: (_median(found["before"], what), _median(found["after"], what)) for what in found["after"][0]
    }


def _median(rounds: list[dict[str, float]], what: str) -> float:
    return statistics.median(one[what] for one in rounds)


def _in_process(source: Path, url: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{HERE}"}
    code = "import asyncio, json, sys; from benchmarks.before_after import measure; "
    code += "print(json.dumps(asyncio.run(measure(sys.argv[1]))))"
    command = [sys.executable, "-c", code, url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


@contextmanager
def fresh_stores(store: str) -> Iterator[Iterator[str]]:
    """Yield addresses of empty stores, one after the other."""
    from tests.support.servers import MariaDB, PostgreSQL, Redis

    with tempfile.TemporaryDirectory() as folder:
        match store:
            case "sqlite":
                yield (f"sqlite:///{folder}/{number}.db" for number in range(1000))
            case "postgresql":
                with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
                    yield (server.fresh_database() for _ in range(1000))
            case "mariadb":
                with MariaDB() as server:
                    yield (server.fresh_database() for _ in range(1000))
            case "redis":
                with Redis({"appendonly": "no", "save": ""}) as server:
                    yield (server.url(number % 16) for number in range(16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="the src folder of the other checkout")
    parser.add_argument("--store", default="postgresql", choices=["sqlite", "postgresql", "mariadb", "redis"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with fresh_stores(arguments.store) as urls:
        medians = compare(arguments.before.resolve(), urls, arguments.rounds)
    print(f"\n{arguments.store}, medians of {arguments.rounds}, per second\n")
    print("| | before | after | after / before |\n|---|---:|---:|---:|")
    for what, (before, after) in medians.items():
        print(f"| {what} | {before:,.0f} | {after:,.0f} | {after / before:.2f} |")


if __name__ == "__main__":
    main()
