"""NATS JetStream: a message is published once its stream confirmed it; JetStream drops repeated ids."""

from contextlib import suppress
from functools import cache
from typing import Any

from dibs.outbox.brokers import BrokerRefused, BrokerUnavailable, Rejected, missing, reason, without_password
from dibs.outbox.messages import Message

CONNECT_TIMEOUT = 10
ACK_TIMEOUT = 10
NO_TLS = "the server offers no TLS; nats:// connects without"
REFUSAL = "authorization violation"  # the server's only words for a wrong user, password or token


class NatsJetStream:
    """A JetStream server. The subject is `prefix` and the topic; a stream must listen to it."""

    def __init__(self, url: str, *, prefix: str = "") -> None:
        self._url = url
        self._prefix = prefix
        self._client: Any = None
        self._stream: Any = None

    async def open(self) -> None:
        if self._client is not None and self._client.is_connected:
            return
        await self.close()
        try:
            import nats
        except ImportError:
            raise missing("nats-py") from None
        self._client = (_encrypted() if self._url.lower().startswith("tls://") else nats.NATS)()
        try:
            # One try: the client would go on for two minutes, while the relay decides when to try again.
            await self._client.connect(
                self._url,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.05,
                connect_timeout=CONNECT_TIMEOUT,
                error_cb=_ignore,
            )
        except Exception as error:
            await self.close()  # a failed connect leaves the connection open
            if REFUSAL in str(error).lower() or NO_TLS in str(error):
                raise BrokerRefused("NATS", self._url, error) from error
            raise BrokerUnavailable(
                f"NATS at {without_password(self._url)} can't be used: {reason(error)}"
            ) from error
        self._stream = self._client.jetstream(timeout=ACK_TIMEOUT)

    async def publish(self, message: Message) -> None:
        from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

        client, stream = self._client, self._stream
        if client is None or not client.is_connected:
            raise BrokerUnavailable("the connection to NATS ended")
        subject = f"{self._prefix}{message.topic}"
        headers = {**message.stamps(), "Nats-Msg-Id": str(message.id)}
        try:
            await stream.publish(subject, message.body.encode(), headers=headers)
        except NoStreamResponseError as error:
            raise Rejected(f"no JetStream stream listens to subject {subject!r}: create one") from error
        except ServiceUnavailableError as error:
            raise BrokerUnavailable(f"JetStream is not ready: {error}") from error
        except APIError as error:
            raise Rejected(f"JetStream did not take it: {error}") from error
        except Exception as error:
            if not client.is_connected:
                raise BrokerUnavailable(f"the connection to NATS ended: {reason(error)}") from error
            raise

    async def close(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is not None and not client.is_closed:
            with suppress(Exception):  # it may be gone already
                await client.close()


@cache
def _encrypted() -> Any:
    """Return a client that sends nothing to a server that does not require TLS.

    nats-py takes `tls://` as a wish: it gave user and password in the clear to a server, or to an attacker
    in between, that leaves `tls_required` out of its greeting.
    """
    import nats

    class Encrypted(nats.NATS):  # type: ignore[misc]
        async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
            if initial_connection and not info.get("tls_required"):
                raise nats.errors.Error(NO_TLS)
            await super()._process_info(info, initial_connection)

    return Encrypted


async def _ignore(_: Exception) -> None:
    """Keep the client from printing an error that is raised as well."""
