"""The history checker accepts what the contract allows, and flags every way to break it.

Random walks through the model of the protocol feed it: the right protocol never raises an alarm, every
mutant is flagged by the rule that it was made for. Then come corruptions of a good history by hand, and
last a real run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from dibs.jobs.states import FINISHED, JobState
from tests.model.beside import make_app, take_out
from tests.model.crowd import Crowd
from tests.model.history import Broken, Change, History, Rule, Told, Took, check, rules_broken
from tests.model.journal import install_journal, read_journal
from tests.model.protocol import Deed, Mutant, Protocol, World
from tests.support.servers import MariaDB, MySQLServer, PostgreSQL

FLAGGED_BY = {
    Mutant.claim_looks_first: Rule.claimed_when_ready,
    Mutant.token_not_raised: Rule.tokens_grow,
    Mutant.token_starts_anew: Rule.tokens_grow,
    Mutant.settle_by_id: Rule.settled_by_the_holder,
    Mutant.settle_by_state: Rule.settled_by_the_holder,
    Mutant.settle_by_token: Rule.finished_once,
    Mutant.winner_forgotten: Rule.truth_told,
    Mutant.everybody_told_yes: Rule.truth_told,
    Mutant.renew_by_state: Rule.renewed_by_the_holder,
    Mutant.sweep_looks_first: Rule.finished_is_final,
    Mutant.sweep_at_any_time: Rule.lease_kept,
    Mutant.sweep_gives_back: Rule.attempts_count,
    Mutant.sweep_needs_the_worker: Rule.nothing_stuck,
    Mutant.asked_goes_back: Rule.asked_never_waits,
    Mutant.cancel_takes_away: Rule.lease_kept,
    Mutant.sink_unfenced: Rule.sink_in_order,
}

CROWDED = Protocol(jobs=2, workers=3, max_attempts=3, losses=2, gifts=2, retries=1)
WALKS = 500


# -- walks through the model --------------------------------------------------------------------------

STORMY_STEPS, CALM_STEPS = 60, 300
WEIGHTS = {"claim": 4, "expire": 4, "sweep": 4, "settle": 0.7, "renew": 0.7, "cancel": 0.2, "die": 0.2}
STORM = frozenset({"expire", "die", "cancel", "retry"})
ENDS = {
    "succeed": "succeeded",
    "fail": "failed",
    "snooze": "snoozed",
    "release": "released",
    "cancel": "cancelled",
}


def walk(protocol: Protocol, chance: random.Random) -> History:
    """One random life of a few jobs: a storm first, then a calm in which everything can finish."""
    world = protocol.start()
    history = History(max_attempts=dict.fromkeys(range(protocol.jobs), protocol.max_attempts))
    history.changes += [Change(id, None, JobState.ready) for id in range(protocol.jobs)]
    for step in range(STORMY_STEPS + CALM_STEPS):
        steps = list(protocol.steps(world))
        if step >= STORMY_STEPS:
            steps = calm(steps)
        if not steps or is_over(world):
            break
        deed, after = pick(steps, chance)
        note(history, world, deed, after)
        world = after
    history.final = {id: job.state for id, job in enumerate(world.jobs)}
    return history


def pick(steps: list[tuple[Deed, World]], chance: random.Random) -> tuple[Deed, World]:
    """A verb first, and rather one that makes trouble: else hardly a lease would ever run out."""
    verbs = sorted({deed.verb for deed, _ in steps})
    [verb] = chance.choices(verbs, [WEIGHTS.get(verb, 1) for verb in verbs])
    return chance.choice([step for step in steps if step[0].verb == verb])


def calm(steps: list[tuple[Deed, World]]) -> list[tuple[Deed, World]]:
    """Without new trouble; a lease runs out only when there is nothing else to wait for."""
    quiet = [step for step in steps if step[0].verb not in STORM]
    return quiet or [step for step in steps if step[0].verb == "expire"]


def is_over(world: World) -> bool:
    return not world.holds and all(job.state in FINISHED for job in world.jobs)


def note(history: History, before: World, deed: Deed, after: World) -> None:
    history.changes += changes_in(before, deed, after)
    end = ENDS.get(deed.end, "")
    if deed.verb in ("claim", "settle", "renew", "retry"):
        history.told.append(Told(deed.verb, deed.job, deed.token, end, deed.answer))
    if deed.verb == "effect":
        history.took.append(Took(deed.job, deed.token))


def changes_in(before: World, deed: Deed, after: World) -> Iterator[Change]:
    """What the store's journal would say; a lease that runs out changes nothing."""
    was, job = before.jobs[deed.job], after.jobs[deed.job]
    renewed = deed.verb == "renew" and deed.answer == "ok"
    if deed.verb == "expire" or (was == job and not renewed):
        return
    yield Change(
        deed.job,
        was.state,
        job.state,
        token=job.token,
        settled=(deed.token, ENDS[deed.end]) if deed.applied else None,
        renewed=renewed,
        asked=job.asked and not was.asked,
        early=was.state == JobState.running and not was.expired,
    )


def walks(protocol: Protocol, many: int, seed: int = 7) -> Iterator[History]:
    chance = random.Random(seed)
    return (walk(protocol, chance) for _ in range(many))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_right_protocol_never_raises_an_alarm(seed: int) -> None:
    for history in walks(CROWDED, WALKS, seed):
        assert check(history) == []


def test_the_walks_meet_what_the_rules_are_about() -> None:
    histories = list(walks(CROWDED, WALKS))
    changes = [change for history in histories for change in history.changes]
    told = [(each.verb, each.answer) for history in histories for each in history.told]

    assert sum(change.renewed for change in changes) > 100
    assert sum(change.asked for change in changes) > 100
    assert sum(change.before == "running" and change.settled is None for change in changes) > 500
    assert told.count(("settle", "lost")) > 100
    assert told.count(("settle", "unknown")) > 100
    assert told.count(("retry", "ok")) > 100
    assert {change.after for change in changes} == set(JobState) - {JobState.blocked}


@pytest.mark.parametrize("mutant", Mutant)
def test_each_missing_guard_is_flagged_by_its_own_rule(mutant: Mutant) -> None:
    histories = walks(replace(CROWDED, mutant=mutant), WALKS)

    assert any(FLAGGED_BY[mutant] in rules_broken(history) for history in histories)


# -- corruptions by hand ------------------------------------------------------------------------------


def good_history() -> History:
    """One job that survives a lost lease, and one that fails, is retried and then cancelled."""
    return History(
        changes=[
            Change("a", None, "ready"),
            Change("a", "ready", "running", 1),
            Change("a", "running", "running", 1, renewed=True),
            Change("a", "running", "ready", 1),
            Change("a", "ready", "running", 2),
            Change("a", "running", "succeeded", 2, settled=(2, "succeeded")),
            Change("b", None, "scheduled"),
            Change("b", "scheduled", "ready"),
            Change("b", "ready", "running", 3),
            Change("b", "running", "scheduled", 3, settled=(3, "snoozed"), early=True),
            Change("b", "scheduled", "ready", 3),
            Change("b", "ready", "running", 4),
            Change("b", "running", "failed", 4, settled=(4, "failed")),
            Change("b", "failed", "ready", 4),
            Change("b", "ready", "running", 5),
            Change("b", "running", "running", 5, asked=True),
            Change("b", "running", "cancelled", 5, settled=(5, "released")),
        ],
        told=[
            Told("claim", "a", 1),
            Told("renew", "a", 1),
            Told("claim", "a", 2),
            Told("settle", "a", 1, "failed", "lost"),
            Told("settle", "a", 2, "succeeded", "unknown"),
            Told("settle", "a", 2, "succeeded", "ok"),
            Told("claim", "b", 3),
            Told("settle", "b", 3, "snoozed"),
            Told("claim", "b", 4),
            Told("settle", "b", 4, "failed"),
            Told("retry", "b"),
            Told("claim", "b", 5),
            Told("settle", "b", 5, "released"),
        ],
        took=[Took("a", 1), Took("b", 3), Took("a", 2), Took("b", 5)],
        max_attempts={"a": 2, "b": 1},
        final={"a": "succeeded", "b": "cancelled"},
    )


Corruption = Callable[[History], object]


def changed(place: int, **fields: object) -> Corruption:
    def corrupt(history: History) -> None:
        history.changes[place] = history.changes[place]._replace(**fields)

    return corrupt


def told(place: int, **fields: object) -> Corruption:
    def corrupt(history: History) -> None:
        history.told[place] = history.told[place]._replace(**fields)

    return corrupt


CORRUPTIONS: dict[str, tuple[Rule, Corruption]] = {
    "a job is gone": (Rule.nothing_lost, lambda good: good.final.pop("a")),
    "a job still runs": (Rule.nothing_stuck, lambda good: good.final.update(b="running")),
    "a job from nowhere": (Rule.nothing_unexpected, lambda good: good.final.update(c="succeeded")),
    "a claim is missing from the journal": (Rule.legal_path, lambda good: good.changes.pop(4)),
    "a job is stored running": (Rule.legal_path, changed(0, after="running")),
    "a waiting job succeeds": (Rule.legal_path, changed(7, after="succeeded")),
    "nobody retried it": (Rule.finished_is_final, lambda good: good.told.pop(10)),
    "it succeeded before it was retried": (
        Rule.finished_is_final,
        lambda good: (changed(12, after="succeeded")(good), changed(13, before="succeeded")(good)),
    ),
    "the same finish twice": (Rule.finished_once, lambda good: good.changes.insert(6, good.changes[5])),
    "the second claim has the first one's token": (Rule.tokens_grow, changed(4, token=1)),
    "a claim has an older token": (Rule.tokens_grow, changed(11, token=2)),
    "claimed while leased": (Rule.claimed_when_ready, lambda good: good.changes.pop(3)),
    "a zombie settles": (Rule.settled_by_the_holder, changed(5, settled=(1, "succeeded"))),
    "somebody settles a waiting job": (Rule.settled_by_the_holder, changed(10, settled=(3, "snoozed"))),
    "a lease is taken back early": (Rule.lease_kept, changed(3, early=True)),
    "somebody else renews": (Rule.renewed_by_the_holder, told(1, token=9)),
    "a renewal that was refused": (Rule.renewed_by_the_holder, told(1, answer="lost")),
    "asked to cancel, and back": (Rule.asked_never_waits, changed(16, after="ready")),
    "a claim too many": (Rule.attempts_count, lambda good: good.max_attempts.update(a=1)),
    "the attempt was not given back": (Rule.attempts_count, changed(9, settled=(3, "failed"))),
    "a token that the store never gave": (Rule.tokens_received, told(0, token=8)),
    "a token that nobody received": (Rule.tokens_received, lambda good: good.told.pop(0)),
    "one token for two": (Rule.tokens_received, lambda good: good.told.append(good.told[0])),
    "a loser is told that it won": (Rule.truth_told, told(3, answer="ok")),
    "a winner is told that it lost": (Rule.truth_told, told(5, answer="lost")),
    "told another outcome": (Rule.truth_told, told(9, end="succeeded")),
    "an old effect after a newer one": (Rule.sink_in_order, lambda good: good.took.reverse()),
}


def test_the_good_history_is_good() -> None:
    assert check(good_history()) == []


@pytest.mark.parametrize(("rule", "corrupt"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_each_corruption_is_flagged_by_its_own_rule(rule: Rule, corrupt: Corruption) -> None:
    history = good_history()

    corrupt(history)

    assert rule in rules_broken(history)


def test_every_rule_can_be_broken() -> None:
    assert {rule for rule, _ in CORRUPTIONS.values()} == set(Rule)


@pytest.mark.parametrize("place", range(len(good_history().changes)))
def test_a_change_that_is_missing_or_doubled_is_noticed(place: int) -> None:
    missing, doubled = good_history(), good_history()

    gone = missing.changes.pop(place)
    doubled.changes.insert(place, gone)

    # A renewal that is missing and a request to cancel that is repeated change nothing that counts.
    assert check(missing) != [] or gone.renewed or gone.asked
    assert check(doubled) != [] or gone.asked


# -- a real run ---------------------------------------------------------------------------------------


def run_for_real(
    url: str, seconds: float, *, seed: int = 1, guard: tuple[str, str, str] | None = None
) -> History:
    """A crowd on a real store, and its journal; `guard` is (block, text, what stands there instead)."""
    app = make_app(url)
    app.sync.migrate()
    install_journal(url)
    if guard is not None:
        take_out(app, *guard)
    with app.sync:
        history = Crowd(app, jobs=150, max_attempts=2, seed=seed).run(seconds)
    history.changes = read_journal(url)
    return history


def accept_a_run(server: PostgreSQL | MariaDB, *, seconds: float, **options: int) -> None:
    """Every run must be accepted; on a busy machine it takes a longer one until enough has happened."""
    for longer in (1, 2, 4, 8):
        history = run_for_real(server.fresh_database(), seconds=seconds * longer, **options)
        found = check(history)
        assert found == [], explain(found)
        if not too_little(history):
            break
    assert too_little(history) == []


def test_a_real_run_makes_a_history_the_checker_accepts(postgresql: PostgreSQL) -> None:
    accept_a_run(postgresql, seconds=3)


def test_a_real_run_on_mariadb_makes_a_history_the_checker_accepts(mariadb: MariaDB) -> None:
    accept_a_run(mariadb, seconds=3)


def test_a_real_run_on_mysql_makes_a_history_the_checker_accepts(mysql: MySQLServer) -> None:
    accept_a_run(mysql, seconds=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_long_real_run_on_mariadb_makes_a_history_the_checker_accepts(mariadb: MariaDB, seed: int) -> None:
    accept_a_run(mariadb, seconds=20, seed=seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_long_real_run_makes_a_history_the_checker_accepts(postgresql: PostgreSQL, seed: int) -> None:
    accept_a_run(postgresql, seconds=20, seed=seed)


LOST_GUARDS = {
    "settle by anybody": (
        Rule.settled_by_the_holder,
        ("settle", "and ((job.id, job.token) in (select given.id, given.token from given)) is true", ""),
    ),
    "sweep at any time": (
        Rule.lease_kept,
        ("sweep", "and job.lease_until <= statement_timestamp()", ""),
    ),
    "sweep gives the attempt back": (
        Rule.attempts_count,
        ("sweep", "        worker = null,", "        worker = null, attempts = job.attempts - 1,"),
    ),
}


@pytest.mark.parametrize(("rule", "guard"), LOST_GUARDS.values(), ids=LOST_GUARDS)
def test_a_real_store_that_lost_a_guard_is_flagged(
    postgresql: PostgreSQL, rule: Rule, guard: tuple[str, str, str]
) -> None:
    history = run_for_real(postgresql.fresh_database(), seconds=2, guard=guard)

    assert rule in rules_broken(history)


def test_a_mariadb_that_lost_a_guard_is_flagged(mariadb: MariaDB) -> None:
    guard = ("held", "and job.token = given.token", "")

    history = run_for_real(mariadb.fresh_database(), seconds=2, guard=guard)

    assert Rule.settled_by_the_holder in rules_broken(history)


def too_little(history: History) -> list[str]:
    """Of what a run had too few to prove anything."""
    told = Counter((each.verb, each.answer) for each in history.told)
    seen = Counter((each.before, each.after, each.settled is not None) for each in history.changes)
    happened = {
        "leases that ran out": seen["running", "ready", False] >= 10,
        "settlements that were fenced off": told["settle", "lost"] >= 10,
        "renewals that were fenced off": told["renew", "lost"] >= 5,
        "renewals": sum(each.renewed for each in history.changes) >= 10,
        "requests to cancel": sum(each.asked for each in history.changes) >= 5,
        "retries by a person": told["retry", "ok"] >= 5,
        "settlements that won and were repeated": repeated_wins(history) >= 5,
        "ends": set(history.final.values()) == {"succeeded", "failed", "cancelled"},
    }
    return [what for what, enough in happened.items() if not enough]


def repeated_wins(history: History) -> int:
    wins = Counter(each for each in history.told if (each.verb, each.answer) == ("settle", "ok"))
    return sum(times > 1 for times in wins.values())


def explain(found: list[Broken]) -> str:
    return "\n".join(f"{broken.rule.name}: job {broken.job} {broken.says}" for broken in found[:20])
