"""Kinds of ready jobs that this worker does not know: said once each, and left for one that does."""

from collections.abc import Collection, Sequence

from dibs.events import log
from dibs.operations.scripts import Script, Step

MOST_REMEMBERED = 1000  # kinds; whoever makes up more of them has heard enough


class Strangers:
    """Remembers which kinds have been mentioned."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def mention(self, lines: Sequence[tuple[str, str]], known: Collection[str]) -> None:
        """One line in the log for every kind that is new to us."""
        for queue, kind in self.new_among(lines, known):
            log.warning(
                "● no handler here for the kind %r: its jobs in the queue %r wait for a worker that has one",
                kind,
                queue,
                extra={"fields": {"event": "unknown_kind", "kind": kind, "queue": queue}},
            )

    def new_among(self, lines: Sequence[tuple[str, str]], known: Collection[str]) -> list[tuple[str, str]]:
        """(queue, kind) of the first line of every kind that is neither known nor was mentioned before."""
        fresh: dict[str, str] = {}
        for queue, kind in lines:
            if kind not in known and kind not in self._said and len(self._said) < MOST_REMEMBERED:
                fresh[kind] = queue
                self._said.add(kind)
        return [(queue, kind) for kind, queue in fresh.items()]


def ready_lines(queues: Sequence[str] | None) -> Script[list[tuple[str, str]]]:
    """Which (queue, kind) have ready jobs in these queues."""
    rows = yield Step("ready_lines", {"queues": queues})
    return [(row["queue"], row["kind"]) for row in rows]
