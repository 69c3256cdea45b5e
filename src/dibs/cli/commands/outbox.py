"""`dibs outbox …`: relay messages to their brokers, list them, redrive abandoned ones, remove old ones."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from dibs.cli._support.config import refuse_missing_file, settings_of
from dibs.cli._support.health import Answering, health_of_relay
from dibs.cli._support.options import (
    AsJson,
    HealthHost,
    HealthPort,
    LogJson,
    Quiet,
    UntilIdle,
    Url,
    as_typed,
    bad_request_is_bad_usage,
    bad_usage,
    duration,
    hand_on,
)
from dibs.cli._support.printing import (
    complain,
    log_level,
    note,
    print_json,
    print_result,
    print_table,
    set_up_log,
    time_text,
)
from dibs.clock import monotonic
from dibs.errors import NotFound, Refused, StoreRefused, StoreUnavailable
from dibs.jobs.ids import parse_id
from dibs.outbox import Message, Outbox, Relay, Status
from dibs.outbox.events import log
from dibs.outbox.outbox import DEFAULT_BROKER, SyncOutbox
from dibs.outbox.statements import TableNames
from dibs.settings import lease_micros
from dibs.text import numbered, spoken, without_password

app = typer.Typer(
    no_args_is_help=True,
    help="Relay messages of the outbox to their brokers; list, redrive and prune them.",
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
            parser=duration, metavar="TIME", help="How long a broker may take for one message. Default: 30s."
        ),
    ] = None,
    until_idle: UntilIdle = False,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    table: Table = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every message.")] = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
    url: Url = None,
) -> None:
    """Publish what is committed to the outbox until Ctrl-C or SIGTERM. Any number of relays may run."""
    set_up_log(log_level(verbose, quiet), json=log_json)
    for chatty in ("aiormq", "aio_pika", "nats"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # the relay logs what matters of it
    brokers = dict(_named(one) for one in broker or ())
    if not brokers:
        bad_usage("name a broker: --broker amqp://localhost, or $DIBS_BROKER")
    lock = 60 if lock_for is None else lock_for
    with bad_request_is_bad_usage():
        lease_micros(lock)
    outbox = Outbox(settings_of(context, url).url, table=_table(context, url, table))
    made = Relay(outbox, brokers, batch=batch, lock_for=lock, timeout=timeout or 30)
    answering = health_of_relay(outbox, made, health_host, health_port)
    asyncio.run(_relay(outbox, made, brokers, until_idle, answering))


async def _relay(
    outbox: Outbox, relay: Relay, brokers: dict[str, Any], until_idle: bool, answering: Answering
) -> None:
    began = monotonic()
    log.info("● relaying %s · to %s · %s", outbox.name, _shown(brokers), relay.name)
    try:
        async with answering:
            await _open_if_there(outbox)
            await relay.run(until_idle=until_idle)
    finally:
        await outbox.close()
    counts = {name: outbox.events.counts[name] for name in ("published", "failed", "abandoned", "lost")}
    said = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    log.info("● stopped after %s: %s", spoken(monotonic() - began), said, extra={"fields": counts})


def _shown(brokers: Mapping[str, str]) -> str:
    """Return names and hosts of brokers; the path of a webhook is often its secret."""
    return ", ".join(
        f"{name} at {'/'.join(without_password(url).split('/')[:3])}" for name, url in brokers.items()
    )


async def _open_if_there(outbox: Outbox) -> None:
    """Raise at once what an operator has to correct; leave a lost connection to the relay's retries."""
    try:
        await outbox.open()
    except StoreRefused:
        raise
    except StoreUnavailable as error:
        log.warning("the relay does not reach its database yet and keeps trying: %s", error)


def _named(text: str) -> tuple[str, str]:
    """Split `events=amqp://…`; a URL alone is the default broker's, and may have = in its options."""
    name, sign, url = text.partition("=")
    return (name, url) if sign and "://" not in name else (DEFAULT_BROKER, text)


@app.command("list", epilog="Example: dibs outbox list --status abandoned")
def show(
    context: typer.Context,
    status: Annotated[
        Status | None, typer.Option(metavar="STATUS", help=f"Only in this status: {', '.join(Status)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many at most.")] = 50,
    target: OfBroker = None,
    topic: OfTopic = None,
    key: OfKey = None,
    table: Table = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List messages, and count all; without --status it lists messages that wait to be published."""
    table = _table(context, url, table)
    refuse_missing_file(context, url)
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
    typer.echo(f"total: {total or 'no messages; this outbox was never published to, or was pruned'}")


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
    """Give abandoned messages new attempts, so that they are published after all."""
    if bool(ids) == all:
        bad_usage("give the ids of messages, or --all, and not both")
    if ids and (topic or key):
        bad_usage("--topic and --key go with --all")
    with _opened(context, url, table) as outbox:
        if all:
            number, refused = outbox.redrive_many(target, topic=topic, key=key), 0
        else:
            number, refused = _redrive_each(outbox, ids or [], target)
    print_result({"redriven": number}, f"{numbered(number, 'message')} redriven", json)
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
        float, typer.Option(parser=duration, metavar="TIME", help="Published longer ago than this: 12h, 7d.")
    ],
    abandoned_older_than: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Also messages abandoned longer ago than this."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Messages per transaction.")] = 5000,
    table: Table = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove messages that were published long ago, for good, in bounded batches."""
    with _opened(context, url, table) as outbox:
        number = outbox.prune(older_than, abandoned_older_than=abandoned_older_than, batch=batch)
    print_result({"pruned": number}, f"{numbered(number, 'message')} removed", json)


@contextmanager
def _opened(context: typer.Context, url: str | None, table: str | None) -> Iterator[SyncOutbox]:
    outbox = Outbox(settings_of(context, url).url, table=_table(context, url, table)).sync
    try:
        with bad_request_is_bad_usage():
            yield outbox
    finally:
        outbox.close()


def _table(context: typer.Context, url: str | None, table: str | None) -> str:
    if table is None:
        return f"{settings_of(context, url).prefix}_outbox"
    with bad_request_is_bad_usage():
        TableNames(outbox=table)
    return table


def _plain(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return {name: value for name, value in fields.items() if name not in ("body", "position")}


def _row(message: Message) -> list[str | int]:
    return [
        *(str(message.id), message.status.value, message.broker, message.topic, message.key or "-"),
        *(message.attempts, time_text(message.created_at), message.error or ""),
    ]
