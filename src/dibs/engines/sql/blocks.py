"""SQL files: the named blocks of a dialect with its spellings filled in, and the files of its migrations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files

from dibs.jobs.job import JOB_COLUMNS, STORED_TYPES
from dibs.operations.minutes import MINUTE_COLUMNS

# The columns that stay the same between the live and the finished table.
KEPT_COLUMNS = (
    *("id", "kind", "queue", "args", "priority", "max_attempts", "run_at", "enqueued_at"),
    *("claimed_at", "worker", "token", "train", "slot", "on_cancelled", "on_failed"),
    *("unique_key", "unique_until", "parent_id", "progress", "tags", "meta"),
    *("position", "slot_policy", "slot_limit"),
)
RETURNED = {"worker": "null", "progress": "0"}
RETRIED = {**RETURNED, "run_at": "{now}"}

# How most databases write what the blocks name; a dialect has words of its own beside these, or instead.
SPELLINGS = {
    "text": "text",
    "bigint": "bigint",
    "false": "false",
    "true": "true",
    "if": ":$1",
    "if_free": "for update skip locked",
    "given": "$1 job",
    "join": "join",
    "like": "$1 like :$2 escape '!'",
    **dict.fromkeys(("by_id", "by_lease", "as_gate", "newest"), ""),
}

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n((?:--.*\n)*)", re.MULTILINE)
_FRAGMENT = re.compile(r"\{>(\w+)(?::(\w+))?(?::(\w+))?\}")
_SPELLING = re.compile(r"\{(\w+)(?::([\w., ]+))?(?::(\w+))?\}")
_PARAM = re.compile(r"(?<!:):([a-z_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's SQL: its blocks, with its spellings filled in."""

    name: str
    spellings: dict[str, str]
    prefix: str = "dibs"
    blocks: "Blocks" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spellings", SPELLINGS | self.spellings)
        object.__setattr__(self, "blocks", Blocks(self))

    def spell(self, text: str) -> str:
        return _SPELLING.sub(lambda match: self._word(*match.groups()), text)

    def rename(self, text: str) -> str:
        """Return the text with the store's prefix in the names of tables, indexes and the sequence."""
        return text if self.prefix == "dibs" else re.sub(r"\bdibs_", f"{self.prefix}_", text)

    def _word(self, name: str, first: str | None, second: str | None) -> str:
        match name:
            case "job_columns":
                return _columns(JOB_COLUMNS, first)
            case "kept_columns":
                return _columns(KEPT_COLUMNS, first)
            case "stored_columns":
                return _columns(tuple(STORED_TYPES), first)
            case "stored_values":
                return ", ".join(f":{name}" for name in STORED_TYPES)
            case "minute_columns":
                return ", ".join(MINUTE_COLUMNS)
            case "minute_values":
                return ", ".join(f":{name}" for name in MINUTE_COLUMNS)
            case "minute_adds":
                return ", ".join(f"{name} = {first}.{name} + :{name}" for name in MINUTE_COLUMNS)
            case "minute_sums":
                return ", ".join(f"sum({first}.{name}) as {name}" for name in MINUTE_COLUMNS)
            case "returned_columns":
                return _columns(KEPT_COLUMNS, first, RETURNED)
            case "retried_columns":
                return self.spell(_columns(KEPT_COLUMNS, first, RETRIED))
            case _:
                return _filled(self.spellings[name], first, second)


@lru_cache(maxsize=1024)
def placeholders(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Turn `:name` into `$1` or `%(name)s`; return the names in order of first use."""
    order = tuple(dict.fromkeys(_PARAM.findall(sql)))
    if style == "numeric":
        return _PARAM.sub(lambda match: f"${order.index(match[1]) + 1}", sql), order
    if style == "pyformat":
        return _PARAM.sub(r"%(\1)s", sql.replace("%", "%%")), order
    return sql, order


class Blocks(dict[str, str]):
    """The blocks of a dialect, filled in when they are first used: a process may need only one or two."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._parts = _parts(*_texts(dialect.name))

    def __missing__(self, name: str) -> str:
        blocks, fragments = self._parts
        spelled = self._dialect.spell(_include(blocks[name], fragments))
        text = self[name] = self._dialect.rename(spelled)
        return text

    def all(self) -> Mapping[str, str]:
        """Return every block of the dialect by its name."""
        return {name: self[name] for name in self._parts[0]}


@cache
def _texts(dialect: str) -> Sequence[str]:
    folder = files("dibs.engines")
    common = [folder.joinpath("sql", f"{part}.sql") for part in ("common", "gates", "pipelines")]
    own = [folder.joinpath(dialect, f"{part}.sql") for part in ("jobs", "gates", "pipelines")]
    return tuple(file.read_text(encoding="utf-8") for file in (*common, *own) if file.is_file())


def read_blocks(*texts: str) -> dict[str, str]:
    """Return the named blocks of these files, fragments filled in; a later file overrides."""
    blocks, fragments = _parts(*texts)
    return {name: _include(body, fragments) for name, body in blocks.items()}


@cache
def _parts(*texts: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the blocks and the fragments of these files, as they stand there."""
    blocks: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for text in texts:
        _, *parts = _BLOCK.split(text)
        for sort, name, comment, body in zip(*[iter(parts)] * 4, strict=True):
            del comment
            (blocks if sort == "name" else fragments)[name] = body.strip()
    return blocks, fragments


def _include(text: str, fragments: Mapping[str, str]) -> str:
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: _filled(fragments[match[1]], match[2], match[3]), text)
    return text


def _filled(text: str, first: str | None, second: str | None) -> str:
    return text.replace("$1", first or "").replace("$2", second or "")


def _columns(names: Sequence[str], table: str | None, instead: Mapping[str, str] | None = None) -> str:
    instead = instead or {}
    dot = f"{table}." if table else ""
    return ", ".join(instead.get(name, f"{dot}{name}") for name in names)


def schema_files(dialect: str) -> Iterator[tuple[int, str]]:
    """Yield (version, SQL) of each migration, oldest first."""
    engines = files("dibs.engines")
    _, shared = _parts(engines.joinpath("sql", "schema.sql").read_text(encoding="utf-8"))
    for file in sorted(engines.joinpath(dialect, "schema").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):  # beside them there may be the folder `down`
            yield int(file.name.split("_")[0]), _include(file.read_text(encoding="utf-8"), shared)


def schema_version(dialect: str) -> int:
    return max(version for version, _ in schema_files(dialect))


def statements(text: str) -> list[str]:
    """Return the statements of a migration file."""
    bare = re.sub(r"--.*", "", text)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
