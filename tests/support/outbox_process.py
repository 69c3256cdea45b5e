"""Processes of the end-to-end test: `python outbox_process.py produce|relay JSON`."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import psycopg

from dibs.outbox import Outbox, Relay


def produce(
    url: str, producer: int, first: int, messages: int, keys: int, producers: int, notes: str
) -> None:
    """Publish numbered messages, several in a transaction, and roll back every tenth one.

    A producer has keys of its own, so that what it writes first is what should arrive first. Notes in a file
    what was committed, by key and in order, and what was not.
    """
    outbox, chance = Outbox(url), random.Random(producer)
    own = [f"key-{number}" for number in range(keys) if number % producers == producer]
    committed: list[tuple[str, int, str]] = []
    undone: list[str] = []
    number = first
    with psycopg.connect(url) as connection:
        transactions = 0
        while len(committed) < messages:
            batch = []
            for _ in range(min(chance.randint(1, 5), messages - len(committed))):
                key = chance.choice(own)
                id = outbox.sync.publish("orders", {"n": number}, key=key, within=connection)
                batch.append((key, number, str(id)))
                number += 1
            transactions += 1
            if transactions % 10 == 0:
                connection.rollback()
                undone += [id for _, _, id in batch]
            else:
                connection.commit()
                committed += batch
    Path(notes).write_text(json.dumps({"committed": committed, "undone": undone}))


def relay(url: str, broker: str, lock_for: float, batch: int) -> None:
    outbox = Outbox(url)

    async def run() -> None:
        print("ready", flush=True)
        await Relay(outbox, {"default": broker}, lock_for=lock_for, batch=batch, poll=0.5).run()
        await outbox.close()

    asyncio.run(run())


if __name__ == "__main__":
    verb, given = sys.argv[1:]
    arguments: dict[str, Any] = json.loads(given)
    {"produce": produce, "relay": relay}[verb](**arguments)
