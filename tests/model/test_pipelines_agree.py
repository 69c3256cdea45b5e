"""Pipelines on every engine do what memory's do: the same random acts, and after each the same to be seen."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import copy
from typing import Any
from uuid import UUID

import pytest
import redis

from dibs import Dibs, DibsError, Job, JobState, NewJob, Retry
from dibs.operations import upkeep
from tests.support.internals import age, run_script
from tests.support.redis_checks import STORE, break_script, misplaced

pytestmark = pytest.mark.parametrize("face", ["sync"], indirect=True)

SCRIPTS = ("settle", "cancel", "retry", "delete", "go_on", "sweep", "enqueue")
JOBS, ACTS = 9, 40


def draw(chance: random.Random) -> tuple[list[NewJob], list[list[int]], str]:
    """Jobs, those that each of them waits for, and what follows a failure."""
    gates: list[dict[str, Any]] = [
        *({}, {}, {}, {"train": "t"}, {"train": "t", "on_failed": "hold"}, {"slot": "s", "slot_limit": JOBS}),
        *({"slot": "s", "slot_policy": "replace"}, {"slot": "r", "slot_policy": "preempt"}),
    ]
    jobs = [
        NewJob(f"k{number}", max_attempts=chance.choice([1, 1, 2]), **chance.choice(gates))
        for number in range(JOBS)
    ]
    after = [
        chance.sample(range(number), min(number, chance.choice([0, 1, 1, 2, 3]))) for number in range(JOBS)
    ]
    return jobs, after, chance.choice(["cancel", "cancel", "hold"])


def enqueue(app: Any, jobs: list[NewJob], after: list[list[int]], on_failed: str, id: UUID) -> Any:
    drawn = app.pipeline("drawn", on_failed=on_failed)
    drawn._draft.id = id
    for new, parents in zip(jobs, after, strict=True):
        drawn.add(new, after=[jobs[parent] for parent in parents])
    return [(job.id, job.state) for job in drawn.enqueue()]


def acts(chance: random.Random, jobs: list[NewJob]) -> tuple[str, Callable[[Any], Any]]:
    """One act, told to both stores."""
    id, child = chance.choice(jobs).id, NewJob("chained")

    def settle(how: str, *given: Any) -> Callable[[Any], Any]:
        return lambda app: (claim := app.claim_job(id, lease=60)) and getattr(claim, how)(*given)

    def chain(app: Any) -> Any:
        return (claim := app.claim_job(id, lease=60)) and claim.succeed("done", then=[copy(child)])

    def claim_while_paused(app: Any) -> Any:
        app.pause("default")
        claimed = app.claim_job(id, lease=60)
        app.resume("default")
        return claimed

    def recover(app: Any) -> Any:
        if app.claim_job(id, lease=60):
            later(app)
        return app.recover(id, stale_after=0).state

    def fail(app: Any) -> Any:
        return (claim := app.claim_job(id, lease=60)) and claim.fail("broken")

    def die(app: Any) -> Any:
        if app.claim_job(id, lease=60):
            later(app)
            app.sweep()
            return True
        return False

    def later(app: Any) -> None:
        age(app, 120)

    def prune(app: Any) -> Any:
        later(app)
        return run_script(app, lambda: upkeep.prune(0, {JobState.failed, JobState.succeeded}))

    return chance.choice(
        [
            *[("succeed", settle("succeed"))] * 6,
            *[("fail", fail)] * 3,
            ("release", settle("release")),
            ("snooze", settle("snooze", 60)),
            ("chain", chain),
            ("recover", recover),
            ("pause", claim_while_paused),
            ("die", die),
            ("cancel", lambda app: app.cancel(id).state),
            *[("retry", lambda app: app.retry(id).state)] * 3,
            ("delete", lambda app: app.delete(id)),
            ("sweep", lambda app: app.sweep()),
            ("prune", prune),
            ("all", lambda app: app.pipelines.retry(app.get(id).pipeline_id) and None),
            ("none", lambda app: app.pipelines.cancel(app.get(id).pipeline_id)),
            ("let go", lambda app: app.trains.release("t")),
        ]
    )


def outcome(act: Callable[[Any], Any], app: Any) -> Any:
    try:
        return act(app)
    except (DibsError, AttributeError) as error:
        return type(error)


def reason(job: Job) -> str | None:
    """Of two jobs that ended in one act either may be the reason."""
    return job.message and re.sub(r"^job \S+ before", "job before", job.message)


def named(jobs: list[NewJob], after: Mapping[UUID, Sequence[UUID]]) -> dict[str, list[str]]:
    """By kinds; whoever was chained has but its id."""
    kind = {new.id: new.kind for new in jobs}
    return {
        kind.get(id, str(id)): [kind.get(each, str(each)) for each in before] for id, before in after.items()
    }


def seen(app: Any, jobs: list[NewJob], pipeline: UUID) -> Any:
    found = [job for job in (app.get(new.id) for new in jobs) if job]
    drawn = app.pipelines.get(pipeline)
    after = named(jobs, drawn.after) if drawn else {}
    return (
        {job.kind: (str(job.state), reason(job), job.attempts, job.train, job.slot) for job in found},
        {job: after[job] for job in sorted(after)},
        drawn and (drawn.name, drawn.on_failed),
    )


def patient(app: Dibs) -> Dibs:
    """Nobody is due again by itself while the test runs, however slowly it does."""
    for number in range(JOBS):
        app.job(name=f"k{number}", retry=Retry.fixed(60))(lambda: None)
    return app


def slowed(app: Dibs) -> Dibs:
    """On Redis one script moves hardly anybody, so that much is left to the next ones."""
    for script in SCRIPTS:
        break_script(app, script, "local budget = 500 ", "local budget = 1 ")
    return app


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_pipelines_are_as_in_memory(app: Any, engine: str, url: str, seeds: range) -> None:
    if engine.startswith("redis"):
        slowed(app.app)
    patient(app.app)
    for seed in seeds:
        chance = random.Random(seed)
        beside = patient(Dibs("memory://"))
        sides = (beside.sync, app.app.sync)
        jobs, after, on_failed = draw(chance)
        pipeline = beside.pipeline("id").id
        first, other = [enqueue(side, jobs, after, on_failed, pipeline) for side in sides]
        assert first == other, seed
        told = []
        for _ in range(ACTS):
            name, act = acts(chance, jobs)
            told.append(name)
            answers = [outcome(act, side) for side in sides]
            assert str(answers[0]) == str(answers[1]), (seed, told)
            memory, real = [seen(side, jobs, pipeline) for side in sides]
            for part, other in zip(memory, real, strict=True):
                assert part == other, (seed, told)
            if engine == "redis":
                in_place(url, seed, told)
        for new in jobs:
            app.app.sync.cancel_many(pipeline_id=pipeline)
            app.app.sync.delete(new.id)
        beside.sync.close()


def in_place(url: str, seed: int, told: list[str]) -> None:
    with closing(redis.Redis.from_url(url, decode_responses=True)) as client:
        assert misplaced(client) == [], (seed, told)
        assert not client.exists(f"{STORE}:onward"), (seed, told)
