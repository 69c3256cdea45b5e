"""dibs beside its peers on one PostgreSQL, in one run: drain, and pick-up by an idle worker.

Each peer lives in a virtual environment of its own, made here when it is missing. Rounds alternate, so
that noise of the machine hits all of them; medians count.
"""

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bare import KIND, WISH, succeeded
from benchmarks.by_hand import bare_postgresql
from benchmarks.measure import last_round, rates_table
from dibs.engines.postgresql.session import SESSION

HERE = Path(__file__).parent
SIDES = HERE / "sides"
DRAINED = 100_000
PICKED_UP, EVERY = 500, 0.05


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue to compare with: its packages, and the oldest Python it runs on."""

    name: str
    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)

    @property
    def script(self) -> Path:
        return SIDES / f"{self.name}_side.py"

    def interpreter(self) -> Path:
        """Return the Python of its own environment, made on first use."""
        folder = HERE.parent / ".venv-peers" / self.name
        if not (folder / "done").exists():
            print(f"  installing {', '.join(self.packages)}", flush=True)
            subprocess.run([_python(self.python), "-m", "venv", "--clear", folder], check=True)
            subprocess.run([folder / "bin/pip", "install", "--quiet", *self.packages, "uvloop"], check=True)
            (folder / "done").touch()
        return folder / "bin/python"


class Ourselves(Peer):
    def interpreter(self) -> Path:
        return Path(sys.executable)


DIBS = Ourselves("dibs", ())
RAW = Ourselves("raw", ())
FLOOR = Ourselves("floor", ())
PGQUEUER = Peer("pgqueuer", ("pgqueuer", "asyncpg"))
OBAN = Peer("oban", ("oban",), python=(3, 12))
PROCRASTINATE = Peer("procrastinate", ("procrastinate", "psycopg[binary,pool]"))


def _python(oldest: tuple[int, int]) -> str:
    """Return an interpreter that is new enough: ours, one of pyenv, or one on the path."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(14, oldest[1] - 1, -1):
        pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for python in (*map(str, pyenv), f"python3.{minor}"):
            try:
                if subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0:
                    return python
            except OSError:
                continue
    raise SystemExit(f"a Python {oldest[0]}.{oldest[1]} or newer is needed for this comparison")


def do(peer: Peer, verb: str, url: str, *numbers: float) -> Any:
    command = [peer.interpreter(), peer.script, verb, url, *map(str, numbers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# -- drain --------------------------------------------------------------------------------------


# Jobs of each for every hundred of dibs: only rates are compared, and a round stays short.
DRAINING = {PGQUEUER: 100, OBAN: 4, PROCRASTINATE: 2, DIBS: 100}


def drain(server: Any, rounds: int, count: int = DRAINED) -> str:
    """Measure no-op jobs per second from the first handler to the last, beside the raw statements."""
    rates: dict[str, list[float]] = {peer.name: [] for peer in (*DRAINING, RAW)}
    for number in range(rounds):
        for peer, share in DRAINING.items():
            given = max(count * share // 100, 500)
            url = _loaded(server, peer, f"drain_{peer.name}_{number}", given)
            answer = do(peer, "drain", url, given)
            rates[peer.name].append(answer["jobs"] / answer["seconds"])
            server.drop_database(url.rpartition("/")[2])
        url = _loaded(server, DIBS, f"drain_raw_{number}", count)
        rates["raw"].append(asyncio.run(_raw_drain(url, count)))
        server.drop_database(url.rpartition("/")[2])
        print(last_round(rates), flush=True)
    what = f"Drain of {count:,} no-op async jobs (fewer for slow ones), one process, durable"
    return rates_table(rates, f"{what}, finished jobs kept:")


def _loaded(server: Any, peer: Peer, name: str, count: int) -> str:
    url: str = server.create_database(name)
    do(peer, "prepare", url)
    do(peer, "load", url, count)
    with server.connect(name) as connection:
        connection.execute("vacuum analyze")
    return url


async def _raw_drain(url: str, count: int) -> float:
    """Run the worker's own statement, batch 500, on a bare connection."""
    import asyncpg

    connection = await asyncpg.connect(url, server_settings=SESSION)
    raw = bare_postgresql(connection)
    wish = {**WISH, "queues": None, "kinds": [KIND], "look": False, "limit": 500}
    done, rows, start = 0, await raw.ask("claim", **wish), time.perf_counter()
    while rows and rows[0]["id"] is not None:
        done += len(rows)
        rows = await raw.ask("exchange", settlements=succeeded(rows), children=[], **wish)
    seconds = time.perf_counter() - start
    await connection.close()
    assert done == count
    return count / seconds


# -- pick-up ------------------------------------------------------------------------------------


def pick_up(server: Any, rounds: int, count: int = PICKED_UP) -> str:
    """Measure milliseconds from the enqueue call to the start of the handler in another, idle process."""
    peers = (PGQUEUER, OBAN, DIBS, RAW, FLOOR)
    urls = {peer.name: server.create_database(f"pick_up_{peer.name}") for peer in peers}
    waits: dict[str, list[list[float]]] = {peer.name: [] for peer in peers}
    for peer in peers:
        do(peer, "prepare", urls[peer.name])
    for _ in range(rounds):
        for peer in peers:
            waits[peer.name].append(_picked_up(peer, urls[peer.name], count))
        now = {name: all[-1] for name, all in waits.items()}
        print("  pick-up: " + ", ".join(f"{name} {_shares(one)}" for name, one in now.items()), flush=True)
    return _pick_up_table(waits, count)


def _picked_up(peer: Peer, url: str, count: int) -> list[float]:
    command = [peer.interpreter(), peer.script, "work", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        try:
            time.sleep(2)  # until it listens
            sent = do(peer, "produce", url, count, EVERY)["at"]
            time.sleep(1)
            worker.send_signal(signal.SIGUSR1)
            began = json.loads(worker.stdout.read())["at"]
        except BaseException:
            worker.kill()
            raise
    return [(began[n] - sent[n]) / 1e6 for n in map(str, range(count))]


def _shares(waits: list[float]) -> str:
    return f"{_percentile(waits, 50):.2f}/{_percentile(waits, 95):.2f} ms"


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def _pick_up_table(waits: dict[str, list[list[float]]], count: int) -> str:
    """Return p50 and p95 of each round, and the median of the rounds."""
    lines = [
        f"Pick-up by an idle worker, one job every {EVERY * 1000:.0f} ms, {count} jobs per round:",
        "",
        "| | p50 ms | p95 ms | rounds (p50/p95) | dibs is (p50) |",
        "|---|---:|---:|---|---:|",
    ]
    medians = {name: [_median_of(rounds, percent) for percent in (50, 95)] for name, rounds in waits.items()}
    for name, (p50, p95) in medians.items():
        rounds = ", ".join(_shares(one) for one in waits[name])
        lines.append(f"| {name} | {p50:.2f} | {p95:.2f} | {rounds} | {medians['dibs'][0] / p50:.2f}× |")
    return "\n".join(lines)


def _median_of(rounds: list[list[float]], percent: int) -> float:
    return statistics.median(_percentile(one, percent) for one in rounds)
