"""A connection to Redis for each face: commands go out, replies come back, an error reply is raised.

Not redis-py's: to import that takes 80 ms, ten times as long as a process needs otherwise until its first job
is stored. hiredis packs the commands and reads the replies (ADR 10).
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from dibs.errors import BadRequest, UnknownEngine

Command = tuple[str | bytes, ...]

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 30  # seconds without a reply; the connection is then given up
_PIECE = 65536  # bytes

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"),
    *("ssl_cert_reqs", "ssl_check_hostname"),
)
YES, NO = ("1", "true", "yes"), ("0", "false", "no")


# Versions before 7 put the code of an error inside a script behind a dash, after other words.
_CODE = re.compile(r"^([A-Z]{3,})\b|: -([A-Z]{3,}) ")


class ReplyError(Exception):
    """An error that the server replied with."""

    def __init__(self, text: str) -> None:
        super().__init__(text.removeprefix("ERR "))

    @property
    def code(self) -> str:
        """The word that says what kind of error it is, if it has one."""
        match = _CODE.search(str(self))
        return (match[1] or match[2]) if match else ""


class BrokenReply(ConnectionError):
    """What came is no reply of Redis, or the connection ended."""


class Address(Struct, frozen=True, kw_only=True):
    """Where to connect, and what to say first."""

    host: str
    port: int
    user: str | None
    password: str | None
    database: str
    tls: ssl.SSLContext | None

    def greeting(self) -> list[Command]:
        """Return the commands that set up a session."""
        login = [word for word in (self.user, self.password) if word is not None]
        if self.user is not None and self.password is None:
            login.append("")  # a lone word would be taken for the password of the default user
        return [
            *([("AUTH", *login)] if login else []),
            *([("SELECT", self.database)] if self.database != "0" else []),
            ("CLIENT", "SETNAME", "dibs"),
        ]


def tls_context(options: Mapping[str, str], *, wanted: bool) -> ssl.SSLContext | None:
    """Return the TLS settings of a URL, which has the names of redis-py; None without TLS."""
    if unknown := options.keys() - set(_TLS if wanted else ()):
        known = ", ".join(("allow_eviction", "db", *_TLS))
        raise BadRequest(
            f"{', '.join(sorted(unknown))}: unknown in the URL of this store; known: {known} (ssl_… with rediss://)"
        )
    if not wanted:
        return None
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in _VERIFY:
        raise BadRequest(f"ssl_cert_reqs={verify!r} in the URL of the store: write {', '.join(_VERIFY)}")
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path")
    )
    context.check_hostname = verify != "none" and truth("ssl_check_hostname", options)
    context.verify_mode = _VERIFY[verify]
    if "ssl_certfile" in options:
        key, password = options.get("ssl_keyfile"), options.get("ssl_password")
        context.load_cert_chain(options["ssl_certfile"], key, password)
    return context


def truth(name: str, options: Mapping[str, str], usual: str = "yes") -> bool:
    """Return an option of a URL that is yes or no."""
    word = options.get(name, usual)
    if word.lower() not in YES + NO:
        raise BadRequest(f"{name}={word!r} in the URL of the store: write true or false")
    return word.lower() in YES


class _Replies:
    """What both faces do to bytes."""

    def __init__(self) -> None:
        try:
            import hiredis
        except ImportError:
            raise UnknownEngine("hiredis is not installed; run: pip install 'dibs[redis]'") from None
        self._parser = hiredis.Reader(protocolError=BrokenReply, replyError=ReplyError, encoding="utf-8")
        self._next: Callable[[], Any] = self._parser.gets
        self.pack: Callable[[Any], bytes] = hiredis.pack_command

    def received(self, data: bytes) -> None:
        if not data:
            raise BrokenReply("the server closed the connection")
        self._parser.feed(data)

    def next(self) -> Any:
        """Return the next reply, False if it is not complete; raise it if it is an error."""
        reply = self._next()
        if isinstance(reply, ReplyError):
            raise reply
        return reply


class AsyncConnection:
    """A connection of one event loop."""

    def __init__(self) -> None:
        self._replies = _Replies()

    async def connect(self, to: Address) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            self._reader, self._writer = await asyncio.open_connection(to.host, to.port, ssl=to.tls)
            _keep_alive(self._writer.get_extra_info("socket"))
            greeting = to.greeting()
            self.send(*greeting)
            for _ in greeting:
                await self.read()

    def send(self, *commands: Command) -> None:
        self._writer.write(b"".join(map(self._replies.pack, commands)))

    async def read(self) -> Any:
        while (reply := self._replies.next()) is False:
            self._replies.received(await self._reader.read(_PIECE))
        return reply

    async def ask(self, command: Command) -> Any:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            self.send(command)
            return await self.read()

    def close(self) -> None:
        """Close it at once; raises RuntimeError if its event loop was closed."""
        if hasattr(self, "_writer"):
            self._writer.transport.abort()

    async def end(self) -> None:
        """Close it, and wait until it is closed."""
        self.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class SyncConnection:
    """A connection of one thread at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None  # first: `close` looks for it
        self._replies = _Replies()

    def connect(self, to: Address, patience: float | None = None) -> None:
        place = (to.host, to.port)
        bare = self._socket = socket.create_connection(place, timeout=patience or CONNECT_TIMEOUT)
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(bare)
        if to.tls is not None:
            self._socket = to.tls.wrap_socket(bare, server_hostname=to.host)
        greeting = to.greeting()
        self._socket.sendall(b"".join(map(self._replies.pack, greeting)))
        for _ in greeting:
            self._read(self._socket)
        self._socket.settimeout(patience or ANSWER_TIMEOUT)

    def ask(self, command: Command) -> Any:
        assert self._socket is not None
        self._socket.sendall(self._replies.pack(command))
        return self._read(self._socket)

    def _read(self, connection: socket.socket) -> Any:
        while (reply := self._replies.next()) is False:
            self._replies.received(connection.recv(_PIECE))
        return reply

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    __del__ = close  # a process may end without closing its app


def _keep_alive(connection: Any) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
