"""One word means one thing: modules and classes use the words of the glossary, and none that it replaces."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tools.house import ROOT, House

CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()
GLOSSARY = re.findall(r"^- \*\*(.+?)\*\* — (.+)$", CONCEPTS, re.MULTILINE)
REPLACED = dict(re.findall(r"^- \*\*(.+?)\*\* → (.+)$", CONCEPTS, re.MULTILINE))

# A public name that keeps a replaced word is said beside the word, in backticks.
PUBLIC = {name for words in REPLACED.values() for name in re.findall(r"`(\w+)`", words)}
# "tick (of a worker)" is about one use of a word, which only a reader can tell from the others.
ALWAYS = {word for word in REPLACED if "(" not in word and " " not in word}


def _words(name: str) -> set[str]:
    """Return the words of a name in snake or camel case, in lower case and without a plural s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


@cache
def _names() -> dict[str, str]:
    """Return each module and class with where it is."""
    house = House()
    found = {path.stem: str(path.relative_to(house.source)) for path in house.files}
    for path, node in house.definitions():
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"{path.relative_to(house.source)}:{node.lineno}"
    return found


def test_the_glossary_explains_each_word_once_in_alphabetical_order() -> None:
    words = [word for word, _ in GLOSSARY]

    assert len(words) > 50
    assert words == sorted(set(words), key=lambda word: (word.lower(), word))
    assert all(meaning.endswith(".") and len(meaning) < 300 for _, meaning in GLOSSARY)


def test_no_word_is_both_explained_and_replaced() -> None:
    assert not {word for word, _ in GLOSSARY} & ALWAYS


@pytest.mark.parametrize("word", sorted(ALWAYS))
def test_no_module_or_class_is_named_by_a_replaced_word(word: str) -> None:
    named = {name: place for name, place in _names().items() if word in _words(name) and name not in PUBLIC}

    assert not named, f"say {REPLACED[word]!r} instead of {word!r}"


def test_a_public_name_that_keeps_a_replaced_word_exists() -> None:
    sources = "\n".join(House().files.values())

    assert not {name for name in PUBLIC if not re.search(rf"\b{name}\b", sources)}


def test_the_words_that_a_newcomer_meets_first_are_explained() -> None:
    needed = "job queue kind lease token attempt train slot pipeline gate schedule outbox worker claim settle"

    assert set(needed.split()) <= {word for word, _ in GLOSSARY}


def test_documents_exist_where_the_concepts_link_to() -> None:
    links = re.findall(r"\]\(([^)#]+)", CONCEPTS)

    assert all((Path(ROOT / "docs") / link).exists() for link in links)
