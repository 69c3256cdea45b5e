"""`dibs serve`: the HTTP API of a store, behind a token or a password."""

import asyncio
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from dibs.app.dibs import Dibs
from dibs.app.guards import file_limit, most_connections
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, LogJson, Url, bad_usage
from dibs.cli._support.printing import note, print_json, set_up_log
from dibs.errors import BadRequest
from dibs.text import numbered, without_password

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dibs.dashboard import Dashboard, TokenLogin
    from dibs.dashboard.proof import Verify
    from dibs.integrations.service import Credentials

EXAMPLE = "Example: dibs serve, or DIBS_TOKEN=… dibs serve --host 0.0.0.0 --allow-host jobs.example.org"
SHORT = 16  # characters: a token that can be guessed
BACKLOG = 128  # connections that are accepted in one go, and need files then
SMALL = ("--jobs", "200", "--workers", "3", "--kills", "1", "--freezes", "1")  # a dozen seconds
SHUTDOWN = 10  # seconds that requests get to end

Host = Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 takes a free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="DIBS_TOKEN",
        metavar="TOKEN",
        show_envvar=False,
        help="Bearer token that allows everything. Default: $DIBS_TOKEN, which `ps` does not show.",
    ),
]
ReadToken = Annotated[
    str | None,
    typer.Option(
        envvar="DIBS_READ_TOKEN",
        metavar="TOKEN",
        show_envvar=False,
        help="Bearer token that allows only reading. Default: $DIBS_READ_TOKEN.",
    ),
]
Basic = Annotated[
    str | None,
    typer.Option(
        envvar="DIBS_BASIC",
        metavar="USER:PASSWORD",
        show_envvar=False,
        help="Basic authentication, instead of or beside a token. Default: $DIBS_BASIC.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A host name that requests may use; may be given again; '*' for any.",
    ),
]
TrustProxy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="The address of a proxy in front, to trust its X-Forwarded-For; may be given again.",
    ),
]
NoUi = Annotated[bool, typer.Option("--no-ui", help="Leave the page at /ui/ out; serve the HTTP API alone.")]

AllowVerify = Annotated[
    bool, typer.Option("--allow-verify", help="Let the page run `dibs verify`, in a queue of its own.")
]


def command(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    read_token: ReadToken = None,
    basic: Basic = None,
    allow_host: AllowHost = None,
    trust_proxy: TrustProxy = None,
    no_ui: NoUi = False,
    allow_verify: AllowVerify = False,
    log_json: LogJson = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Serve the page at /ui/ and the HTTP API: read jobs, change them, watch them.

    There are /healthz and /metrics, too. Without a token or password it listens only to this machine, and
    prints a token for this one run. The printed link to the page logs in once, within 15 minutes.

    The log on stderr has a line for each requested change: ! what was done, and by which user.
    """
    set_up_log(logging.INFO, json=log_json)
    credentials = _credentials(token or None, read_token or None, basic or None, host)
    app = Dibs(**given(context, url))
    app.sync.open()
    with _listening(host, port) as listener:
        where = _address(listener)
        said = {"url": where, "store": without_password(app._core.settings.url)}
        if token is None and credentials.token is not None:
            said["token"] = credentials.token
        login = None if no_ui else credentials.login()
        if login is not None:
            said["page"] = f"{where}/ui/login?code={login.new_code()}"
        _announce(said, json)
        check = verify_lines(app) if allow_verify else None
        page = None if login is None else _page(app, login, check)
        _serve(_service(app, credentials, _hosts(host, allow_host or []), page), listener, trust_proxy or [])


def serve_page(app: Dibs, port: int) -> None:
    """Serve the page of an app to this machine, with a token for this one run, and print the link to it."""
    credentials = _credentials(None, None, None, "127.0.0.1")
    with _listening("127.0.0.1", port) as listener:
        login = credentials.login()
        typer.echo(f"the page: {_address(listener)}/ui/login?code={login.new_code()}")
        typer.echo(f"to log in again: {credentials.token}")
        page = _page(app, login, verify_lines(app))
        _serve(_service(app, credentials, _hosts("127.0.0.1", []), page), listener, [])


def _page(app: Dibs, login: "TokenLogin", check: "Verify | None") -> "Dashboard":
    from dibs.dashboard import Dashboard

    return Dashboard(app, authorize=login, verify=check)


def verify_lines(app: Dibs) -> "Verify":
    """Return a function that runs `dibs verify` with small sizes on the store of an app, line by line."""
    settings = app._core.settings
    environment = {**os.environ, "DIBS_URL": settings.url, "DIBS_PREFIX": settings.prefix}

    async def lines() -> AsyncIterator[str]:
        words = [sys.executable, "-m", "dibs.cli", "verify", *SMALL]
        pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=both, env=environment)
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                yield line.decode(errors="replace").rstrip()
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()

    return lines


def _credentials(token: str | None, read_token: str | None, basic: str | None, host: str) -> "Credentials":
    try:
        from dibs.integrations.service import Credentials
    except ImportError:
        raise BadRequest("dibs serve needs a web framework and a server: pip install 'dibs[serve]'") from None
    for secret in (token, read_token):
        if secret is not None and len(secret) < SHORT:
            note(f"a token of {numbered(len(secret), 'character')} can be guessed; take {SHORT} or more")
    if basic is not None and (":" not in basic or basic.endswith(":")):
        bad_usage("basic authentication is USER:PASSWORD, both of them")
    credentials = Credentials(token=token, read_token=read_token, basic=basic)
    if not credentials.is_open:
        return credentials
    if not _is_loopback(host):
        raise BadRequest(
            f"other machines can reach {host}, and it needs no token or password: set $DIBS_TOKEN or "
            "$DIBS_BASIC, or listen on 127.0.0.1"
        )
    return Credentials(token=secrets.token_urlsafe(24))


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadRequest(f"can't listen on {host}: {error}") from None
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadRequest(f"can't listen on {host}:{port}: {error}; choose another --port or --host") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _hosts(host: str, allowed: list[str]) -> list[str]:
    from dibs.integrations.service import LOOPBACK

    return [*LOOPBACK, host, socket.gethostname(), *allowed]


def _announce(said: dict[str, str], json: bool) -> None:
    if json:
        print_json(said)
        return
    typer.echo(f"serving {said['store']} on {said['url']}")
    if "token" in said:
        typer.echo(f"for this run: Authorization: Bearer {said['token']}")
    if "page" in said:
        typer.echo(f"the page, for one login: {said['page']}")


def _service(app: Dibs, credentials: "Credentials", hosts: list[str], page: "Dashboard | None") -> "FastAPI":
    from dibs.integrations.service import make_service

    file_limit(raised=True)
    return make_service(app, credentials, hosts, page)


def _serve(service: "FastAPI", listener: socket.socket, proxies: list[str]) -> None:
    import uvicorn

    from dibs.integrations.service import limited_to

    config = uvicorn.Config(
        service,
        http=limited_to(most_connections(file_limit())),
        backlog=BACKLOG,
        log_config=None,  # its lines then look like ours
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN,
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again once it has ended
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run(sockets=[listener])
