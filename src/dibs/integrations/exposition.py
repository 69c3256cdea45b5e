"""The text format of Prometheus: series of numbers, with names and labels."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds

Labels = tuple[tuple[str, str], ...]

_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def series(name: str, sort: str, help: str, values: Mapping[Labels, Any]) -> Iterator[str]:
    yield from _head(f"dibs_{name}", sort, help)
    for labels, value in sorted(values.items()):
        yield f"dibs_{name}{_labels(labels)} {value}"


class Durations:
    """How long things took, as a histogram."""

    def __init__(self, name: str, help: str) -> None:
        self._name = f"dibs_{name}"
        self._help = help
        self._buckets: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: Counter[Labels] = Counter()

    def add(self, labels: Labels, seconds: float) -> None:
        self._buckets[labels][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[labels] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        yield from _head(self._name, "histogram", self._help)
        for labels, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, number in zip([*map(str, BOUNDS), "+Inf"], buckets, strict=True):
                total += number
                yield f"{self._name}_bucket{_labels((*labels, ('le', bound)))} {total}"
            yield f"{self._name}_sum{_labels(labels)} {self._seconds[labels]:.6f}"
            yield f"{self._name}_count{_labels(labels)} {total}"


def side_by_side(texts: Sequence[str | None]) -> str:
    """The texts of several processes of one store as one; None is one that did not answer.

    What a process counted gets its number as a label: a sum would fall when one of them is
    replaced. What it says of the store is the same for all of them and is said once.
    """
    found: dict[str, dict[str, str]] = {}
    heads: dict[str, list[str]] = {}
    for number, text in enumerate(texts, 1):
        _sort_in(found, heads, str(number), text or "")
    return "".join(
        f"{line}\n" for name, head in heads.items() for line in (*head, *found.get(name, {}).values())
    )


def _sort_in(found: dict[str, dict[str, str]], heads: dict[str, list[str]], process: str, text: str) -> None:
    family, sort = "", ""
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, family, rest = line.split(" ", 3)
            sort = rest if word == "TYPE" else sort
            if line not in (head := heads.setdefault(family, [])):
                head.append(line)
        elif sample := _SAMPLE.match(line):
            name, labels, value = sample["name"], sample["labels"], sample["value"]
            if sort != "gauge":
                labels = ",".join(filter(None, (f'process="{process}"', labels)))
            shown = name if not labels else f"{name}{{{labels}}}"
            found.setdefault(family, {}).setdefault(shown, f"{shown} {value}")


def _head(name: str, sort: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {sort}"


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
