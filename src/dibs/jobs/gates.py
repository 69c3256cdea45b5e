"""Which jobs of a train or slot may go (ADR 12): decided here, without a store or a clock.

Memory, SQLite, MySQL and PostgreSQL lock a gate, load the few rows that a decision needs, ask one of these
functions, and apply its answer. docs/internals/gates.md has the rules in words.

Two stores repeat rules. `tests/model/test_gates_agree.py` and `test_pipelines_agree.py` compare both with
memory in random runs, and mutants there and in `tests/faults` break the copies:

- Redis decides inside a script: the list is at the top of lua/lib/gate.lua.
- PostgreSQL repeats `open_train` in `open_trains`, which advances trains in one statement, and
  `waiting_needed` in the fragment `enough`, both in gates.sql.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args
from uuid import UUID

from msgspec import Struct

from dibs.clock import SECOND
from dibs.jobs.states import JobState, SlotPolicy

SLOT_POLICIES = get_args(SlotPolicy)

OFFER = 10 * SECOND  # within which a ready job of a slot must be claimed while another waits behind it
WAITING_READ = 100  # blocked jobs read at the end of an offer, to find one of another queue or kind

Key = tuple[str, str]  # "train" or "slot", and its name


class GateJob(Struct, frozen=True, gc=False):
    """A job at a gate, as far as a decision needs it."""

    id: UUID
    state: str
    position: int
    slot_limit: int = 1
    priority: int = 0
    run_at: Any = 0
    """In the form of its store; compared with other times of that store only."""
    queue: str = ""
    kind: str = ""
    token: int | None = None
    asked: bool = False
    """Whether it was asked to stop."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "GateJob":
        """Return the job of a row that may have other columns, too."""
        return cls(*(row[name] for name in cls.__struct_fields__))

    @property
    def turn(self) -> tuple[Any, ...]:
        """Its rank in the order of every gate."""
        return self.position, -self.priority, self.run_at, self.id


class Left(Struct, frozen=True, gc=False):
    """A job that is no longer on its train; `holds` if its end is one that an operator must look at."""

    id: UUID
    position: int
    holds: bool


class TrainOpening(Struct, frozen=True, gc=False):
    """What becomes of a train: the ended job that holds it, and whether its head may go."""

    held_by: UUID | None
    opens: bool


class SlotOpening(Struct, frozen=True, gc=False):
    """What becomes of a slot: jobs that change their state, jobs asked to stop, and its offer."""

    ready: list[GateJob]
    """All that are ready now, with the ones that were before."""
    let_through: list[UUID]
    sent_back: list[UUID]
    asked: list[UUID]
    reason: str | None
    offer: Literal["none", "kept", "new"]


# -- Where a job stands -------------------------------------------------------------------------


def has_gate(job: Mapping[str, Any]) -> bool:
    return job["train"] is not None or job["slot"] is not None


def gate_of(job: Mapping[str, Any]) -> Key:
    return ("train", job["train"]) if job["train"] is not None else ("slot", job["slot"])


def new_position(sort: str, slot_policy: str | None, last: int) -> int:
    """Return the position of a job that comes to a gate, the last position given there being `last`.

    The jobs of a train follow one another. In a slot all have 0, but a pre-empting job is before all others.
    """
    if sort == "train":
        return last + 1
    return -(last + 1) if slot_policy == "preempt" else 0


def fits(limit: int, going: Sequence[int]) -> bool:
    """Return whether a job may go beside others of its slot, given their limits: the strictest counts."""
    return len(going) < min([limit, *going])


def kept_instead(limit: int, members: Sequence[GateJob]) -> UUID | None:
    """Return the job that is kept instead of a new one with the policy `drop`, if there is no room for both.

    The first `limit` jobs of the slot are enough, if the running ones come first.
    """
    if fits(limit, _limits(members)):
        return None
    return min(members, key=lambda job: (job.state != JobState.running, job.turn)).id


# -- Trains -------------------------------------------------------------------------------------


def holds(state: JobState, on_cancelled: str, on_failed: str) -> bool:
    """Return whether a train waits for an operator when its head ends like this."""
    policy = {JobState.cancelled: on_cancelled, JobState.failed: on_failed}.get(state)
    return policy == "hold"


def left_train(job: Mapping[str, Any], state: str | None) -> Left:
    """Return the value for a job that ended in this state, or was deleted (None)."""
    stops = state is not None and holds(JobState(state), job["on_cancelled"], job["on_failed"])
    return Left(job["id"], job["position"], stops)


def first_to_hold(left: Sequence[Left]) -> Left | None:
    """Return the first of these, as they left, that says hold and that no later one was before.

    The caller compares it with the head that is left. If it was not the head, no later one was either.
    """
    for at, job in enumerate(left):
        if job.holds and all(job.position < other.position for other in left[at + 1 :]):
            return job
    return None


def open_train(head: GateJob | None, held_by: UUID | None, left: Sequence[Left] = ()) -> TrainOpening:
    """Decide about a train from the first job that is still there and the jobs that have just left it."""
    first = first_to_hold(left)
    if held_by is None and first is not None and (head is None or first.position < head.position):
        held_by = first.id
    return TrainOpening(held_by, held_by is None and head is not None and head.state == JobState.blocked)


# -- Slots --------------------------------------------------------------------------------------


def waiting_needed(jobs: Iterable[GateJob]) -> int:
    """Return how many blocked jobs `open_slot` needs, given the first of them.

    No more of them can go than the first allows, and one more shows whether a job waits.
    """
    waiting = [job for job in jobs if job.state == JobState.blocked]
    return 1 + min(waiting, key=_turn).slot_limit if waiting else 0


def open_slot(jobs: Iterable[GateJob], *, has_offer: bool, mends: bool = False) -> SlotOpening:
    """Decide about a slot from its running and ready jobs and the first of its blocked ones, in any order.

    A ready job has not started, so a more urgent one may take its turn. Upkeep (`mends`) does not repeat an
    offer that changed nothing.
    """
    running, others = _parted(jobs)
    chosen, waiting = _chosen(running, others)
    let_through = [job.id for job in chosen if job.state == JobState.blocked]
    offer: Literal["none", "kept", "new"] = "none"
    if chosen and waiting:
        offer = "new" if let_through or not (has_offer or mends) else "kept"
    asked = _in_the_way(waiting[0], running, chosen) if waiting and waiting[0].position < 0 else []
    return SlotOpening(
        ready=chosen,
        let_through=let_through,
        sent_back=[job.id for job in waiting if job.state == JobState.ready],
        asked=asked,
        reason=f"pre-empted by {waiting[0].id}" if asked else None,
        offer=offer,
    )


def has_room(limit: int, jobs: Iterable[GateJob]) -> bool:
    """Return whether a blocked job may be claimed by name, before the ready ones: they have not started."""
    return fits(limit, [job.slot_limit for job in jobs if job.state == JobState.running])


def giving_way(jobs: Iterable[GateJob]) -> list[GateJob]:
    """Return the ready jobs of a slot that give way at the end of their offer, in the order of their turns.

    A job gives way to one of another queue or kind only: a worker that does not claim this job claims none
    like it either. Where `WAITING_READ` jobs wait, one of another kind may be behind them.
    """
    _, others = _parted(jobs)
    waiting = [(job.queue, job.kind) for job in others if job.state == JobState.blocked]
    ready = [job for job in others if job.state == JobState.ready]
    if len(waiting) >= WAITING_READ:
        return ready
    return [job for job in ready if any((job.queue, job.kind) != other for other in waiting)]


def _parted(jobs: Iterable[GateJob]) -> tuple[list[GateJob], list[GateJob]]:
    """Return (the running jobs by their start, the others by their turn)."""
    running: list[GateJob] = []
    others: list[GateJob] = []
    for job in jobs:
        (running if job.state == JobState.running else others).append(job)
    return sorted(running, key=lambda job: job.token or 0), sorted(others, key=_turn)


def _chosen(running: Sequence[GateJob], others: Sequence[GateJob]) -> tuple[list[GateJob], list[GateJob]]:
    """Return (the jobs that may go, the jobs that wait): in order, up to the first that does not fit."""
    going = _limits(running)
    for at, job in enumerate(others):
        if not fits(job.slot_limit, going):
            return list(others[:at]), list(others[at:])
        going.append(job.slot_limit)
    return list(others), []


def _in_the_way(first: GateJob, running: Sequence[GateJob], ready: Sequence[GateJob]) -> list[UUID]:
    """Return the running jobs that a pre-empting job asks to stop, the oldest start first.

    As many as it takes for it to fit once all that were asked have ended and the ready ones have started; but
    none that is before it: a newer pre-empting job.
    """
    staying = [job for job in running if not job.asked]
    behind = [job for job in staying if job.position > first.position]
    asked: list[UUID] = []
    while behind and not fits(first.slot_limit, _limits([*ready, *staying])):
        staying.remove(behind[0])
        asked.append(behind.pop(0).id)
    return asked


def _turn(job: GateJob) -> tuple[Any, ...]:
    return job.turn


def _limits(jobs: Iterable[GateJob]) -> list[int]:
    return [job.slot_limit for job in jobs]
