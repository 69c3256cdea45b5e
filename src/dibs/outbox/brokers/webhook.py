"""A webhook: each message is POSTed as a CloudEvent, signed if there is a secret."""

import asyncio
import hashlib
import hmac
import os
import re
import socket
import ssl
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import msgspec

from dibs.clock import wall
from dibs.errors import BadRequest
from dibs.outbox.brokers import BrokerUnavailable, Rejected, without_password
from dibs.outbox.messages import Message

TIMEOUT = 10.0
MOST_READ = 500  # bytes of a response, for the error
ACCEPTED = range(200, 300)
MOST_THREADS = 32  # of one webhook
TRACES = ("traceparent", "tracestate")


class Webhook:
    """An HTTP endpoint. A response of 2xx means published; no redirect is followed.

    `Dibs-Signature: t=<seconds>,v1=<hex>` is the HMAC-SHA256, by `secret` (or $DIBS_WEBHOOK_SECRET), of
    `<id>.<seconds>.<body>`; a receiver that compares it knows the sender and the time.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        source: str = "dibs",
        timeout: float = TIMEOUT,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"{without_password(url)} is not the URL of a webhook: write https://host/path")
        self._parts = parts
        self._shown = without_password(urlunsplit(parts._replace(path="", query="", fragment="")))
        self._threads: ThreadPoolExecutor | None = None
        self._login = _basic(parts)
        self._secret = secret if secret is not None else os.environ.get("DIBS_WEBHOOK_SECRET")
        self._source = source
        self._timeout = timeout
        self._context = context

    async def open(self) -> None:
        """Do nothing: each message has a connection of its own."""

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def publish(self, message: Message) -> None:
        body = msgspec.json.encode(self._event(message))
        headers = {"Content-Type": "application/cloudevents+json; charset=utf-8", **_ascii(message)}
        if self._login:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = self._login
        if self._secret:
            headers["Dibs-Signature"] = signature(self._secret, str(message.id), body, round(wall()))
        status, response = await self._exchange(body, headers)
        if status not in ACCEPTED:
            raise Rejected(f"{self._shown} answered {status}: {response}")

    async def _exchange(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Send from a thread of this webhook's own, and end the connection when the time is over.

        The timeout of a socket is one for each read: a receiver that drips its answer held a thread that all
        webhooks shared.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="dibs-webhook")
        connection, over = self._connection(), threading.Event()
        posting = partial(self._post, connection, over, body, headers)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.get_running_loop().run_in_executor(self._threads, posting)
        except TimeoutError:
            raise TimeoutError(f"{self._shown} took longer than {self._timeout:g} s") from None
        finally:
            over.set()
            _cut(connection)

    def _event(self, message: Message) -> dict[str, object]:
        event: dict[str, object] = {
            "specversion": "1.0",
            "id": str(message.id),
            "source": self._source,
            "type": message.topic,
            "time": message.created_at.isoformat(),
            "datacontenttype": "application/json",
            "dibstoken": str(message.token),
            "data": msgspec.Raw(message.body.encode()),
        }
        traces = {name: text for name, text in message.headers.items() if name in TRACES}
        subject = {} if message.key is None else {"subject": message.key}
        return {**event, **subject, **traces}

    def _post(
        self, connection: HTTPConnection, over: threading.Event, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str]:
        try:
            path = self._parts.path or "/"
            target = f"{path}?{self._parts.query}" if self._parts.query else path
            connection.connect()
            if over.is_set():  # before there was a connection to cut
                raise TimeoutError
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            return response.status, response.read(MOST_READ).decode("utf-8", "replace")
        except (ConnectionRefusedError, socket.gaierror, ssl.SSLError) as error:
            raise BrokerUnavailable(f"{self._shown} can't be reached: {error}") from error
        except HTTPException as error:
            raise Rejected(f"{self._shown} answered something that is not HTTP: {error!r}") from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return HTTPConnection(host, port, timeout=self._timeout)
        return HTTPSConnection(
            host, port, timeout=self._timeout, context=self._context or ssl.create_default_context()
        )


def _cut(connection: HTTPConnection) -> None:
    """End it for the thread that reads from it; TLS would wait for the other side."""
    if (sock := connection.sock) is not None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _basic(parts: SplitResult) -> str | None:
    """Return the header for the user and password of a URL."""
    if parts.username is None:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(login.encode()).decode()}"


def signature(secret: str, id: str, body: bytes, seconds: int) -> str:
    """Return what a receiver compares with the header `Dibs-Signature`."""
    signed = f"{id}.{seconds}.".encode() + body
    return f"t={seconds},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def _ascii(message: Message) -> dict[str, str]:
    """Return the headers of the message that HTTP allows."""
    pairs = {**message.stamps(), "dibs-topic": message.topic}
    return {
        name: value
        for name, value in pairs.items()
        if name.isascii() and value.isascii() and TOKEN.match(name) and name.lower() not in FORBIDDEN
    }


FORBIDDEN = {"host", "content-length", "content-type", "transfer-encoding", "connection", "dibs-signature"}
TOKEN = re.compile(r"[\w!#$%&'*+.^`|~-]*\Z")
