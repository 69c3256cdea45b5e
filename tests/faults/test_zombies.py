"""Processes that freeze, die or kill themselves while they hold a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dibs import NewJob
from tests.support import fault_cases
from tests.support.fault_stores import Actor, Place, actors, keep_journal, wait_until

LEASE = 0.5
ZOMBIE_DEEDS: dict[str, list[Any]] = {
    "succeed": ["by a zombie"],
    "fail": ["by a zombie"],
    "snooze": [30],
    "release": [],
    "cancel": ["by a zombie"],
    "renew": [60],
    "progress": [0.9, "by a zombie"],
}


def test_a_process_that_was_frozen_past_its_lease_can_do_nothing(shared: Place) -> None:
    app, journal = shared.app(), keep_journal(shared)
    [job] = app.sync.enqueue(NewJob("work", max_attempts=5))

    with actors(shared.url, 2) as (zombie, other):
        [first] = zombie.ask("claim", lease=LEASE)
        zombie.stop()
        [second] = wait_until(lambda: other.ask("claim", lease=60))
        zombie.go_on()
        while_held = {
            verb: zombie.ask("settle", token=first["token"], verb=verb, given=given)
            for verb, given in ZOMBIE_DEEDS.items()
        }
        held = app.sync.get(job.id)
        assert other.ask("settle", token=second["token"], verb="succeed", given=["by the holder"]) == "done"
        afterwards = zombie.ask("settle", token=first["token"], verb="succeed", given=["by a zombie"])

    done = app.sync.get(job.id)
    assert while_held == dict.fromkeys(ZOMBIE_DEEDS, "LeaseLost")
    assert afterwards == "LeaseLost"
    assert (held.state, held.token, held.progress, held.message) == ("running", second["token"], 0, None)
    assert (done.state, done.result, done.token) == ("succeeded", "by the holder", second["token"])
    assert (done.attempts, [error.message for error in done.errors]) == (2, ["worker died"])
    assert second["token"] > first["token"]
    assert journal(job.id) == [
        ("ready", None),
        ("running", first["token"]),
        ("ready", first["token"]),
        ("running", second["token"]),
        ("succeeded", second["token"]),
    ]


def test_a_frozen_process_learns_on_leaving_its_block_that_the_job_is_gone(shared: Place) -> None:
    app, journal = shared.app(), keep_journal(shared)
    [job] = app.sync.enqueue(NewJob("work"))

    with actors(shared.url, 2) as (zombie, other):
        [first] = zombie.ask("claim", lease=LEASE)
        assert zombie.ask("work", token=first["token"]) == "working"
        zombie.stop()
        [second] = wait_until(lambda: other.ask("claim", lease=60))
        other.ask("settle", token=second["token"], verb="succeed", given=["by the holder"])
        zombie.go_on()
        left = zombie.ask("leave")

    assert left == "LeaseLost"
    assert app.sync.get(job.id).result == "by the holder"
    assert [state for state, _ in journal(job.id)] == ["ready", "running", "ready", "running", "succeeded"]


STOPPED_BEFORE_IT_BEGINS = """
import asyncio, os, signal, sys
from dibs import Dibs, Worker
from dibs.worker.runner import Runner
app, run_waiting = Dibs(sys.argv[1], poll=1), Runner._run_waiting

@app.job(lease=0.5)
async def work():
    print("began", flush=True)

def stopping(runner):
    Runner._run_waiting = run_waiting
    os.kill(os.getpid(), signal.SIGSTOP)
    run_waiting(runner)

Runner._run_waiting = stopping
asyncio.run(Worker(app).run(until_idle=True))
"""


def test_a_worker_that_was_frozen_past_its_lease_does_not_begin_the_job(shared: Place) -> None:
    app = shared.app()
    [job] = app.sync.enqueue(NewJob("work"))
    command = [sys.executable, "-c", STOPPED_BEFORE_IT_BEGINS, shared.url]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        [claim] = wait_until(lambda: app.sync.claim(lease=60))
        claim.succeed("by the holder")
        worker.send_signal(signal.SIGCONT)
        said, _ = worker.communicate(timeout=60)

    assert said == ""
    assert app.sync.get(job.id).result == "by the holder"


def test_a_process_that_keeps_its_job_for_many_leases_is_not_robbed(shared: Place) -> None:
    app = shared.app()
    [job] = app.sync.enqueue(NewJob("work"))

    with actors(shared.url, 1) as (holder,):
        [claim] = holder.ask("claim", lease=LEASE)
        assert holder.ask("work", token=claim["token"]) == "working"
        thefts, until = 0, time.monotonic() + 3 * LEASE
        while time.monotonic() < until:
            thefts += len(app.sync.claim())
        left = holder.ask("leave")

    assert (thefts, left) == (0, "done")
    assert (app.sync.get(job.id).state, app.sync.get(job.id).attempts) == ("succeeded", 1)


def test_the_job_of_a_killed_process_comes_back_by_a_plain_claim(shared: Place) -> None:
    app = shared.app()
    [job] = app.sync.enqueue(NewJob("work"))

    with actors(shared.url, 2) as (victim, other):
        [first] = victim.ask("claim", lease=LEASE)
        claimed_at = time.monotonic()
        victim.kill()
        too_early = other.ask("claim", lease=60)
        [second] = wait_until(lambda: other.ask("claim", lease=60))
        waited = time.monotonic() - claimed_at

    assert too_early == []
    assert (second["id"], second["attempts"], second["errors"]) == (str(job.id), 2, ["worker died"])
    assert second["token"] > first["token"]
    assert waited <= LEASE + 1


def test_a_job_that_kills_its_process_each_time_fails_for_that_reason(shared: Place) -> None:
    app = shared.app()
    [poison] = app.sync.enqueue(NewJob("poison", max_attempts=3))
    [harmless] = app.sync.enqueue(NewJob("harmless", priority=-1))

    with actors(shared.url, 3) as processes:
        deaths = [_claim_until_it_dies(process) for process in processes]
    rest = wait_until(lambda: app.sync.claim(kinds=["harmless", "poison"]))

    done = app.sync.get(poison.id)
    assert deaths == [-signal.SIGKILL] * 3
    assert [claim.job.id for claim in rest] == [harmless.id]
    wait_until(lambda: app.sync.sweep() and app.sync.get(poison.id).state == "failed")
    done = app.sync.get(poison.id)
    assert (done.attempts, [error.message for error in done.errors]) == (3, ["worker died"] * 3)
    assert [error.attempt for error in done.errors] == [1, 2, 3]


def _claim_until_it_dies(process: Actor) -> int:
    """The process asks again and again, as the job's former holder may still have its lease."""

    def died() -> bool:
        process.tell("claim_and_die", kinds=["poison"], lease=0.2)
        try:
            process.hear()
        except AssertionError:
            return True
        return False

    wait_until(died)
    return process.wait_for_death()


def test_poison_runs_out_of_attempts(place: Place) -> None:
    assert fault_cases.poison_runs_out_of_attempts(place) is None


def test_killing_some_of_many_processes_loses_no_job_and_runs_none_twice(
    shared: Place, tmp_path: Path
) -> None:
    app, journal = shared.app(), keep_journal(shared)
    jobs = app.sync.enqueue(*(NewJob("work", max_attempts=9) for _ in range(120)))

    with actors(shared.url, 4) as (*victims, one, other):
        for number, victim in enumerate(victims):
            victim.tell("drain", file=str(tmp_path / f"victim-{number}"), lease=LEASE, hold_at=5)
            assert victim.hear() == "holding"
        for survivor in (one, other):
            survivor.tell("drain", file=str(tmp_path / "survivors"), lease=60)
        for victim in victims:
            victim.kill()
        for survivor in (one, other):
            survivor.hear()
        wait_until(lambda: _drain_again(one, tmp_path) and app.sync.counts()["succeeded"] == len(jobs))

    ended = [app.sync.get(job.id) for job in jobs]
    killed = [job for job in ended if job.errors]
    assert {job.state for job in ended} == {"succeeded"}
    assert all(job.result == str(job.token) for job in ended), "a job has the result of a stale claim"
    assert len(killed) == 2, "the kills did not land in running jobs"
    assert all(job.attempts == 2 for job in killed)
    for job in ended:
        tokens = [token for became, token in journal(job.id) if became == "running"]
        assert tokens == sorted(set(tokens)), f"claimed twice with one token: {tokens}"


def _drain_again(process: Actor, folder: Path) -> bool:
    process.ask("drain", file=str(folder / "survivors"), lease=60)
    return True


@pytest.mark.parametrize(
    "scene",
    [
        fault_cases.a_zombie_succeeds_at_nothing,
        fault_cases.a_zombie_fails_nothing,
        fault_cases.a_zombie_gives_nothing_back,
        fault_cases.a_zombie_renews_nothing,
        fault_cases.a_zombie_reports_nothing,
        fault_cases.a_released_claim_settles_nothing,
        fault_cases.children_come_only_with_success,
        fault_cases.an_exchange_of_a_zombie_settles_nothing,
        fault_cases.a_live_lease_is_not_swept,
    ],
)
def test_only_the_holder_changes_a_job(place: Place, scene: fault_cases.Scene) -> None:
    assert scene(place) is None
