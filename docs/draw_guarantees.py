"""Draw the tables of docs/guarantees.md: `python docs/draw_guarantees.py` writes them into the page.

`--check` changes nothing, and fails if there is something to write. The versions, also those of the README,
come from docs/stores.json, which `make test-stores` writes.

The `Traits` of a store say what it can't promise. The tests that a section names say where its guarantee
holds: on the stores on which pytest would run them. A store that has the needed traits and no test of the
guarantee is an error, and so is the name of a test that does not exist. The text between the tables is
written by hand. After a heading, `<!-- needs durable -->` names the traits without which the guarantee does
not hold, `<!-- but may_rewind -->` the traits with which it is weaker, `<!-- untested on memory -->` the
stores on which it is not promised.
"""

import ast
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dibs.engines.memory.engine import Memory
from dibs.engines.mysql.engine import MySQL
from dibs.engines.postgresql.engine import PostgreSQL
from dibs.engines.redis.engine import Redis
from dibs.engines.sqlite.engine import SQLite
from dibs.operations import questions
from dibs.operations.questions import Traits

PAGE = Path(__file__).with_name("guarantees.md")
ROOT = PAGE.parents[1]
README = ROOT / "README.md"
RESULTS = PAGE.with_name("stores.json")

STORES: dict[str, tuple[str, Traits]] = {
    "memory": ("memory", Memory.traits),
    "sqlite": ("SQLite", SQLite.traits),
    "postgresql": ("PostgreSQL", PostgreSQL.traits),
    "mariadb": ("MariaDB", MySQL.traits),
    "mysql": ("MySQL", MySQL.traits),
    "redis": ("Redis", Redis.traits),
    "redis-cluster": ("Redis Cluster", Redis.traits),
}
FIXTURES = {
    "memory": ("memory",),
    "sqlite": ("migrated_file", "sqlite"),
    "postgresql": ("postgresql", "own_postgresql", "pgbouncer", "migrated_database", "postgres"),
    "mariadb": ("mariadb", "own_mariadb", "migrated_mariadb"),
    "mysql": ("mysql", "own_mysql", "migrated_mysql", "secure_url"),
    "redis": ("redis_server", "own_redis", "on_redis"),
    "redis-cluster": ("redis_cluster",),
}

_SECTION = re.compile(r"^## (.+)\n((?:<!-- .* -->\n)*)((?:(?!^## ).*\n)*)", re.MULTILINE)
_NAMED = re.compile(r"`(test_\w+)`")
_NOTE = re.compile(r"<!-- (needs|but|untested on) (.*) -->")
_TABLE = re.compile(r"(<!-- drawn: (\w+) -->\n)(?:.*\n)*?(<!-- end -->\n)")

_DRIVER = re.compile(r"-(sqlite|postgresql|mariadb|mysql)\+\w+-")  # as SQLAlchemy names them

Where = Mapping[str, frozenset[str]]  # test -> stores that it runs on


# -- Where tests run ----------------------------------------------------------------------------


def where_tests_run(items: Iterable[Any]) -> dict[str, frozenset[str]]:
    """Return the stores of each test among pytest's items: by its parameters, its fixtures or its name."""
    found: dict[str, set[str]] = {}
    for item in items:
        found.setdefault(item.originalname, set()).update(_stores_of(item))
    return {name: frozenset(stores) for name, stores in found.items()}


def _stores_of(item: Any) -> Iterator[str]:
    words = f"-{item.callspec.id}-" if hasattr(item, "callspec") else ""
    words = _DRIVER.sub(r"-\1-", words)
    parametrised = [store for store in STORES if f"-{store}-" in words.replace("redis-cluster", "cluster")]
    if "redis-cluster" in words:
        parametrised.append("redis-cluster")
    if parametrised:
        yield from parametrised
        return
    name = f"{item.path.stem}_{item.originalname}_"
    for store, fixtures in FIXTURES.items():
        if not set(fixtures).isdisjoint(item.fixturenames) or f"_{store}_" in name:
            yield store


def collect() -> dict[str, frozenset[str]]:
    """Let pytest collect all tests, and run none."""
    import pytest

    class Collector:
        items: Sequence[Any] = ()

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            self.items = list(items)

    collector, printed = Collector(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(["--collect-only", "-qq", str(ROOT / "tests")], plugins=[collector])
    if code != 0:
        raise SystemExit(f"pytest can't collect the tests:\n{printed.getvalue()}")
    return where_tests_run(collector.items)


# -- The page -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One section of the page."""

    title: str
    tests: tuple[str, ...]
    needs: frozenset[str]
    but: frozenset[str]
    untested: frozenset[str]

    def cell(self, store: str, where: Where) -> str:
        """Return whether the guarantee holds on this store."""
        traits = STORES[store][1]
        if lacking := [trait for trait in sorted(self.needs) if not getattr(traits, trait)]:
            return f"no: not `{lacking[0]}`"
        mark = self._mark(store, where)
        limits = [trait for trait in sorted(self.but) if getattr(traits, trait)]
        return f"{mark}, but `{limits[0]}`" if limits else mark

    def _mark(self, store: str, where: Where) -> str:
        if any(store in where[test] for test in self.tests):
            return "✓"
        if store in self.untested:
            return "–"
        if store == "redis-cluster":
            return "as Redis"
        raise SystemExit(f"“{self.title}” names no test that runs on {store}: name one, or say `untested on`")


def guarantees(text: str) -> list[Guarantee]:
    """Return the sections that name tests."""
    return [
        _guarantee(title, notes, tuple(dict.fromkeys(tests)))
        for title, notes, body in _SECTION.findall(_TABLE.sub("", text))
        if (tests := _NAMED.findall(body))
    ]


def _guarantee(title: str, notes: str, tests: tuple[str, ...]) -> Guarantee:
    said = {word: frozenset(names.replace(",", " ").split()) for word, names in _NOTE.findall(notes)}
    none: frozenset[str] = frozenset()
    return Guarantee(
        title, tests, said.get("needs", none), said.get("but", none), said.get("untested on", none)
    )


def page(text: str, where: Where) -> str:
    """Return the page with its tables drawn anew."""
    found = guarantees(text)
    if missing := {test for one in found for test in one.tests} - where.keys():
        raise SystemExit(f"there is no test {', '.join(sorted(missing))}")
    tables = {"glance": _glance(found, where), "traits": _traits(), "tests": _tests(found, where)}
    return _drawn(text, tables | _versions())


def with_versions(text: str) -> str:
    """Return a page of which only the tables of versions are drawn."""
    return _drawn(text, _versions())


def _drawn(text: str, tables: Mapping[str, Iterable[Sequence[str]]]) -> str:
    def table(match: re.Match[str]) -> str:
        return f"{match[1]}{_lines(tables[match[2]])}{match[3]}" if match[2] in tables else match[0]

    return _TABLE.sub(table, text)


def _lines(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rest))


def _glance(found: Sequence[Guarantee], where: Where) -> Iterator[list[str]]:
    yield ["guarantee", *(name for name, _ in STORES.values())]
    for one in found:
        link = f"[{one.title}](#{re.sub(r'[^a-z0-9 -]', '', one.title.lower()).replace(' ', '-')})"
        yield [link, *(one.cell(store, where) for store in STORES)]


def _tests(found: Sequence[Guarantee], where: Where) -> Iterator[list[str]]:
    yield ["guarantee", "test", *(name for name, _ in STORES.values())]
    for one in found:
        for number, test in enumerate(one.tests):
            title = one.title if number == 0 else ""
            yield [title, f"`{test}`", *("✓" if store in where[test] else "" for store in STORES)]


def _traits() -> Iterator[list[str]]:
    yield ["trait", "what it says", *(name for name, _ in STORES.values())]
    for name, text in _docstrings().items():
        values = [getattr(traits, name) for _, traits in STORES.values()]
        yield [f"`{name}`", text, *map(_value, values)]


def _versions() -> dict[str, list[list[str]]]:
    """Return what ran on which version, in short and in full."""
    results = list(json.loads(RESULTS.read_text()).values())
    short: dict[str, list[str]] = {}
    for one in results:
        short.setdefault(one["store"], []).append(one["version"])
    return {
        "versions": [list(short), [", ".join(found) for found in short.values()]],
        "stores": [
            ["store", "version", "passed", "failed", "when"],
            *(
                [one["store"], one["version"], f"{one['passed']:,}", str(one["failed"]), _when(one)]
                for one in results
            ),
        ],
    }


def _when(result: Mapping[str, str]) -> str:
    return f"{result['date']} at {result['commit']}"


def _value(value: object) -> str:
    match value:
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "any"
        case _:
            return f"{value:,}"


def _docstrings() -> dict[str, str]:
    """Return the docstring of each trait in questions.py."""
    tree = ast.parse(Path(questions.__file__).read_text())
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Traits"]
    return {
        field.target.id: " ".join(str(words.value.value).split())
        for field, words in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }


if __name__ == "__main__":
    pages = {PAGE: page(PAGE.read_text(), collect()), README: with_versions(README.read_text())}
    for file, drawn in pages.items():
        if "--check" not in sys.argv:
            file.write_text(drawn)
        elif drawn != file.read_text():
            raise SystemExit(f"{file.name} is not up to date: run `make docs`")
