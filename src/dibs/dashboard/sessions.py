"""What proves that a browser may see or change jobs: roles, the login of `dibs serve`, tokens of forms."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from dibs.app.guards import REFUSAL, Throttle, is_cross_site, is_same
from dibs.app.scopes import Scope
from dibs.clock import monotonic
from dibs.errors import BadRequest

Role = Literal["read", "write"]
Authorize = Callable[[Request], "Role | Awaitable[Role | None] | None"]

SESSION, FORM = "dibs_session", "dibs_form"  # cookies
SESSION_LASTS = 12 * 3600.0  # seconds
CODE_LASTS = 15 * 60.0
MOST_SESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of one request: role, name for the audit log, the jobs and fields to be seen."""

    role: Role
    scope: Scope
    fields: frozenset[str]
    name: str | None = None
    by_header: bool = False
    """A secret in the header opened the door, which no page of another site can send."""
    has_session: bool = False

    @property
    def may_write(self) -> bool:
        return self.role == "write"


class TooManyWrong(Exception):
    """This address gave too many wrong secrets."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(f"too many wrong secrets; try again in {seconds} s")


class TokenLogin:
    """Login by token: `Dashboard(app, authorize=TokenLogin(token=…, read_token=…))`.

    Sessions are kept in this process, so another process of the same web app asks for the token again.
    Example: `Dashboard(app, authorize=TokenLogin(token="secret", read_token="another"))`"""

    def __init__(
        self,
        *,
        token: str | None = None,
        read_token: str | None = None,
        basic: str | None = None,
        throttle: Throttle | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if token is None and read_token is None and basic is None:
            raise BadRequest("a login needs a token, a read_token or basic='user:password'")
        self._token, self._read_token, self._basic = token, read_token, basic
        self._throttle = Throttle() if throttle is None else throttle
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, tuple[Role, str, float]] = OrderedDict()
        self._codes: dict[str, float] = {}

    def __call__(self, request: Request) -> Role | None:
        found = self.find(request)
        return None if found is None else found[0]

    def find(self, request: Request) -> tuple[Role, str, bool] | None:
        """Return role, name, and whether the secret came in a header; None without a valid one."""
        sort, _, secret = request.headers.get("authorization", "").partition(" ")
        if sort.lower() == "bearer":
            known = self.check(secret, address_of(request))
            return None if known is None else (*known, True)
        with self._lock:
            sessions = [self._sessions[id] for id in _session_ids(request) if id in self._sessions]
        return next(((role, name, False) for role, name, until in sessions if until >= self._clock()), None)

    def check(self, secret: str, address: str | None) -> tuple[Role, str] | None:
        """Return what a secret allows; `TooManyWrong` after too many wrong ones from this address."""
        if seconds := self._throttle.wait(address):
            raise TooManyWrong(seconds)
        if is_same(secret, self._token):
            return "write", "the holder of the token"
        if self._basic is not None and is_same(secret, self._basic):
            return "write", self._basic.partition(":")[0]
        if is_same(secret, self._read_token):
            return "read", "a reader"
        self._throttle.note(address)
        return None

    def new_code(self) -> str:
        """Return a code that logs in once, within 15 minutes."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._codes[code] = self._clock() + CODE_LASTS
        return code

    def use_code(self, code: str, address: str | None) -> tuple[Role, str] | None:
        """Use up a code that `dibs serve` printed; return the role and name it stands for, or None."""
        if seconds := self._throttle.wait(address):
            raise TooManyWrong(seconds)
        with self._lock:
            until = self._codes.pop(code, None)
        if until is not None and until >= self._clock():
            return "write", "the holder of the token"
        self._throttle.note(address)
        return None

    def begin(self, request: Request, response: Response, role: Role, name: str) -> None:
        """Begin a session: a cookie for the path that the page has in the browser, whatever that is."""
        id = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[id] = role, name, self._clock() + SESSION_LASTS
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        set_cookie(request, response, _session_cookie(request), id, lasts=SESSION_LASTS)

    def end(self, request: Request, response: Response) -> None:
        """End the session of this request."""
        with self._lock:
            for id in _session_ids(request):
                self._sessions.pop(id, None)
        set_cookie(request, response, _session_cookie(request), "", lasts=0)


def _session_cookie(request: Request) -> str:
    """Return the name of our cookie: browsers send one host's cookies to all of its ports."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{SESSION}_{port}" if port.isascii() and port.isdecimal() else SESSION


def _session_ids(request: Request) -> list[str]:
    """Return all that came: of two pages, one below the path of the other, the browser sends both cookies."""
    pairs = (pair.partition("=") for line in request.headers.getlist("cookie") for pair in line.split(";"))
    return [id.strip() for name, _, id in pairs if name.strip() == _session_cookie(request)]


def address_of(request: Request) -> str | None:
    return None if request.client is None else request.client.host


def set_cookie(
    request: Request, response: Response, name: str, value: str, *, lasts: float, path: str | None = None
) -> None:
    """Set a cookie that no script reads and no other site sends; without a path, the browser takes ours."""
    parts = [f"{name}={value}", f"Max-Age={lasts:.0f}", "HttpOnly", "SameSite=Strict"]
    if path is not None:
        parts.append(f"Path={path}")
    if "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "")):
        parts.append("Secure")
    response.headers.append("set-cookie", "; ".join(parts))


# -- forms --------------------------------------------------------------------------------------


def form_token(request: Request) -> str:
    """Return the token that the forms of this browser carry: the value of a cookie."""
    known = request.cookies.get(FORM, "")
    return known if len(known) == 43 and known.replace("-", "").replace("_", "").isalnum() else ""


def forgery(request: Request, form: Mapping[str, str], visitor: Visitor | None) -> str | None:
    """Return why this form may not be ours; None if it is."""
    if is_cross_site(request.method, request.headers):
        return REFUSAL
    if visitor is not None and visitor.by_header:
        return None
    token = form_token(request)
    if not token or not is_same(form.get("token_of_form", ""), token):
        return "this form has expired: load the page again, with cookies allowed"
    return None
