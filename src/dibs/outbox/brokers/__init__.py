"""Where messages go: a small protocol, and the brokers that dibs can speak to."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dibs.errors import BadRequest, DibsError
from dibs.outbox.messages import Message


class BrokerUnavailable(DibsError):
    """The broker can't be reached: nobody's fault, so nobody's attempt. Relays wait and try again."""


class BrokerRefused(BrokerUnavailable):
    """The broker does not let us in, and will not until its URL or its users are put right."""

    def __init__(self, broker: str, url: str, error: BaseException) -> None:
        said = str(error) or type(error).__name__
        super().__init__(
            f"{broker} at {without_password(url)} refused us: {said}; check its URL, then try again"
        )


class Rejected(DibsError):
    """The broker was reached and did not take this message: a failed attempt."""


class Broker(Protocol):
    """Takes one message at a time. Several calls may be under way, but of one key only one."""

    async def open(self) -> None:
        """Be ready to publish; nothing to do when that is so already. May raise `BrokerUnavailable`."""

    async def publish(self, message: Message) -> None:
        """Return when the broker has the message for certain. Any exception is a failed attempt, but for
        `BrokerUnavailable`, which says that the message never had a chance."""

    async def close(self) -> None:
        """Give up what was opened."""


class Calling:
    """A broker made of a function, or of an object that has nothing to open."""

    def __init__(self, publish: Callable[[Message], Awaitable[None]], around: Any = None) -> None:
        self._publish = publish
        self._around = around

    async def open(self) -> None:
        if (opened := getattr(self._around, "open", None)) is not None:
            await opened()

    async def publish(self, message: Message) -> None:
        await self._publish(message)

    async def close(self) -> None:
        if (closed := getattr(self._around, "close", None)) is not None:
            await closed()


def make_broker(given: Any, name: str) -> Broker:
    """The broker that was given, or that a URL names; nothing is opened yet."""
    if isinstance(given, str):
        return _from_url(given)
    publish = getattr(given, "publish", None)
    if publish is not None:
        return Calling(publish, given)
    if callable(given):
        return Calling(given)
    raise BadRequest(
        f"broker {name!r} is a {type(given).__qualname__}: give a URL, an object with an async "
        "publish(message), or an async function"
    )


def _from_url(url: str) -> Broker:
    from dibs.outbox.brokers.nats import NatsJetStream
    from dibs.outbox.brokers.rabbitmq import RabbitMQ
    from dibs.outbox.brokers.redis import RedisStreams
    from dibs.outbox.brokers.webhook import Webhook

    match url.split("://", 1)[0].lower():
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
                f"no broker for {scheme!r} URLs; dibs knows amqp://, amqps://, nats://, tls://, redis://, "
                "rediss://, http:// and https://"
            )


def split_options(url: str, *names: str) -> tuple[str, dict[str, Any]]:
    """The URL without the options that are meant for us, and those."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in names}
    rest = urlencode([(name, value) for name, value in pairs if name not in names])
    return urlunsplit(parts._replace(query=rest)), ours


def without_password(url: str) -> str:
    """A URL for people and logs: no user, no password, no options."""
    parts = urlsplit(url)
    where = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    return f"{parts.scheme}://{where}{parts.path}"


def missing(package: str) -> BadRequest:
    return BadRequest(f"{package} is not installed; run: pip install 'dibs[outbox]'")


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"{name}={text!r} in the broker's URL must be a whole number")
    return int(text)


Brokers = Mapping[str, "str | Broker | Callable[[Message], Awaitable[None]]"]
