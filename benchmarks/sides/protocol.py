"""What every side of a comparison does, each in a process and with an interpreter of its own.

`SIDE.py VERB URL [COUNT] [INTERVAL]` does one thing and prints one line of JSON. Times are of
CLOCK_MONOTONIC, which all processes of a machine share.
"""

import asyncio
import json
import resource
import signal
import sys
import time
from typing import Any

import uvloop


class Marks:
    """The times at which each job's handler began (or its enqueue call), in nanoseconds."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}

    def add(self, n: int) -> None:
        self.at[n] = time.monotonic_ns()

    async def reach(self, count: int) -> None:
        """Wait until so many jobs have begun, for a worker that does not end by itself; not measured."""
        while len(self.at) < count:
            await asyncio.sleep(0.05)

    def seconds(self) -> float:
        return (max(self.at.values()) - min(self.at.values())) / 1e9


def main(make: Any) -> None:
    verb, url, *numbers = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer = runner.run(_do(make(url), verb, [float(number) for number in numbers]))
    print(json.dumps(answer), flush=True)


async def _do(side: Any, verb: str, numbers: list[float]) -> Any:
    try:
        match verb:
            case "prepare":
                await side.prepare()
            case "load":
                await side.load(int(numbers[0]))
            case "drain":
                await side.drain(int(numbers[0]))
                return {"jobs": len(side.marks.at), "seconds": side.marks.seconds()}
            case "work":
                return await _work(side)
            case "produce":
                return await _produce(side, int(numbers[0]), numbers[1])
    finally:
        await side.close()


async def _work(side: Any) -> Any:
    until = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, until.set)
    print("ready", flush=True)
    await side.work(until)
    return {"at": side.marks.at, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def _produce(side: Any, count: int, interval: float) -> Any:
    await side.produce(-1)  # opens its connection; not measured
    for n in range(count):
        await asyncio.sleep(interval)
        await side.produce(n)
    return {"at": side.marks.at}
