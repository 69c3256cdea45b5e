"""`dibs serve`: the HTTP API of a store, behind a token or a password."""

import ipaddress
import logging
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dibs.app.dibs import Dibs
from dibs.cli._support.config import given
from dibs.cli._support.options import AsJson, LogJson, Url, bad_usage
from dibs.cli._support.printing import note, print_json, set_up_log, without_password
from dibs.errors import BadRequest
from dibs.text import numbered

if TYPE_CHECKING:
    from dibs.integrations.service import Credentials

EXAMPLE = "Example: dibs serve, or DIBS_TOKEN=… dibs serve --host 0.0.0.0 --allow-host jobs.example.org"
SHORT = 16  # characters: a token that can be guessed
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


def command(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    read_token: ReadToken = None,
    basic: Basic = None,
    allow_host: AllowHost = None,
    trust_proxy: TrustProxy = None,
    log_json: LogJson = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Serve the HTTP API: read jobs, change them, watch them.

    There are /healthz and /metrics, too. Without a token or password it listens only to this machine, and
    prints a token for this one run.

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
        _announce(said, json)
        _serve(app, credentials, listener, _hosts(host, allow_host or []), trust_proxy or [])


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
        return socket.create_server((host, port), family=family, backlog=2048)
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


def _serve(
    app: Dibs, credentials: "Credentials", listener: socket.socket, hosts: list[str], proxies: list[str]
) -> None:
    import uvicorn

    from dibs.integrations.service import make_service

    config = uvicorn.Config(
        make_service(app, credentials, hosts),
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
