"""Measure the house: how many rooms it has, how long they are, and how its docstrings read.

    python -m tools.house            # a table, with the goal of each figure
    python -m tools.house --json

`docs/adr/0023-floor-plan.md` has the figures before and after; `tests/docs/test_house.py` keeps them.
What one job meets on its way is counted by `tools/trace_job.py`, which needs a store.
"""

import ast
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT, LONG = 100, 450  # lines of a file
SMELL, BUG = 60, 100  # lines of a block of SQL

# Words that stand for a noun which should be said (STYLE: docstrings in plain words).
VAGUE = re.compile(r"\b(who|whom|whose|whoever|somebody|nobody|those)\b", re.IGNORECASE)
# The docstring of a function begins with one of these verbs, in the imperative. A new verb is welcome here.
VERBS = frozenset(
    """
    add apply ask assert await begin bind block bring call cancel change check choose claim close
    collect compare complete connect continue convert copy count crash create cut decide delete deliver
    describe do drop end enqueue enter evaluate examine execute expect explain extend fill find finish forget
    freeze give go handle have hold ignore import keep kill lease leave let limit list listen lock log
    lose make mark mend migrate move name note open pass pause poll print publish put query queue raise
    read receive recognise record redraw redrive refuse register relay release remember remove renew
    replace report retry return run say search send serve set settle show sort split stage start stop
    store stream succeed take tell test trace transfer treat try turn undo update use visit wait wake
    warn watch work write yield
    """.split()  # noqa: SIM905
)
_BLOCK = re.compile(r"^-- (?:name|fragment): (\w+)\n", re.MULTILINE)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class House:
    """The sources below a folder."""

    source: Path = ROOT / "src" / "dibs"

    @cached_property
    def files(self) -> dict[Path, str]:
        """Python files that count; the page, a later addition, has a budget of its own."""
        found = sorted(self.source.rglob("*.py"))
        return {
            path: path.read_text() for path in found if "dashboard" not in path.relative_to(self.source).parts
        }

    @cached_property
    def statements(self) -> dict[Path, str]:
        """Files of SQL and Lua."""
        return {path: path.read_text() for ext in ("sql", "lua") for path in self.source.rglob(f"*.{ext}")}

    def lengths(self) -> dict[Path, int]:
        """Return the lines of each Python file."""
        return {path: text.count("\n") for path, text in self.files.items()}

    def definitions(self) -> Iterator[tuple[Path, Definition]]:
        """Yield every function and class."""
        for path, text in self.files.items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, Definition):
                    yield path, node

    def docstrings(self) -> list[tuple[Path, Definition, str]]:
        """Return what has a docstring, and the docstring."""
        found = [(path, node, ast.get_docstring(node)) for path, node in self.definitions()]
        return [(path, node, text) for path, node, text in found if text]

    # -- Figures --------------------------------------------------------------------------------

    def top_modules(self) -> int:
        return sum(path.parent == self.source for path in self.files)

    def layers(self) -> int:
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
        contracts = settings["tool"]["importlinter"]["contracts"]
        return next(len(one["layers"]) for one in contracts if one["type"] == "layers")

    def python_files(self) -> int:
        return len(self.files)

    def python_lines(self) -> int:
        return sum(self.lengths().values())

    def sql_and_lua_lines(self) -> int:
        return sum(text.count("\n") for text in self.statements.values())

    def short_files(self) -> list[str]:
        """Return the files under 100 lines, `__init__.py` apart."""
        return self._named(lambda path, lines: lines < SHORT and path.name != "__init__.py")

    def long_files(self) -> list[str]:
        return self._named(lambda _, lines: lines > LONG)

    def repeated_classes(self) -> list[str]:
        """Return public class names that exist twice; the models of the HTTP API mirror what they show."""
        names = Counter(
            node.name
            for path, node in self.definitions()
            if isinstance(node, ast.ClassDef)
            and not node.name.startswith("_")
            and path.relative_to(self.source).as_posix() != "integrations/fastapi/models.py"
        )
        return sorted(name for name, times in names.items() if times > 1)

    def vague_docstrings(self) -> float:
        """Return how many of a hundred docstrings use a word that stands for an unsaid noun."""
        all_of_them = self.docstrings()
        return 100 * sum(bool(VAGUE.search(text)) for *_, text in all_of_them) / len(all_of_them)

    def odd_openings(self) -> list[str]:
        """Return the functions whose docstring does not begin with a verb; a property is a noun."""
        return [
            f"{path.relative_to(self.source)}:{node.name}"
            for path, node, text in self.docstrings()
            if not isinstance(node, ast.ClassDef)
            and not _is_property(node)
            and _first_word(text) not in VERBS
        ]

    def long_blocks(self) -> list[str]:
        """Return the blocks of SQL over 60 lines, with their lengths."""
        found = []
        for path, text in self.statements.items():
            _, *parts = _BLOCK.split(text)
            for name, body in zip(parts[::2], parts[1::2], strict=True):
                if (lines := body.strip().count("\n") + 1) > SMELL:
                    found.append(f"{path.relative_to(self.source)}:{name} ({lines})")
        return found

    def _named(self, wanted: Callable[[Path, int], bool]) -> list[str]:
        lengths = self.lengths()
        return [str(path.relative_to(self.source)) for path, lines in lengths.items() if wanted(path, lines)]


def _first_word(text: str) -> str:
    return text.split(maxsplit=1)[0].strip(".,:;").lower()


def _is_property(node: Definition) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


# Each figure with its goal; the later parts of the plan may add to some of them.
GOALS: dict[str, float] = {
    "top_modules": 8,
    "layers": 11,
    "python_files": 205,
    "python_lines": 31_500,
    "sql_and_lua_lines": 9_500,
    "short_files": 50,
    "long_files": 0,
    "repeated_classes": 0,
    "vague_docstrings": 2,
    "odd_openings": 0,
    "long_blocks": 0,
}


def measure(house: House | None = None) -> dict[str, float]:
    """Return each figure of the house."""
    house = house or House()
    found = {name: getattr(house, name)() for name in GOALS}
    return {name: len(value) if isinstance(value, list) else value for name, value in found.items()}


def main() -> None:
    house = House(Path(sys.argv[1])) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else House()
    figures = measure(house)
    if "--json" in sys.argv:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        mark = "  " if figure <= GOALS[name] else "!!"
        print(f"{mark} {name.replace('_', ' '):20} {figure:10,.5g}   goal {GOALS[name]:,.0f}")
    if "--list" in sys.argv:
        for name in GOALS:
            if isinstance(found := getattr(house, name)(), list):
                print(f"\n{name}:", *found, sep="\n  ")


if __name__ == "__main__":
    main()
