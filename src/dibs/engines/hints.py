"""Hints: what an enqueue announces, how often, and to which listeners of this process."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import UUID

from dibs.clock import monotonic
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.questions import SETTLEMENT_COLUMNS, STOP_HINT
from dibs.operations.scripts import Rows, Step, Tuples

_ID, _KIND, _QUEUE, _PRIORITY, _RUN_AT, _DELAY = (
    NEW_JOB_COLUMNS.index(name) for name in ("id", "kind", "queue", "priority", "run_at", "delay")
)

# A hint that wakes workers is a queue's name, or empty for any queue; a kind may follow, if there is but one,
# and after it the priority and the id of the job, if there is but one that the hint is about.
_FOLLOWS = "\x1f"

EVERY = 0.02  # seconds between two hints, while jobs come fast
MODERATE = 0.004  # seconds from job to job, on average, from which on each gets a hint
SMOOTH = 8  # jobs over which that average is taken
MOST_PACES = 10_000


def hint_of(queue: str, kinds: Collection[str]) -> str:
    """Return the hint that there are jobs in this queue, of these kinds."""
    return _FOLLOWS.join([queue, *kinds]) if len(kinds) == 1 else queue


def hint_of_job(queue: str, kind: str, priority: int, id: UUID) -> str:
    """Return the hint that there is this job, and no other that was not announced."""
    return _FOLLOWS.join([queue, kind, str(priority), str(id)])


class Hint(NamedTuple):
    """A hint as a worker reads it."""

    queue: str
    kind: str | None = None
    priority: int = 0
    id: UUID | None = None


def read_hint(text: str) -> Hint:
    """Return what a hint says; a worker may be older or younger than the sender."""
    queue, *about = text.split(_FOLLOWS)
    if len(about) < 3:
        return Hint(queue, about[0] if about else None)
    kind, priority, id, *_ = about
    return Hint(queue, kind, int(priority), UUID(id))


def hints_for(jobs: Tuples) -> dict[str, str]:
    """Return one hint per queue of these jobs, which are rows of `NEW_JOB_COLUMNS`."""
    kinds: dict[str, set[str]] = {}
    for job in jobs:
        kinds.setdefault(job[_QUEUE], set()).add(job[_KIND])
    return {queue: hint_of(queue, kinds[queue]) for queue in sorted(kinds)}


class Hints:
    """Hints of one process: for every job while jobs come at a moderate rate, else every 20 ms per queue.

    On PostgreSQL a notification takes a lock of the whole server at commit, so in a flood there is never one
    per job. A woken worker polls twice, and so finds the jobs that came in between. A hint that names its job
    (`naming`) says also that all jobs before it were announced.
    """

    def __init__(self, *, naming: bool = False) -> None:
        self._naming = naming
        self._paces: dict[tuple[str, str, int], Pace] = {}

    def due(self, jobs: Tuples, *, always: bool = False) -> list[str]:
        now = monotonic()
        first_of = {job[_QUEUE]: job for job in reversed(jobs)}
        hints = hints_for(jobs)
        due = []
        for queue, job in first_of.items():
            pace = self._pace(queue, job)
            is_alone = not pace.has_skipped and len(jobs) == 1 and job[_RUN_AT] is None and not job[_DELAY]
            if pace.is_due(now) or always:
                named = (queue, job[_KIND], job[_PRIORITY], job[_ID])
                due.append(hint_of_job(*named) if self._naming and is_alone else hints[queue])
                pace.sent(now)
        return due

    def _pace(self, queue: str, job: tuple[Any, ...]) -> "Pace":
        """Return the pace of jobs like this one; a more urgent job is announced however many others come."""
        if len(self._paces) > MOST_PACES:
            self._paces.clear()
        return self._paces.setdefault((queue, job[_KIND], job[_PRIORITY]), Pace())


class Pace:
    """How fast jobs come that one hint could announce."""

    def __init__(self) -> None:
        self._last = self._sent = float("-inf")
        self._gap = EVERY  # seconds between two of them, on average
        self.has_skipped = False
        """Whether a job came since the last hint without one of its own."""

    def is_due(self, now: float) -> bool:
        """Note that a job came; return whether it should be announced."""
        self._gap += (min(now - self._last, EVERY) - self._gap) / SMOOTH
        self._last = now
        self.has_skipped = not (self._gap >= MODERATE or now - self._sent >= EVERY)
        return not self.has_skipped

    def sent(self, now: float) -> None:
        self._sent, self.has_skipped = now, False


# Questions after which an idle worker may find something to do.
ANNOUNCED = frozenset(
    {
        *("enqueue", "enqueue_pipeline", "retry", "recover", "set_queue", "echo", "delete"),
        *("release_train", "arrive", "set_schedule", "update"),
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
            "steps" in step.params
            or any((one[_TRAIN], one[_SLOT]) != (None, None) for one in step.params["settlements"])
        ):
            self._send("")

    def _send(self, hint: str) -> None:
        for hear in list(self._hear):
            hear(hint)
