"""dibs beside its peer on one SQLite file, in one run: drain by one process, every commit on the disk."""

import tempfile
from pathlib import Path

from benchmarks.against import DIBS, Peer, do
from benchmarks.measure import last_round, rates_table

DRAINED = 50_000

# Jobs of each for every hundred of dibs.
PEERS = {DIBS: 100, Peer("huey", ("huey",)): 20}


def drain(rounds: int, count: int = DRAINED) -> str:
    """Measure no-op jobs per second from the first handler to the last."""
    rates: dict[str, list[float]] = {peer.name: [] for peer in PEERS}
    for _ in range(rounds):
        for peer, share in PEERS.items():
            rates[peer.name].append(_drained(peer, count * share // 100))
        print(last_round(rates), flush=True)
    return rates_table(rates, f"Drain of no-op jobs ({count:,}, fewer for slow ones), one process, durable:")


def _drained(peer: Peer, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        do(peer, "prepare", url)
        do(peer, "load", url, count)
        answer = do(peer, "drain", url, count)
    rate: float = answer["jobs"] / answer["seconds"]
    return rate
