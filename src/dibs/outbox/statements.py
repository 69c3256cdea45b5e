"""The SQL of the outbox: the blocks of one database, with the names of its tables filled in."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from dibs.engines.sql.blocks import read_blocks
from dibs.engines.sqlite.engine import NOW as SQLITE_NOW
from dibs.errors import BadRequest
from dibs.operations.scripts import Rows
from dibs.outbox.messages import COLUMNS

_SPELLING = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,50}")

COMMON = {
    "free": "($1.available_at <= {now} and ($1.locked_until is null or $1.locked_until <= {now}))",
    "of_broker": "(cast(:broker as {text}) is null or $1.broker = cast(:broker as {text}))",
    "only": (
        "{of_broker:$1} and (cast(:topic as {text}) is null or $1.topic = cast(:topic as {text}))"
        " and (cast(:key as {text}) is null or $1.message_key = cast(:key as {text}))"
    ),
    # A settled row must still have the token of its claim: an update after the lock was lost changes nothing.
    "claimed_rows": "{outbox}",
    "is_held": "(position, token) in (select held.position, held.token from {held} as held)",
    "returning": "returning position",
    "least": "least",
    "lock": "for update",
    "skip_locked": "for update skip locked",
}

SPELLINGS: dict[str, dict[str, str]] = {
    "postgresql": {
        "now": "statement_timestamp()",
        "later": "{now} + cast(:$1 as bigint) * interval '1 microsecond'",
        "earlier": "{now} - cast(:$1 as bigint) * interval '1 microsecond'",
        "age": "cast(extract(epoch from ({now} - $1)) * 1000000 as bigint)",
        "text": "text",
        "held": (
            "(select cast(pair ->> 0 as bigint) as position, cast(pair ->> 1 as bigint) as token"
            " from json_array_elements(cast(:held as json)) as pair)"
        ),
    },
    "sqlite": {
        "now": SQLITE_NOW,
        "later": "{now} + :$1",
        "earlier": "{now} - :$1",
        "age": "{now} - $1",
        "text": "text",
        "least": "min",
        "unless_stored": "on conflict (message_id, broker) do nothing",
        "lock": "",
        "skip_locked": "",
        "held": (
            "(select json_extract(pair.value, '$[0]') as position, json_extract(pair.value, '$[1]') as token"
            " from json_each(:held) as pair)"
        ),
    },
    "mysql": {
        "now": "utc_timestamp(6)",
        "later": "{now} + interval :$1 microsecond",
        "earlier": "{now} - interval :$1 microsecond",
        "age": "timestampdiff(microsecond, $1, {now})",
        "text": "char",
        "held": "json_table(:held, '$[*]' columns (position bigint path '$[0]', token bigint path '$[1]'))",
        "claimed_rows": (
            "{held} as held straight_join {outbox} as message force index (primary)"
            " on message.position = held.position"
        ),
        "is_held": "message.token = held.token",
        "returning": "",
        "unless_stored": "on duplicate key update message_id = message_id",
        "of": "/*!80017 of $1 */",
        "positions": "json_table(:positions, '$[*]' columns (position bigint path '$'))",
    },
}
QUOTES = {"postgresql": '"', "sqlite": '"', "mysql": "`"}


@dataclass(frozen=True, slots=True)
class TableNames:
    """The names of the two tables and, if they are not on the search path, of their schema."""

    outbox: str = "dibs_outbox"
    inbox: str = "dibs_inbox"
    schema: str | None = None

    def __post_init__(self) -> None:
        for name in (self.outbox, self.inbox, *([] if self.schema is None else [self.schema])):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise BadRequest(
                    f"{name!r} can't name a table or schema here: use up to 51 letters, digits, underscores"
                )


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one database for tables of these names; an adapter of `within=` takes it for an engine."""

    database: str
    names: TableNames
    creation: Sequence[str] = ()  # the statements that create the tables, where dibs does that
    blocks: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        folder = files(__package__).joinpath("sql")
        texts = [
            folder.joinpath(file).read_text(encoding="utf-8")
            for file in ("common.sql", f"{self.database}.sql")
        ]
        blocks = {name: self._spell(body) for name, body in read_blocks(*texts).items()}
        blocks |= {f"create {number}": text for number, text in enumerate(self.creation)}
        object.__setattr__(self, "blocks", blocks)

    @property
    def dialect(self) -> "Statements":
        return self

    @property
    def name(self) -> str:
        return self.database

    @property
    def returning(self) -> bool:
        """Whether a statement that writes can return the rows that it wrote."""
        return self.database != "mysql"

    @property
    def counts_by_hand(self) -> bool:
        """Whether the counter of the tokens needs an update of its own."""
        return self.database == "sqlite"

    @property
    def channel(self) -> str:
        """The channel of the hints to relays, on a database that has NOTIFY."""
        return f"{self.names.outbox}_wake"

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _spell(self, text: str) -> str:
        tables = {"outbox": self.names.outbox, "inbox": self.names.inbox, "master": "sqlite_master"}
        names = {"name": self.names.outbox, "inbox_name": self.names.inbox, "channel": self.channel}
        spelled = {word: self._table(name) for word, name in tables.items()}
        spellings = {**COMMON, **SPELLINGS[self.database], **spelled, **names}
        while _SPELLING.search(text):
            text = _SPELLING.sub(lambda match: _spelled(spellings, match[1], match[2]), text)
        return text

    def _table(self, name: str) -> str:
        quote = QUOTES[self.database]
        parts = [name] if self.names.schema is None else [self.names.schema, name]
        return ".".join(f"{quote}{part}{quote}" for part in parts)


def _spelled(spellings: Mapping[str, str], name: str, given: str | None) -> str:
    if name == "columns":
        return ", ".join(f"{given}.{column}" if given else column for column in COLUMNS)
    return spellings[name].replace("$1", given or "")
