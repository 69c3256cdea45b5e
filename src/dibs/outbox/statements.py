"""The outbox's SQL: the blocks of a database with the names of the tables filled in."""

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

_FREE = "($1.available_at <= {now} and ($1.locked_until is null or $1.locked_until <= {now}))"
_OF_BROKER = "(cast(:broker as {text}) is null or $1.broker = cast(:broker as {text}))"
_ONLY = (
    "{of_broker:$1} and (cast(:topic as {text}) is null or $1.topic = cast(:topic as {text}))"
    " and (cast(:key as {text}) is null or $1.message_key = cast(:key as {text}))"
)

SPELLINGS: dict[str, dict[str, str]] = {
    "postgresql": {
        "now": "statement_timestamp()",
        "later": "{now} + cast(:$1 as bigint) * interval '1 microsecond'",
        "earlier": "{now} - cast(:$1 as bigint) * interval '1 microsecond'",
        "age": "cast(extract(epoch from ({now} - $1)) * 1000000 as bigint)",
        "text": "text",
        "skip_locked": "for update skip locked",
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
        "held": ("json_table(:held, '$[*]' columns (position bigint path '$[0]', token bigint path '$[1]'))"),
        "positions": "json_table(:positions, '$[*]' columns (position bigint path '$'))",
    },
}
QUOTES = {"postgresql": '"', "sqlite": '"', "mysql": "`"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tables are: their names and, where they don't lie on the usual path, their schema."""

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
    """One database's words for one place; also what an adapter of `within=` asks of an engine."""

    database: str
    place: Place
    making: Sequence[str] = ()  # what makes the tables, where that is our business
    blocks: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        folder = files(__package__).joinpath("sql")
        texts = [
            folder.joinpath(file).read_text(encoding="utf-8")
            for file in ("common.sql", f"{self.database}.sql")
        ]
        blocks = {name: self._spell(body) for name, body in read_blocks(*texts).items()}
        blocks |= {f"make {number}": text for number, text in enumerate(self.making)}
        object.__setattr__(self, "blocks", blocks)

    @property
    def dialect(self) -> "Statements":
        return self

    @property
    def name(self) -> str:
        return self.database

    @property
    def returning(self) -> bool:
        """Whether a statement that writes can answer what it wrote."""
        return self.database != "mysql"

    @property
    def counts_by_hand(self) -> bool:
        """Whether the counter of the tokens has to be moved by a statement of its own."""
        return self.database == "sqlite"

    @property
    def channel(self) -> str:
        """Where hints to relays are told, on a database that can."""
        return f"{self.place.outbox}_wake"

    def read(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Rows:
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _spell(self, text: str) -> str:
        while _SPELLING.search(text):
            text = _SPELLING.sub(lambda match: self._word(match[1], match[2]), text)
        return text

    def _word(self, name: str, given: str | None) -> str:
        match name:
            case "outbox" | "inbox":
                return self._table(getattr(self.place, name))
            case "master":
                return self._table("sqlite_master")
            case "name":
                return self.place.outbox
            case "inbox_name":
                return self.place.inbox
            case "channel":
                return self.channel
            case "columns":
                return ", ".join(f"{given}.{column}" if given else column for column in COLUMNS)
            case _:
                return _COMMON.get(name, SPELLINGS[self.database].get(name, "")).replace("$1", given or "")

    def _table(self, name: str) -> str:
        quote = QUOTES[self.database]
        parts = [name] if self.place.schema is None else [self.place.schema, name]
        return ".".join(f"{quote}{part}{quote}" for part in parts)


_COMMON = {"free": _FREE, "of_broker": _OF_BROKER, "only": _ONLY}
