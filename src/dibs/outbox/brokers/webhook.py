"""A webhook: each message is POSTed as a CloudEvent, signed if there is a secret."""

import asyncio
import hashlib
import hmac
import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import gaierror
from urllib.parse import urlsplit

import msgspec

from dibs.clock import wall
from dibs.errors import BadRequest
from dibs.outbox.brokers import BrokerUnavailable, Rejected, without_password
from dibs.outbox.messages import Message

TIMEOUT = 10.0
MOST_READ = 500  # bytes of a response, for the error
ACCEPTED = range(200, 300)
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
        self._shown = without_password(url)
        self._secret = secret if secret is not None else os.environ.get("DIBS_WEBHOOK_SECRET")
        self._source = source
        self._timeout = timeout
        self._context = context

    async def open(self) -> None:
        """Do nothing: each message has a connection of its own."""

    async def publish(self, message: Message) -> None:
        body = msgspec.json.encode(self._event(message))
        headers = {"Content-Type": "application/cloudevents+json; charset=utf-8", **_ascii(message)}
        if self._secret:
            headers["Dibs-Signature"] = signature(self._secret, str(message.id), body, round(wall()))
        status, response = await asyncio.to_thread(self._post, body, headers)
        if status not in ACCEPTED:
            raise Rejected(f"{self._shown} answered {status}: {response}")

    async def close(self) -> None: ...

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

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        connection = self._connection()
        try:
            path = self._parts.path or "/"
            target = f"{path}?{self._parts.query}" if self._parts.query else path
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            return response.status, response.read(MOST_READ).decode("utf-8", "replace")
        except (ConnectionRefusedError, gaierror, ssl.SSLError) as error:
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
        if name.isascii() and value.isascii() and _is_token(name) and name.lower() not in FORBIDDEN
    }


FORBIDDEN = {"host", "content-length", "content-type", "transfer-encoding", "connection", "dibs-signature"}


def _is_token(name: str) -> bool:
    return all(sign.isalnum() or sign in "!#$%&'*+-.^_`|~" for sign in name)
