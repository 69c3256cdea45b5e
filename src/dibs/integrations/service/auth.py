"""Who may come in: a bearer token or a name and password; some may only look."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import HTTPException, Request

from dibs.clock import monotonic

CHALLENGE = {"www-authenticate": 'Bearer realm="dibs", Basic realm="dibs"'}
READER = "a reader"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The secrets that open the service."""

    token: str | None = None
    """May do everything."""
    read_token: str | None = None
    """May only look."""
    basic: str | None = None
    """`user:password`, may do everything."""
    guesses: Guesses = field(default_factory=Guesses, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """No secret at all."""
        return self.token is None and self.read_token is None and self.basic is None

    async def may_read(self, request: Request) -> str:
        return self._who(request)

    async def may_write(self, request: Request) -> str:
        if (who := self._who(request)) == READER:
            raise HTTPException(403, "this token may only look")
        return who

    def _who(self, request: Request) -> str:
        authorization = request.headers.get("authorization", "")
        address = None if request.client is None else request.client.host
        if authorization and (seconds := self.guesses.wait(address)):
            raise HTTPException(
                429, f"too many wrong secrets; try again in {seconds} s", {"retry-after": str(seconds)}
            )
        sort, _, secret = authorization.partition(" ")
        match sort.lower():
            case "bearer" if _same(secret, self.token):
                return "the holder of the token"
            case "bearer" if _same(secret, self.read_token):
                return READER
            case "basic" if _same(text := _decoded(secret), self.basic):
                return text.partition(":")[0]
            case _:
                if authorization:
                    self.guesses.note(address)
                raise HTTPException(401, "give a bearer token, or a user and a password", CHALLENGE)


def _same(given: str, wanted: str | None) -> bool:
    """Takes as long for a wrong secret as for a right one, whatever they have in common."""
    if wanted is None:
        return False
    return hmac.compare_digest(_digest(given), _digest(wanted))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
