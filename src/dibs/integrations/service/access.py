"""Who may come in: a bearer token or a name and password; some may only look."""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from fastapi import HTTPException, Request

from dibs.integrations.service.guesses import Guesses

CHALLENGE = {"www-authenticate": 'Bearer realm="dibs", Basic realm="dibs"'}


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


READER = "a reader"


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
