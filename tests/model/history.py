"""A checker of histories: what the store noted, what clients were told, what the sink took.

The store's journal is the truth. Its order is taken from the row locks, so it is real for each job and
no clock is needed. Clients note what they asked and were told. `check` answers every rule that the whole
of it breaks; nothing means that the contract allows this history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dibs.jobs.states import FINISHED, TRANSITIONS, WAITING, JobState

JobId = Hashable


# -- what was recorded --------------------------------------------------------------------------------


class Change(NamedTuple):
    """The store changed a job; `before` is None when it was stored."""

    job: JobId
    before: str | None
    after: str
    token: int = 0  # of the latest claim
    settled: tuple[int, str] | None = None  # the settlement that made this change: token and end
    renewed: bool = False
    asked: bool = False  # somebody asked the holder to cancel, no more
    early: bool = False  # its lease had not run out yet


class Told(NamedTuple):
    """A client asked and was told: ok, lost (it is no longer the holder), or unknown (no reply came)."""

    verb: str  # claim, settle, renew, retry
    job: JobId
    token: int = 0
    end: str = ""
    answer: str = "ok"


class Took(NamedTuple):
    """The fenced sink let an effect through, in its own order."""

    job: JobId
    token: int


@dataclass(slots=True)
class History:
    changes: list[Change] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    took: list[Took] = field(default_factory=list)
    max_attempts: dict[JobId, int] = field(
        default_factory=dict
    )  # of every job whose enqueue was acknowledged
    final: dict[JobId, str] = field(default_factory=dict)  # after the drain


GIVEN_BACK = ("released", "snoozed")


class Rule(StrEnum):
    nothing_lost = "every job that was acknowledged is there in the end"
    nothing_stuck = "every job has finished after the drain"
    nothing_unexpected = "there is no job that nobody enqueued"
    legal_path = "a job moves only along the transitions of dibs.jobs.states, without jumps"
    finished_is_final = "a finished job is left alone unless a person retries it"
    finished_once = "a job finishes once"
    tokens_grow = "each claim of a job has a greater token than the one before"
    claimed_when_ready = "no job is claimed while it is leased"
    settled_by_the_holder = "only the holder's token settles"
    lease_kept = "no lease is taken back before it ran out"
    renewed_by_the_holder = "only the holder renews"
    asked_never_waits = "a job that was asked to cancel never waits again"
    attempts_count = "a job runs at most max_attempts times, those given back apart"
    tokens_received = "the tokens given out are those received"
    truth_told = "nobody is told a false outcome"
    sink_in_order = "the sink never takes an older token after a newer one"


class Broken(NamedTuple):
    rule: Rule
    job: JobId
    says: str


Findings = Iterator[Broken]


def check(history: History) -> list[Broken]:
    """Every rule that this history breaks, with the job and what was seen."""
    return [
        *_check_ends(history),
        *(broken for changes in _by_job(history.changes) for broken in _check_path(changes, history)),
        *_check_claims(history),
        *_check_renewals(history),
        *_check_settlements(history),
        *_check_sink(history.took),
    ]


def rules_broken(history: History) -> set[Rule]:
    return {broken.rule for broken in check(history)}


# -- all jobs -----------------------------------------------------------------------------------------


def _check_ends(history: History) -> Findings:
    for job in history.max_attempts:
        state = history.final.get(job)
        if state is None:
            yield Broken(Rule.nothing_lost, job, "is gone")
        elif state not in FINISHED:
            yield Broken(Rule.nothing_stuck, job, f"is still {state}")
    for job in history.final.keys() - history.max_attempts.keys():
        yield Broken(Rule.nothing_unexpected, job, "was never enqueued")


# -- one job through the journal ----------------------------------------------------------------------


@dataclass(slots=True)
class _Path:
    """Where a job stands while its changes are read one by one."""

    job: JobId
    max_attempts: int
    retries_left: int
    state: str | None = None
    newest_token: int = 0
    holder: int | None = None
    asked: bool = False
    finishes: int = 0
    runs: int = 0


def _check_path(changes: Sequence[Change], history: History) -> Findings:
    job = changes[0].job
    retries = sum((each.verb, each.job) == ("retry", job) for each in history.told)
    path = _Path(job, history.max_attempts.get(job, 0), retries)
    for change in changes:
        yield from _check_move(path, change)
        if _is_claim(change):
            yield from _check_claim(path, change)
        elif change.settled is not None:
            yield from _check_settlement(path, change)
        elif path.state == JobState.running and change.after != JobState.running and change.early:
            yield Broken(Rule.lease_kept, job, f"{change} though the lease had not run out")
        if path.asked and change.after in WAITING:
            yield Broken(Rule.asked_never_waits, job, f"{change}")
        _follow(path, change)
        yield from _check_counts(path)


def _check_move(path: _Path, change: Change) -> Findings:
    if change.before != path.state:
        yield Broken(Rule.legal_path, path.job, f"was {path.state}, then {change}")
    if change.before is None:
        if change.after not in (JobState.ready, JobState.scheduled):
            yield Broken(Rule.legal_path, path.job, f"begins with {change}")
        return
    if change.before in FINISHED and change.after not in FINISHED:
        path.retries_left -= 1
        if path.retries_left < 0 or change.before == JobState.succeeded:
            yield Broken(Rule.finished_is_final, path.job, f"{change} and nobody retried it")
    if change.after != change.before and change.after not in TRANSITIONS[JobState(change.before)]:
        yield Broken(Rule.legal_path, path.job, f"{change}")


def _check_claim(path: _Path, change: Change) -> Findings:
    if change.token <= path.newest_token:
        yield Broken(Rule.tokens_grow, path.job, f"token {change.token} after {path.newest_token}")
    if path.state == JobState.running:
        yield Broken(Rule.claimed_when_ready, path.job, f"{change} while {path.holder} held it")


def _check_settlement(path: _Path, change: Change) -> Findings:
    assert change.settled is not None
    if change.settled[0] != path.holder:
        yield Broken(Rule.settled_by_the_holder, path.job, f"{change}, the holder is {path.holder}")


def _follow(path: _Path, change: Change) -> None:
    if change.before in FINISHED and change.after not in FINISHED:
        path.finishes = path.runs = 0
    if _is_claim(change):
        path.runs += 1
        path.newest_token = max(path.newest_token, change.token)
        path.holder = change.token
    if change.settled is not None and change.settled[1] in GIVEN_BACK:
        path.runs -= 1
    if change.after != JobState.running:
        path.holder = None
    path.finishes += change.after in FINISHED
    path.state = change.after
    path.asked = (path.asked or change.asked) and change.after == JobState.running


def _check_counts(path: _Path) -> Findings:
    if path.finishes > 1:
        yield Broken(Rule.finished_once, path.job, f"finished {path.finishes} times")
    if not 0 <= path.runs <= path.max_attempts:
        yield Broken(Rule.attempts_count, path.job, f"ran {path.runs} times, may {path.max_attempts}")


def _is_claim(change: Change) -> bool:
    """Also a claim of a job that was running already, which is what must not be."""
    return change.after == JobState.running and not change.renewed and not change.asked


def _by_job(changes: Sequence[Change]) -> list[list[Change]]:
    found: dict[JobId, list[Change]] = {}
    for change in changes:
        found.setdefault(change.job, []).append(change)
    return list(found.values())


# -- the clients against the journal ------------------------------------------------------------------


def _check_claims(history: History) -> Findings:
    issued = Counter((each.job, each.token) for each in history.changes if _is_claim(each))
    received = Counter((each.job, each.token) for each in history.told if each.verb == "claim")
    for job, token in issued.keys() | received.keys():
        given, got = issued[job, token], received[job, token]
        if given != got:
            yield Broken(Rule.tokens_received, job, f"token {token} was given {given}x, received {got}x")


def _check_renewals(history: History) -> Findings:
    renewed = Counter((each.job, each.token) for each in history.changes if each.renewed)
    asked = Counter(
        (each.job, each.token) for each in history.told if each.verb == "renew" and each.answer != "lost"
    )
    for (job, token), times in (renewed - asked).items():
        yield Broken(Rule.renewed_by_the_holder, job, f"token {token} was renewed {times}x by somebody else")


def _check_settlements(history: History) -> Findings:
    applied = {(each.job, each.settled) for each in history.changes if each.settled is not None}
    latest = _latest_settlements(history.changes)
    for told in (each for each in history.told if each.verb == "settle"):
        this = (told.token, told.end)
        if told.answer == "ok" and (told.job, this) not in applied:
            yield Broken(Rule.truth_told, told.job, f"{told}, but it was never applied")
        if told.answer == "lost" and latest.get(told.job) == this:
            yield Broken(Rule.truth_told, told.job, f"{told}, but it had won")


def _latest_settlements(changes: Sequence[Change]) -> Mapping[JobId, tuple[int, str]]:
    return {each.job: each.settled for each in changes if each.settled is not None}


def _check_sink(took: Sequence[Took]) -> Findings:
    newest: dict[JobId, int] = {}
    for job, token in took:
        if token < newest.get(job, 0):
            yield Broken(Rule.sink_in_order, job, f"token {token} after {newest[job]}")
        newest[job] = max(token, newest.get(job, 0))
