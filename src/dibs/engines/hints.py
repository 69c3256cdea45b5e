"""Hints: what an enqueue announces, how often, and to which listeners of this process."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dibs.clock import monotonic
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import SETTLEMENT_COLUMNS, STOP_HINT, hint_of
from dibs.operations.scripts import Rows, Step

_KIND, _QUEUE = NEW_JOB_COLUMNS.index("kind"), NEW_JOB_COLUMNS.index("queue")

EVERY = 0.02  # seconds between two hints for one queue


def hints_for(jobs: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """Return one hint per queue of these jobs, which are rows of `NEW_JOB_COLUMNS`."""
    kinds: dict[str, set[str]] = {}
    for job in jobs:
        kinds.setdefault(job[_QUEUE], set()).add(job[_KIND])
    return {queue: hint_of(queue, kinds[queue]) for queue in sorted(kinds)}


class Hints:
    """Hints of one process: the first for a queue at once, then at most every 20 ms.

    On PostgreSQL a notification takes a lock of the whole server at commit, so there is never one per job.
    A woken worker polls twice, and so finds the jobs that came in between.
    """

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}

    def due(self, jobs: Sequence[tuple[Any, ...]], *, always: bool = False) -> list[str]:
        now = monotonic()
        hints = hints_for(jobs)
        due = [queue for queue in hints if always or now - self._sent.get(queue, -1.0) >= EVERY]
        self._sent |= dict.fromkeys(due, now)
        return [hints[queue] for queue in due]


# Questions after which an idle worker may find something to do.
ANNOUNCED = frozenset(
    {
        *("enqueue", "enqueue_pipeline", "retry", "recover", "set_queue", "echo", "delete"),
        *("release_train", "arrive"),
    }
)
CHANGING = frozenset({"sweep", "enqueue_tick"})  # the same, if they changed anything

_POLICY = NEW_JOB_COLUMNS.index("slot_policy")
_TRAIN, _SLOT = SETTLEMENT_COLUMNS.index("train"), SETTLEMENT_COLUMNS.index("slot")


class Listeners:
    """Listeners of this process, for a store that can't send hints itself."""

    def __init__(self) -> None:
        self._hear: list[Callable[[str], None]] = []

    @contextmanager
    def listening(self, hear: Callable[[str], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def announce(hint: str) -> None:
            with suppress(RuntimeError):  # its loop has just ended
                loop.call_soon_threadsafe(hear, hint)

        self._hear.append(announce)
        try:
            yield
        finally:
            self._hear.remove(announce)

    def announce(self, step: Step, rows: Rows) -> None:
        if not self._hear:
            return
        if step.question in ANNOUNCED or (rows and step.question in CHANGING):
            self._send(step.params.get("hint", ""))
            if step.question == "enqueue" and any(job[_POLICY] == "preempt" for job in step.params["jobs"]):
                self._send(STOP_HINT)  # to any worker that has the slot
        elif step.question == "cancel":
            for worker in {row["worker"] for row in rows}:
                self._send("" if worker is None else STOP_HINT + worker)
        elif step.question in ("settle", "exchange") and (
            "steps" in step.params or any(map(_opens_gate, step.params["settlements"]))
        ):
            self._send("")

    def _send(self, hint: str) -> None:
        for hear in list(self._hear):
            hear(hint)


def _opens_gate(settlement: Sequence[Any]) -> bool:
    return settlement[_TRAIN] is not None or settlement[_SLOT] is not None
