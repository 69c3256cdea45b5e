"""Are a store's tables as dibs made them? Two looks are compared: what is there, and what should be."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Look:
    """One table as the database describes it: each column and index with its definition, in its own words."""

    columns: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaProblem:
    """Something about the tables that is not as this dibs needs it. `str()` is a sentence."""

    what: Literal["version", "table", "column", "index"]
    table: str
    name: str
    expected: str
    found: str | None = None
    """None when it is missing."""

    def __str__(self) -> str:
        of = f" of {self.table}" if self.what in ("column", "index") else ""
        if self.what == "version":
            versions = f"{self.found} and this dibs needs {self.expected}"
            return f"the store has schema version {versions}; run `dibs migrate`"
        if self.found is None:
            should = f"; it should be: {self.expected}" if self.expected else "; run `dibs migrate`"
            return f"the {self.what} {self.name}{of} is missing{should}"
        return f"the {self.what} {self.name}{of} is wrong: it is {self.found} and should be {self.expected}"


def compare(
    found: Mapping[str, Look],
    expected: Mapping[str, Look],
    version: int,
    needed: int,
    plainly: Callable[[str], str] = str,
) -> list[SchemaProblem]:
    """Whatever is missing or different. What was added to the tables by others is their business.

    Two definitions are the same if they are so `plainly`, without what this database may write in two ways.
    """
    return [*_version(version, needed), *_tables(found, expected, plainly)]


def _version(version: int, needed: int) -> Iterator[SchemaProblem]:
    if version < needed:
        yield SchemaProblem(
            what="version", table="", name="version", expected=str(needed), found=str(version)
        )


def _tables(
    found: Mapping[str, Look], expected: Mapping[str, Look], plainly: Callable[[str], str]
) -> Iterator[SchemaProblem]:
    for table, look in sorted(expected.items()):
        if (there := found.get(table)) is None:
            yield SchemaProblem(what="table", table=table, name=table, expected="")
            continue
        yield from _parts("column", table, there.columns, look.columns, plainly)
        yield from _parts("index", table, there.indexes, look.indexes, plainly)


def _parts(
    what: Literal["column", "index"],
    table: str,
    found: Mapping[str, str],
    expected: Mapping[str, str],
    plainly: Callable[[str], str],
) -> Iterator[SchemaProblem]:
    for name, definition in sorted(expected.items()):
        there = found.get(name)
        if there is None or plainly(there) != plainly(definition):
            yield SchemaProblem(what=what, table=table, name=name, expected=definition, found=there)
