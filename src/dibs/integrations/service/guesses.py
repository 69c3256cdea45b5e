"""Who tries one secret after the other has to wait, whatever comes next: also with the right one."""

import ipaddress
import math
import threading
from collections import OrderedDict
from collections.abc import Callable

from dibs.clock import monotonic

MOST_WRONG = 20  # secrets from one address within the window
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000  # remembered at a time: an attacker must not fill our memory


class Guesses:
    """Wrong secrets of late, by the address they came from."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()  # since when, how many

    def wait(self, address: str | None) -> int:
        """For how many seconds nobody from there is listened to; 0 if they are."""
        with self._lock:
            since, number = self._of(_network(address))
        return math.ceil(since + WINDOW - self._clock()) if number >= MOST_WRONG else 0

    def note(self, address: str | None) -> None:
        """One more was wrong."""
        network = _network(address)
        with self._lock:
            since, number = self._of(network)
            self._wrong[network] = since, number + 1
            if len(self._wrong) > MOST_ADDRESSES:
                self._wrong.popitem(last=False)

    def _of(self, network: str) -> tuple[float, int]:
        now = self._clock()
        since, number = self._wrong.get(network, (now, 0))
        if now - since >= WINDOW:
            del self._wrong[network]
            return now, 0
        return since, number


def _network(address: str | None) -> str:
    """The address; of IPv6 what one household has, or it would have billions of them."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or "unknown"
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)
