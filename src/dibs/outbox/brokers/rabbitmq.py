"""RabbitMQ: with confirms and `mandatory`, so that a published message is in some queue."""

import asyncio
from contextlib import suppress
from typing import Any

from dibs.outbox.brokers import BrokerRefused, BrokerUnavailable, Rejected, missing, reason, without_password
from dibs.outbox.messages import Message

CONNECT_TIMEOUT = 10


class RabbitMQ:
    """A RabbitMQ server. The topic is the routing key; with the default exchange, the name of a queue."""

    def __init__(self, url: str, *, exchange: str = "") -> None:
        self._url = url
        self._exchange_name = exchange
        self._connection: Any = None
        self._channel: Any = None
        self._exchange: Any = None

    async def open(self) -> None:
        if self._is_open():
            return
        await self.close()
        try:
            import aio_pika
            from aiormq.exceptions import (
                AuthenticationError,
                ConnectionNotAllowed,
                ProbableAuthenticationError,
            )
        except ImportError:
            raise missing("aio-pika") from None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # a starting server may accept and say nothing
                self._connection = await aio_pika.connect(self._url)
                self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                self._exchange = self._channel.default_exchange
                if self._exchange_name:
                    self._exchange = await self._channel.get_exchange(self._exchange_name, ensure=True)
        except (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed) as error:
            await self.close()
            raise BrokerRefused("RabbitMQ", self._url, error) from error
        except Exception as error:
            await self.close()
            raise BrokerUnavailable(
                f"RabbitMQ at {without_password(self._url)} can't be used: {reason(error)}"
            ) from error

    async def publish(self, message: Message) -> None:
        import aio_pika
        from aio_pika.exceptions import DeliveryError

        envelope = aio_pika.Message(
            message.body.encode(),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=str(message.id),
            timestamp=message.created_at,
            headers=dict(message.stamps()),
        )
        exchange, channel = self._exchange, self._channel
        if exchange is None:
            raise BrokerUnavailable("there is no connection to RabbitMQ")
        try:
            # Without `mandatory` RabbitMQ confirms a message that it can't route, and drops it.
            await exchange.publish(envelope, routing_key=message.topic, mandatory=True)
        except DeliveryError as error:
            raise Rejected(
                f"RabbitMQ did not take it: {reason(error)}; "
                f"is a queue bound for routing key {message.topic!r}?"
            ) from error
        except Exception as error:
            if channel.is_closed or self._connection is None or self._connection.is_closed:
                raise BrokerUnavailable(f"the connection to RabbitMQ ended: {reason(error)}") from error
            raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._channel = self._exchange = None
        if connection is not None:
            with suppress(Exception):  # it may be gone already
                await connection.close()

    def _is_open(self) -> bool:
        return self._exchange is not None and not (self._connection.is_closed or self._channel.is_closed)
