"""The words of the model of gates and pipelines: what there is, what is promised, what may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from dibs.states import JobState

# -- what there is ------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What its producer said of a job."""

    gate: str = ""  # train | slot | neither
    producer: int = 0
    limit: int = 1
    policy: str = "wait"
    on_failed: str = "advance"
    parents: tuple[int, ...] = ()
    dooms: bool = True  # those after it are cancelled when it fails


class Job(NamedTuple):
    """A job as the store has it; only an all-seeing judge knows the `order` in which jobs must come."""

    state: JobState | None = None  # None: not stored
    place: int | None = None
    token: int = 0
    attempts: int = 0
    expired: bool = False
    asked: bool = False  # to stop
    doomed: bool = False  # cancelled for a job before it
    order: int = 0


class Gate(NamedTuple):
    last: int = 0
    held_by: int | None = None
    locked_by: int | None = None
    newest: int = 0  # the judge's: the greatest order that was given out


class Unborn(NamedTuple):
    """A job whose producer has not committed yet."""

    producer: int
    job: int
    place: int
    is_free: bool  # whether the gate had room when its producer looked


class Hold(NamedTuple):
    worker: int
    job: int
    token: int


class Look(NamedTuple):
    """What somebody saw, or did not do yet; only mutants have them."""

    verb: str
    actor: int
    job: int
    saw: bool = True


class World(NamedTuple):
    jobs: tuple[Job, ...]
    todo: tuple[tuple[int, ...], ...]  # per producer
    gate: Gate = Gate()
    unborn: tuple[Unborn, ...] = ()
    holds: tuple[Hold, ...] = ()
    looks: tuple[Look, ...] = ()
    newest_token: int = 0
    torn: bool = False  # somebody deleted a row by hand, and nobody mended the gate yet
    losses: int = 0
    gifts: int = 0
    people: int = 0


class Deed(NamedTuple):
    verb: str
    job: int = -1
    actor: int = -1
    end: str = ""


Steps = Iterator[tuple[Deed, World]]


# -- what is promised ---------------------------------------------------------------------------------


class Promise(StrEnum):
    one_at_a_time = "of a train one job runs at a time"
    in_order = "jobs of a train start in the order of their enqueue"
    within_limit = "in a slot no more run than the strictest of them allows"
    somebody_goes = "while somebody waits at a gate that is not held, somebody goes"
    held_holds = "nobody of a held train goes before a person has come"
    heads_hold = "only the head of a train holds it"
    ended_stays = "whoever has ended comes back only by a person"
    running_is_spared = "whoever runs is ended by itself or by the end of its lease"
    newer_stays = "whoever pre-empts is asked to stop only by one that goes before it"
    urgent_asks = "whoever pre-empts and is next has asked all who are in its way"
    parents_first = "nobody starts before all whom it waits for have succeeded"
    children_go = "whoever waits for nobody any more is let go"
    doomed_end = "those after a job that failed are cancelled with it, unless their pipeline holds"
    drop_keeps_room = "whoever is to be dropped where there is no room is not stored there"
    can_finish = "from everywhere all jobs can still end, or wait for a person"


class Mutant(StrEnum):
    place_by_luck = "places come from a sequence, and nothing is locked"
    gate_not_locked = "a producer looks who is at the gate, and does not keep others out"
    advance_first = "the next one is let through before the end of the head is stored"
    advance_later = "the next one is let through after the end of the head was stored"
    back_to_the_end = "a head that comes back goes to the end of its train"
    held_goes_on = "a producer lets the head of a held train go"
    follower_holds = "whoever is cancelled holds its train"
    settle_unfenced = "a settlement counts though its claim no longer holds the job"
    nobody_counts = "a slot does not count who runs"
    own_limit_only = "a slot heeds only the limit of the one who comes"
    overtake_looks_first = "whoever overtakes looks who runs, and then goes"
    turn_passed_unseen = "a turn is passed on though it was just taken"
    preempt_takes_away = "a job that pre-empts does not wait until the other has stopped"
    older_preempts = "a job that pre-empts asks also newer ones of its kind to stop"
    ready_uncounted = "a job that pre-empts takes the place of who is ready for its own"
    replace_ends_all = "a job that replaces ends also who runs"
    drop_looks_first = "a job to be dropped looks for room, and does not keep others out"
    any_parent = "the first parent that succeeds lets its children go"
    parents_look_first = "parents look for each other, and do not keep each other out"
    zombie_lets_go = "a parent that is no longer the holder lets its children go"
    doomed_wait = "those after a failed job wait for it for ever"
    nobody_mends = "a gate whose jobs were deleted by hand is not looked at"


CAUGHT_BY = {
    Mutant.place_by_luck: Promise.in_order,
    Mutant.gate_not_locked: Promise.one_at_a_time,
    Mutant.advance_first: Promise.one_at_a_time,
    Mutant.advance_later: Promise.somebody_goes,
    Mutant.back_to_the_end: Promise.in_order,
    Mutant.held_goes_on: Promise.held_holds,
    Mutant.follower_holds: Promise.heads_hold,
    Mutant.settle_unfenced: Promise.ended_stays,
    Mutant.nobody_counts: Promise.within_limit,
    Mutant.own_limit_only: Promise.within_limit,
    Mutant.overtake_looks_first: Promise.within_limit,
    Mutant.turn_passed_unseen: Promise.within_limit,
    Mutant.preempt_takes_away: Promise.within_limit,
    Mutant.older_preempts: Promise.newer_stays,
    Mutant.ready_uncounted: Promise.urgent_asks,
    Mutant.replace_ends_all: Promise.running_is_spared,
    Mutant.drop_looks_first: Promise.drop_keeps_room,
    Mutant.any_parent: Promise.parents_first,
    Mutant.parents_look_first: Promise.children_go,
    Mutant.zombie_lets_go: Promise.parents_first,
    Mutant.doomed_wait: Promise.doomed_end,
    Mutant.nobody_mends: Promise.can_finish,
}

UNLOCKED = (Mutant.place_by_luck, Mutant.gate_not_locked, Mutant.drop_looks_first)
ENDS = ("succeed", "fail", "snooze", "release")
GIFTS = ("snooze", "release")
