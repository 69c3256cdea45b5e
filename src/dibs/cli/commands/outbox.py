"""`dibs outbox …`: relay messages to their brokers, look at them, redrive the abandoned, remove the old."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from dibs.cli._support.config import settings_of
from dibs.cli._support.health import Answering, health_of_relay
from dibs.cli._support.log_output import set_up
from dibs.cli._support.options import (
    AsJson,
    UntilIdle,
    Url,
    as_typed,
    bad_usage,
    blaming_who_typed,
    duration,
    hand_on,
)
from dibs.cli._support.printing import complain, moment, note, print_json, print_table, without_password
from dibs.clock import monotonic
from dibs.errors import NotFound, Refused, StoreRefused, StoreUnavailable
from dibs.jobs.ids import parse_id
from dibs.log_format import NOTICE
from dibs.outbox import Message, Outbox, Relay, Status
from dibs.outbox.events import log
from dibs.outbox.outbox import DEFAULT_BROKER, SyncOutbox
from dibs.outbox.statements import TableNames
from dibs.settings import lease_micros
from dibs.text import numbered, spoken

app = typer.Typer(
    no_args_is_help=True,
    help="Relay messages of the outbox to their brokers; look at them, redrive and prune them.",
    epilog="Example: dibs outbox relay --broker amqp://localhost",
)

Table = Annotated[
    str | None, typer.Option(metavar="NAME", help="The outbox's table. Default: PREFIX_outbox.")
]
OfBroker = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="Only messages for this broker.")
]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only of this topic.")]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only of this key.")]


@app.callback()
def options(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    hand_on(context, url, json)


@app.command("relay", epilog="Example: dibs outbox relay --broker default=amqp://localhost --lock-for 60")
def relay(
    context: typer.Context,
    broker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL",
            envvar="DIBS_BROKER",
            help="Where messages for NAME (default: 'default') go: amqp://, nats://, redis:// or https://. "
            "May be given again; $DIBS_BROKER keeps a password out of the list of processes.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Messages at a time.")] = 100,
    lock_for: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="How long a dead relay's messages wait. Default: 60s."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="How long a broker may take for one. Default: 30s."
        ),
    ] = None,
    until_idle: UntilIdle = False,
    health_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Answer GET /healthz and /metrics here."),
    ] = None,
    health_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to answer on; 0.0.0.0 for every one.")
    ] = "127.0.0.1",
    table: Table = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every message.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what somebody should look at.")] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="The log as JSON, one object per line.")
    ] = False,
    url: Url = None,
) -> None:
    """Publish what is committed to the outbox until Ctrl-C or SIGTERM. Any number of relays may run."""
    set_up(level=logging.DEBUG if verbose else NOTICE if quiet else logging.INFO, json=log_json)
    for chatty in ("aiormq", "aio_pika", "nats"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # what matters of it is said by the relay
    brokers = dict(_named(one) for one in broker or ())
    if not brokers:
        bad_usage("name a broker: --broker amqp://localhost, or $DIBS_BROKER")
    lock = 60 if lock_for is None else lock_for
    with blaming_who_typed():
        lease_micros(lock)
    outbox = Outbox(settings_of(context, url).url, table=_table(context, url, table))
    made = Relay(outbox, brokers, batch=batch, lock_for=lock, timeout=timeout or 30)
    answering = health_of_relay(outbox, made, health_host, health_port)
    asyncio.run(_relay(outbox, made, brokers, until_idle, answering))


async def _relay(
    outbox: Outbox, relay: Relay, brokers: dict[str, Any], until_idle: bool, answering: Answering
) -> None:
    began = monotonic()
    shown = ", ".join(f"{name} at {without_password(url)}" for name, url in brokers.items())
    log.info("● relaying %s · to %s · %s", outbox.name, shown, relay.name)
    try:
        async with answering:
            await _open_if_there(outbox)
            await relay.run(until_idle=until_idle)
    finally:
        await outbox.close()
    counts = {name: outbox.events.counts[name] for name in ("published", "failed", "abandoned", "lost")}
    said = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    log.info("● stopped after %s: %s", spoken(monotonic() - began), said, extra={"fields": counts})


async def _open_if_there(outbox: Outbox) -> None:
    """What a person has to put right is said at once; a database that is away is the relay's business."""
    try:
        await outbox.open()
    except StoreRefused:
        raise
    except StoreUnavailable as error:
        log.warning("the relay does not reach its database yet and keeps trying: %s", error)


def _named(text: str) -> tuple[str, str]:
    """`events=amqp://…`, or a URL alone for the default one; a URL may have = in its own options."""
    name, sign, url = text.partition("=")
    return (name, url) if sign and "://" not in name else (DEFAULT_BROKER, text)


@app.command("list", epilog="Example: dibs outbox list --status abandoned")
def show(
    context: typer.Context,
    status: Annotated[
        Status | None, typer.Option(metavar="STATUS", help=f"Only in this status: {', '.join(Status)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="At most so many.")] = 50,
    target: OfBroker = None,
    topic: OfTopic = None,
    key: OfKey = None,
    table: Table = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List messages, without --status those that are still to be published; and count all of them."""
    with _opened(context, url, table) as outbox:
        find = outbox.find_unprocessed if status is None else getattr(outbox, f"find_{status.value}")
        messages = find(limit, target, topic=topic, key=key)
        counts = outbox.counts(target)
    if json:
        print_json([_plain(one) for one in messages])
        return
    if messages:
        columns = ["id", "status", "broker", "topic", "key", "attempts", "created", "about"]
        print_table(columns, [_row(one) for one in messages])
    else:
        note("no such messages")
    total = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    typer.echo(f"total: {total or 'no messages'}")


@app.command("redrive", epilog="Example: dibs outbox redrive --all --topic orders")
def redrive(
    context: typer.Context,
    ids: Annotated[
        list[UUID] | None,
        typer.Argument(parser=as_typed(parse_id, "message"), metavar="ID", help="The ids of messages."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All that match the options, instead of ids.")] = False,
    target: OfBroker = None,
    topic: OfTopic = None,
    key: OfKey = None,
    table: Table = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Publish abandoned messages after all, with fresh attempts."""
    if bool(ids) == all:
        bad_usage("name the messages by their ids, or say --all")
    if ids and (topic or key):
        bad_usage("--topic and --key go with --all")
    with _opened(context, url, table) as outbox:
        if all:
            number, refused = outbox.redrive_many(target, topic=topic, key=key), 0
        else:
            number, refused = _redrive_each(outbox, ids or [], target)
    if json:
        print_json({"redriven": number})
    else:
        typer.echo(f"{numbered(number, 'message')} redriven")
    if refused:
        raise typer.Exit(1)


def _redrive_each(outbox: SyncOutbox, ids: list[UUID], target: str | None) -> tuple[int, int]:
    done = refused = 0
    for id in ids:
        try:
            done += outbox.redrive(id, target)
        except (NotFound, Refused) as error:
            complain(error)
            refused += 1
    return done, refused


@app.command("prune", epilog="Example: dibs outbox prune --older-than 7d")
def prune(
    context: typer.Context,
    older_than: Annotated[
        float, typer.Option(parser=duration, metavar="TIME", help="Published that long ago: 12h, 7d.")
    ],
    abandoned_older_than: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Abandoned ones as old as this, too."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Messages per transaction.")] = 5000,
    table: Table = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove messages that were published long ago, for good, in bounded batches."""
    with _opened(context, url, table) as outbox:
        number = outbox.prune(older_than, abandoned_older_than=abandoned_older_than, batch=batch)
    if json:
        print_json({"pruned": number})
    else:
        typer.echo(f"{numbered(number, 'message')} removed")


@contextmanager
def _opened(context: typer.Context, url: str | None, table: str | None) -> Iterator[SyncOutbox]:
    outbox = Outbox(settings_of(context, url).url, table=_table(context, url, table)).sync
    try:
        with blaming_who_typed():
            yield outbox
    finally:
        outbox.close()


def _table(context: typer.Context, url: str | None, table: str | None) -> str:
    if table is None:
        return f"{settings_of(context, url).prefix}_outbox"
    with blaming_who_typed():
        TableNames(outbox=table)
    return table


def _plain(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(message)
    return {name: value for name, value in told.items() if name not in ("body", "position")}


def _row(message: Message) -> list[str | int]:
    return [
        *(str(message.id), message.status.value, message.broker, message.topic, message.key or "-"),
        *(message.attempts, moment(message.created_at), message.error or ""),
    ]
