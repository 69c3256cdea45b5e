"""What guards a server: secrets, with a limit on wrong ones, the site of a request, the number of clients."""

import hashlib
import hmac
import ipaddress
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from dibs.clock import monotonic

MOST_WRONG = 20  # secrets from one address within the window
WINDOW = 60.0  # seconds
MOST_ADDRESSES = 10_000  # remembered at a time: an attacker must not fill the memory

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")  # what browsers send for our own pages, and for a typed address
REFUSAL = "a page of another site may not change anything here"


class Throttle:
    """Counts of recent wrong secrets, by the address they came from."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()  # since when, how many

    def wait(self, address: str | None) -> int:
        """Return for how many seconds requests from this address are refused."""
        with self._lock:
            since, number = self._of(network_of(address))
        return math.ceil(since + WINDOW - self._clock()) if number >= MOST_WRONG else 0

    def note(self, address: str | None) -> None:
        """Count a wrong secret."""
        network = network_of(address)
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


def network_of(address: str | None) -> str:
    """Return the address; of IPv6 its /64 network, since one client has billions of addresses."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or "unknown"
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


def is_same(given: str, wanted: str | None) -> bool:
    """Compare in a time that reveals nothing of the secret."""
    if wanted is None:
        return False
    return hmac.compare_digest(_digest(given), _digest(wanted))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_cross_site(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether a browser says so; without `Sec-Fetch-Site`, whether its origin is not our host.

    A client that is no browser sends neither, and has no session of a visitor. Behind a proxy our host may
    have another name than in the browser, so its `Sec-Fetch-Site` comes first.
    """
    if method in SAFE_METHODS:
        return False
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in OWN_SITES
    origin = headers.get("origin")
    return origin is not None and _host(origin) != headers.get("host", "").lower()


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


# -- How many clients: as the files allow, and no client has most of them ------------------------

MOST_FILES = 65_536
KEPT_FREE = 192  # files for the store, the log, and connections that were accepted in one go
MOST_STREAMS = 10_000


def file_limit(*, raised: bool = False) -> int:
    """Return how many files this process may open; raise the number first as far as it is allowed to."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_FILES if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    if raised and soft < (wanted := min(hard, MOST_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return wanted
    return min(soft, MOST_FILES)


def most_connections(files: int) -> int:
    """Return how many connections leave enough files for the rest of the process."""
    return max(files - KEPT_FREE, files // 4)


class StreamLimit:
    """The streams of a process, of which one client may have half."""

    def __init__(self, files: int) -> None:
        self.most = min(MOST_STREAMS, most_connections(files) // 2)
        self._open: Counter[str] = Counter()

    def refusal(self, client: str) -> str | None:
        """Return why this client gets no other stream; None if it does."""
        if self._open.total() >= self.most:
            return f"{self.most:,} streams are open already"
        if self._open[client] >= self.most // 2:
            return f"{self.most // 2:,} streams of yours are open already"
        return None

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            self._open += Counter()  # forgets clients without streams
