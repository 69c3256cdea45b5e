"""dibs beside its peers on one Redis, in one run: drain by one process.

All of them use the same private server, which writes nothing to disk. A slow peer gets fewer jobs, so that a
round stays short: only rates are compared.
"""

from typing import Any

from benchmarks.against import DIBS, Peer, do
from benchmarks.measure import last_round, rates_table

DRAINED = 50_000

# Jobs of each for every hundred of dibs.
PEERS = {
    DIBS: 100,
    Peer("arq", ("arq", "hiredis")): 10,
    Peer("rq", ("rq", "hiredis")): 4,
    Peer("saq", ("saq[redis,hiredis]", "typing_extensions")): 10,
    Peer("streaq", ("streaq",)): 10,
    Peer("dramatiq", ("dramatiq[redis]", "hiredis")): 10,
    Peer("taskiq", ("taskiq", "taskiq-redis", "hiredis")): 10,
}


def drain(server: Any, rounds: int, count: int = DRAINED) -> str:
    """Measure no-op jobs per second from the first handler to the last."""
    rates: dict[str, list[float]] = {peer.name: [] for peer in PEERS}
    for _ in range(rounds):
        for peer, share in PEERS.items():
            rates[peer.name].append(_drained(server, peer, max(count * share // 100, 500)))
        print(last_round(rates), flush=True)
    return rates_table(
        rates, f"Drain of no-op jobs ({count:,}, fewer for slow ones), one process, nothing written to disk:"
    )


def _drained(server: Any, peer: Peer, count: int) -> float:
    server.say("FLUSHALL")
    do(peer, "prepare", server.url())
    do(peer, "load", server.url(), count)
    answer = do(peer, "drain", server.url(), count)
    rate: float = answer["jobs"] / answer["seconds"]
    return rate
