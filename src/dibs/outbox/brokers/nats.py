"""NATS JetStream: published once the stream has acknowledged it, and stored once per id by its window."""

from contextlib import suppress
from typing import Any

from dibs.outbox.brokers import BrokerRefused, BrokerUnavailable, Rejected, missing, without_password
from dibs.outbox.messages import Message

CONNECT_TIMEOUT = 10
ACK_TIMEOUT = 10
REFUSAL = "authorization violation"  # all that the server says of a wrong user, password or token


class NatsJetStream:
    """The topic, behind `prefix`, is the subject; a stream must listen to it."""

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
        self._client = nats.NATS()
        try:
            # One try: by itself the client would go on for two minutes, and when to try is our business.
            await self._client.connect(
                self._url,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.05,
                connect_timeout=CONNECT_TIMEOUT,
                error_cb=_quietly,
            )
        except Exception as error:
            await self.close()  # it leaves a connection open that failed
            if REFUSAL in str(error).lower():
                raise BrokerRefused("NATS", self._url, error) from error
            raise BrokerUnavailable(
                f"NATS at {without_password(self._url)} can't be used: {str(error) or type(error).__name__}"
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
                words = str(error) or type(error).__name__
                raise BrokerUnavailable(f"the connection to NATS ended: {words}") from error
            raise

    async def close(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is not None and not client.is_closed:
            with suppress(Exception):  # it is gone, which is all that was wanted
                await client.close()


async def _quietly(_: Exception) -> None:
    """What goes wrong is raised where it matters; the client would print it, too."""
