"""Brokers: the protocol that a relay publishes through, and the brokers that a URL can name."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dibs.errors import BadRequest, DibsError
from dibs.outbox.messages import Message
from dibs.text import split_url


class BrokerUnavailable(DibsError):
    """The broker can't be reached: relays wait and try again. Example: `raise BrokerUnavailable("away")`"""


class BrokerRefused(BrokerUnavailable):
    """The broker refuses the login, and will until its URL or its users are corrected."""

    def __init__(self, broker: str, url: str, error: BaseException) -> None:
        super().__init__(
            f"{broker} at {without_password(url)} refused us: {reason(error)}; check its URL, then try again"
        )


class Rejected(DibsError):
    """The broker refused this message: a failed attempt. Example: `raise Rejected("no such queue")`"""


@runtime_checkable
class Publisher(Protocol):
    """An object that can publish, with nothing to open or close."""

    async def publish(self, message: Message) -> None: ...


class Broker(Publisher, Protocol):
    """A system for messages, never two of a key at once. Example: `Relay(outbox, {"default": MyBroker()})`"""

    async def open(self) -> None:
        """Connect, unless connected already; may raise `BrokerUnavailable`."""

    async def publish(self, message: Message) -> None:
        """Return when the broker has the message for certain.

        Any exception is a failed attempt, except `BrokerUnavailable`: then the attempt is given back.
        """

    async def close(self) -> None:
        """Close what `open` opened."""


async def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class FunctionBroker:
    """A broker made of functions; without `open` and `close` there is nothing to open."""

    publish: Callable[[Message], Coroutine[Any, Any, None]]
    open: Callable[[], Coroutine[Any, Any, None]] = _do_nothing
    close: Callable[[], Coroutine[Any, Any, None]] = _do_nothing


def make_broker(given: Any, name: str) -> Broker:
    """Return the broker that was given, or that a URL names; nothing is opened yet."""
    if isinstance(given, str):
        return _from_url(given)
    if isinstance(given, Publisher):
        opening, closing = getattr(given, "open", _do_nothing), getattr(given, "close", _do_nothing)
        return FunctionBroker(given.publish, opening, closing)
    if callable(given):
        return FunctionBroker(given)
    raise BadRequest(
        f"broker {name!r} is a {type(given).__qualname__}: give a URL, an object with an async "
        "publish(message), or an async function"
    )


def _from_url(url: str) -> Broker:
    from dibs.outbox.brokers.nats import NatsJetStream
    from dibs.outbox.brokers.rabbitmq import RabbitMQ
    from dibs.outbox.brokers.redis import RedisStreams
    from dibs.outbox.brokers.webhook import Webhook

    match split_url(url, "a broker").scheme if "://" in url else "":
        case "amqp" | "amqps":
            bare, options = split_options(url, "exchange")
            return RabbitMQ(bare, **options)
        case "nats" | "tls":
            bare, options = split_options(url, "prefix")
            return NatsJetStream(bare, **options)
        case "redis" | "rediss":
            bare, options = split_options(url, "prefix", "maxlen", "dedupe")
            numbers = {name: _whole(name, text) for name, text in options.items() if name != "prefix"}
            return RedisStreams(bare, **{**options, **numbers})
        case "http" | "https":
            return Webhook(url)
        case scheme:
            raise BadRequest(
                f"no broker for {f'{scheme!r} URLs' if scheme else 'a URL without NAME://'}; dibs knows "
                "amqp://, amqps://, nats://, tls://, redis://, rediss://, http:// and https://"
            )


def split_options(url: str, *names: str) -> tuple[str, dict[str, Any]]:
    """Return the URL without the options of these names, and the options."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in names}
    rest = urlencode([(name, value) for name, value in pairs if name not in names])
    return urlunsplit(parts._replace(query=rest)), ours


def without_password(url: str) -> str:
    """Return a URL for messages and logs: no user, no password, no options."""
    parts = urlsplit(url)
    where = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    return f"{parts.scheme}://{where}{parts.path}"


def reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def missing(package: str) -> BadRequest:
    return BadRequest(f"{package} is not installed; run: pip install 'dibs[outbox]'")


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"{name}={text!r} in the broker's URL must be a whole number")
    return int(text)


Brokers = Mapping[str, "str | Broker | Callable[[Message], Awaitable[None]]"]
