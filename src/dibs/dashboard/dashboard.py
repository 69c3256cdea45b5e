"""`Dashboard`: the ASGI app. What comes in, what is allowed, what goes out; pages and acts live elsewhere."""

import inspect
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from dibs.app.dibs import Dibs
from dibs.app.guards import is_cross_site
from dibs.app.scopes import USUAL_FIELDS, OutOfScope, Scope, check_fields, check_shared
from dibs.dashboard.acts import Desk, carry_out
from dibs.dashboard.checkup import Checkup
from dibs.dashboard.live import Looks
from dibs.dashboard.pages import PAGES, DashboardPage, NoSuchPage, View
from dibs.dashboard.proof import Proof, Verify
from dibs.dashboard.rendering import asset, render, shown, time_tag
from dibs.dashboard.sessions import (
    FORM,
    Authorize,
    Role,
    TokenLogin,
    TooManyWrong,
    Visitor,
    address_of,
    forgery,
    form_token,
    set_cookie,
)
from dibs.errors import BadRequest, DibsError, NotFound, Refused
from dibs.outbox import Outbox

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SORTS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
STATUS: dict[type[DibsError], int] = {BadRequest: 400, OutOfScope: 403, NotFound: 404, Refused: 409}
SAID = "dibs_said"  # the cookie that brings the result of an act to the next page
FORM_ROOM = 64 * 1024  # bytes of a form beside the arguments of a job
MOST_INPUTS = 100  # of a form

ScopeOf = Callable[[Request], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
FieldsOf = Collection[str] | Callable[[Request], Any] | None


class Dashboard:
    """The page as an ASGI app, for any path: what waits and why, acts, all of it live.

    `authorize(request)` returns `"read"`, `"write"` or None (403). `scope(request)` returns filters of
    `find`, and the page then shows and changes only these jobs; `shared` is the router's. `fields` are the
    fields of jobs to show: names of `args result errors traceback meta`, or a function of the request that
    returns them. `verify` runs `dibs verify` and yields its lines; with it, the health page has a button.
    Example: `web.mount("/jobs", Dashboard(app, authorize=role_of))`"""

    def __init__(
        self,
        app: Dibs,
        *,
        authorize: Authorize | None = None,
        scope: ScopeOf | None = None,
        shared: Collection[str] = (),
        fields: FieldsOf = None,
        title: str = "dibs",
        outbox: Outbox | None = None,
        insecure: bool = False,
        verify: Verify | None = None,
    ) -> None:
        if authorize is None and not insecure:
            raise BadRequest(
                "Dashboard() was given no authorize=: pass a function of the request that returns 'read', "
                "'write' or None; or say insecure=True to let every client that reaches the port do all"
            )
        self._app = app
        self._authorize = authorize
        self._scope = scope
        self._shared = check_shared(shared)
        self._fields = (
            fields if callable(fields) else check_fields(USUAL_FIELDS if fields is None else fields)
        )
        self._title = title
        self._outbox = outbox
        self._most = app._core.settings.max_payload + FORM_ROOM
        self._looks = Looks()
        self._checkup = Checkup(app)
        self._proof = None if verify is None else Proof(verify)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            response = await self._respond(request)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            await response(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Follow the server's start and end, where the page is the whole web app."""
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})

    # -- dispatch -------------------------------------------------------------------------------

    async def _respond(self, request: Request) -> Response:
        path = path_of(request.scope)
        if path == "":  # relative links need the slash
            return _redirect(quote(request.scope["path"].rpartition("/")[2]) + "/")
        parts = path[1:].split("/") if path != "/" else []
        if parts and not parts[-1]:  # and a page below us has none
            query = f"?{request.url.query}" if request.url.query else ""
            return _redirect(f"../{quote(''.join(parts[-2:-1]))}{query}")
        try:
            return await self._route(request, parts)
        except TooManyWrong as error:
            return self._problem(request, parts, 429, str(error), {"retry-after": str(error.seconds)})
        except NoSuchPage as error:
            return self._problem(request, parts, 404, str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except DibsError as error:
            status = next((STATUS[one] for one in type(error).__mro__ if one in STATUS), 503)
            return self._problem(
                request, parts, status, str(error), {"retry-after": "2"} if status == 503 else {}
            )

    async def _route(self, request: Request, parts: list[str]) -> Response:
        if parts[:1] == ["static"]:
            return _static(parts[1:])
        if request.method not in ("GET", "HEAD", "POST"):
            return self._problem(request, parts, 405, "only GET and POST", {"allow": "GET, HEAD, POST"})
        if parts == ["login"] and isinstance(self._authorize, TokenLogin):
            return await self._login(request, self._authorize)
        visitor = await self._visitor(request)
        if visitor is None:
            return self._closed(request, parts)
        if request.method == "POST":
            return await self._post(request, parts, visitor)
        if parts == ["events"]:
            return await self._events(request, visitor)
        page, id = find_page(parts)
        view = self._view(page, id, request.query_params, visitor)
        data = await self._looks.read(view, fresh=request.headers.get("x-dibs-live") is None)
        return self._page(request, view, data)

    def _closed(self, request: Request, parts: list[str]) -> Response:
        if not isinstance(self._authorize, TokenLogin):
            return self._problem(request, parts, 403, "you may not see this page")
        if request.method == "POST" or parts == ["events"]:
            return self._problem(request, parts, 401, "log in first")
        here = "/".join(parts) + (f"?{request.url.query}" if request.url.query else "")
        return _redirect(f"{root_of(parts)}login" + (f"?next={quote(here, safe='')}" if here else ""))

    async def _visitor(self, request: Request) -> Visitor | None:
        if isinstance(self._authorize, TokenLogin):
            found = self._authorize.find(request)
            if found is None:
                return None
            role, name, by_header = found
            return await self._seen(request, role, name, by_header=by_header, has_session=not by_header)
        role = "write" if self._authorize is None else await _awaited(self._authorize(request))
        if role is None:
            return None
        if role not in ("read", "write"):
            raise TypeError(f"authorize= must return 'read', 'write' or None, not {role!r}")
        return await self._seen(request, role, None)

    async def _seen(self, request: Request, role: Role, name: str | None, **by: bool) -> Visitor:
        filter = {} if self._scope is None else await _awaited(self._scope(request))
        fields = self._fields
        if not isinstance(fields, frozenset):
            fields = check_fields(await _awaited(fields(request)))
        return Visitor(role, Scope.of(filter, self._shared), fields, name, **by)

    # -- login ----------------------------------------------------------------------------------

    async def _login(self, request: Request, login: TokenLogin) -> Response:
        query, address, found = request.query_params, address_of(request), None
        if request.method == "POST":
            if is_cross_site(request.method, request.headers):
                return self._problem(request, ["login"], 403, "a page of another site may not log in here")
            form = await self._form(request)
            found, said = login.check(form.get("token", ""), address), "that token is not the right one"
        elif "code" in query:
            found, said = login.use_code(query["code"], address), "this link was used already, or is too old"
        else:
            found, said = None, None
        if found is None:
            status = 200 if said is None else 401
            context = {"next": next_page(query.get("next", "")), "said": said}
            return self._html(request, ["login"], "login", status, context)
        response = _redirect(next_page(query.get("next", "")) or "./")
        login.begin(request, response, *found)
        return response

    # -- acts -----------------------------------------------------------------------------------

    async def _post(self, request: Request, parts: list[str], visitor: Visitor) -> Response:
        if parts not in (["act"], ["logout"]):
            return self._problem(request, parts, 405, "nothing is changed here", {"allow": "GET, HEAD"})
        form = await self._form(request)
        if (reason := forgery(request, form, visitor)) is not None:
            return self._problem(request, parts, 403, reason)
        if parts == ["logout"] and isinstance(self._authorize, TokenLogin):
            response = _redirect("login")
            self._authorize.end(request, response)
            return response
        if not visitor.may_write:
            return self._problem(request, parts, 403, "you may look, and change nothing")
        said, back = await carry_out(Desk(self._app, visitor, self._outbox, self._proof), form)
        response = _redirect((next_page(form.get("back", "")) if back is None else back) or "./")
        set_cookie(request, response, SAID, quote(said[:1000], safe=""), lasts=30, path="/")
        return response

    async def _form(self, request: Request) -> dict[str, str]:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._most:
                raise BadRequest(f"the form is longer than {self._most:,} bytes")
        text = body.decode("utf-8", "replace")
        try:
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_INPUTS))
        except ValueError:
            raise BadRequest(f"the form has more than {MOST_INPUTS} inputs") from None

    # -- pages ----------------------------------------------------------------------------------

    def _view(self, page: DashboardPage, id: str | None, query: Mapping[str, str], visitor: Visitor) -> View:
        view = View(self._app, page, id, dict(query), visitor, self._outbox, self._checkup, self._proof)
        if not view.may_open(page):
            visitor.scope.only_all()
        return view

    async def _events(self, request: Request, visitor: Visitor) -> Response:
        """Stream that the page named by `of` has changed, whenever it has."""
        path, _, query = request.query_params.get("of", "").partition("?")
        page, id = find_page(path.strip("/").split("/") if path.strip("/") else [])
        view = self._view(page, id, QueryParams(query), visitor)
        return self._looks.stream(view, request.headers.get("last-event-id"))

    def _page(self, request: Request, view: View, data: dict[str, Any]) -> Response:
        said = request.cookies.get(SAID)
        parts = view.parts
        context = {"said": None if said is None else shown(_unquoted(said), 1000), **view.context(data)}
        response = self._html(request, parts, view.page.template, 200, context, view.visitor)
        if said is not None:
            set_cookie(request, response, SAID, "", lasts=0, path="/")
        return response

    def _problem(
        self,
        request: Request,
        parts: list[str],
        status: int,
        says: str,
        headers: dict[str, str] | None = None,
    ) -> Response:
        context = {"status": status, "said": shown(says, 2000)}
        response = self._html(request, parts, "problem", status, context)
        response.headers.update(headers or {})
        return response

    def _html(
        self,
        request: Request,
        parts: list[str],
        template: str,
        status: int,
        context: Mapping[str, Any],
        visitor: Visitor | None = None,
    ) -> Response:
        token = form_token(request) or secrets.token_urlsafe(32)
        common = {
            "root": root_of(parts),
            "here": "/".join(parts) + (f"?{request.url.query}" if request.url.query else ""),
            "page": template,
            "title": self._title,
            "visitor": visitor,
            "form_token": token,
            "q": request.query_params.get("q", ""),
            "time_tag": time_tag,
        }
        response = HTMLResponse(render(f"{template}.html", {**common, **context}), status)
        if token != form_token(request):
            set_cookie(request, response, FORM, token, lasts=365 * 86400, path="/")
        return response


def path_of(scope: Connection) -> str:
    """Return the path below the place where the page is mounted.

    Behind a proxy that strips its prefix, a framework may know the prefix although the path lacks it.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    for place in (root, root.removeprefix(str(scope.get("app_root_path", "")).rstrip("/"))):
        below = path[len(place) :]
        if place and path.startswith(place) and (not below or below.startswith("/")):
            return below
    return path


def root_of(parts: list[str]) -> str:
    """Return the relative link to where the page is mounted."""
    return "../" * (len(parts) - 1)


def find_page(parts: list[str]) -> tuple[DashboardPage, str | None]:
    name, id = ("/".join(parts[:1]), parts[1] if len(parts) == 2 else None)
    page = PAGES.get(f"{name}/" if id is not None else name)
    if page is None or len(parts) > 2:
        raise NoSuchPage(f"there is no page {'/'.join(parts)!r}")
    return page, id


def next_page(text: str) -> str:
    """Return the page to go to; the overview for anything that is not one of our own pages."""
    path = text.partition("?")[0]
    ours = path.partition("/")[0] in PAGES and "\\" not in text and not {"", ".", ".."} & set(path.split("/"))
    return quote(text, safe="/?&=%:+*.-_~") if ours and text.isprintable() else ""


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


def _redirect(where: str) -> Response:
    return RedirectResponse(where, 303)


def _static(parts: list[str]) -> Response:
    body = asset(parts[0]) if len(parts) == 1 else None
    sort = SORTS.get(parts[0].rpartition(".")[2], "text/plain") if parts else "text/plain"
    if body is None:
        return Response("there is no such file", 404, media_type="text/plain")
    return Response(body, media_type=sort, headers={"cache-control": "public, max-age=86400"})


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
