"""Workers, slots and pipelines on the command line; waiting for a job; ids by their last characters."""

from __future__ import annotations

import re
import threading

import pytest

from dibs import Job, NewJob, SyncClaim, SyncDibs
from dibs.jobs.ids import new_id
from dibs.operations import upkeep
from tests.support.commands import answer, dibs, enqueue, lines
from tests.support.internals import run_script


def claimed(store: SyncDibs) -> SyncClaim:
    claim = store.claim_job(enqueue(store).id, worker="pod-a")
    assert claim is not None
    return claim


def cells(line: str) -> list[str]:
    return re.split("  +", line)


# -- lists ----------------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_run_now(store: SyncDibs) -> None:
    run_script(store, lambda: upkeep.tick("pod-a", ["mail"], ["work", "other"], concurrency=8, running=0))
    for job in store.enqueue(NewJob("work"), NewJob("work")):
        store.claim_job(job.id, worker="pod-a")

    head, line = lines(dibs("workers").stdout)

    assert cells(head) == ["worker", "busy", "queues", "kinds", "dibs", "started", "seen"]
    assert cells(line)[:4] == ["pod-a", "2/8", "mail", "work, other"]
    assert answer("workers")[0]["running"] == 2


def test_slots_are_listed_with_their_current_jobs(store: SyncDibs) -> None:
    jobs = [NewJob("work", slot=("csv", 7)) for _ in range(3)]
    first, *_ = store.enqueue(*jobs, NewJob("work", slot="z"))
    store.claim_job(first.id, worker="pod-a")

    done = dibs("slots", "--limit", "1")
    _, line = lines(done.stdout)

    assert cells(line) == ['["csv",7]', "1", "2", str(first.id), "running", "work", "at pod-a"]
    assert "next page: dibs slots --limit 1 --after" in done.stderr
    assert [slot["key"] for slot in answer("slots", "--after", '["csv",7]')] == ["z"]


def test_pipelines_are_listed_and_one_is_drawn(store: SyncDibs) -> None:
    pipeline = store.pipeline("nightly")
    first = pipeline.add(NewJob("fetch"))
    pipeline.add(NewJob("report"), after=[first])
    pipeline.enqueue()

    _, line = lines(dibs("pipelines").stdout)
    shown = lines(dibs("pipelines", "show", str(pipeline.id)[-12:]).stdout)

    assert cells(line) == [str(pipeline.id), "nightly", "0%", "1 blocked, 1 ready"]
    assert shown[0] == f"{pipeline.id} nightly: 0%, 1 blocked, 1 ready"
    assert [line.index("0") for line in shown[1:]] == [2, 4]
    jobs = answer("pipelines", "show", str(pipeline.id))["jobs"]
    assert [job["kind"] for job in jobs] == ["fetch", "report"]


# -- wait, update -----------------------------------------------------------------------------------


def test_a_job_is_waited_for_until_it_ends(store: SyncDibs) -> None:
    claim = claimed(store)
    threading.Timer(0.3, claim.succeed, ["well"]).start()

    done = dibs("jobs", "wait", str(claim.job.id))

    assert (done.exit_code, done.stdout.split()[:2]) == (0, [str(claim.job.id), "succeeded"])


def test_a_job_that_fails_or_takes_too_long_is_exit_code_1(store: SyncDibs) -> None:
    claim = claimed(store)

    late = dibs("jobs", "wait", str(claim.job.id), "--timeout", "0.1s")
    claim.fail("broken", retry=False)
    failed = dibs("jobs", "wait", str(claim.job.id))

    assert (late.exit_code, "is still running" in late.stderr) == (1, True)
    assert (failed.exit_code, "failed" in failed.stdout) == (1, True)


def test_waiting_jobs_get_another_priority_and_time(store: SyncDibs) -> None:
    job = enqueue(store)

    done = dibs("jobs", "update", str(job.id), "--priority", "-5", "--delay", "2h")

    updated = store.get(job.id)
    assert updated is not None
    assert done.stdout == f"updated {job.id}: it is scheduled\n"
    assert (updated.priority, updated.state) == (-5, "scheduled")
    assert answer("jobs", "update", str(job.id), "--run-at", "2020-01-01T00:00:00Z")[0]["state"] == "ready"
    assert dibs("jobs", "update", str(job.id)).exit_code == 2
    assert dibs("jobs", "update", str(job.id), "--priority", "40000").exit_code == 2


# -- short ids --------------------------------------------------------------------------------------


@pytest.fixture
def job(store: SyncDibs) -> Job:
    enqueue(store)
    return enqueue(store)


@pytest.mark.parametrize("size", [8, 12, 20, 35])
def test_a_job_is_named_by_the_end_of_its_id(job: Job, size: int) -> None:
    end = str(job.id)[-size:].upper()

    for words in (["why"], ["jobs", "show"], ["jobs", "cancel"], ["jobs", "retry"], ["jobs", "delete"]):
        done = dibs(*words, end)
        assert (done.exit_code, done.stderr) == (0, ""), words


def test_an_end_that_names_several_jobs_or_none_is_refused(store: SyncDibs, job: Job) -> None:
    other = new_id()
    same = type(other)(int=other.int >> 40 << 40 | job.id.int & 0xFFFFFFFFFF)
    store.enqueue(NewJob("work", id=same))

    both = dibs("jobs", "delete", str(job.id)[-8:])
    none = dibs("why", "00000000")

    assert (both.exit_code, none.exit_code) == (1, 1)
    assert f"2 ids end with '{str(job.id)[-8:]}'" in both.stderr
    assert "give more characters" in both.stderr
    assert "no job of the newest 10,000 has an id that ends with '00000000'" in none.stderr
    assert len(store.find()) == 3


def test_short_ids_are_taken_where_jobs_are_listed(store: SyncDibs, job: Job) -> None:
    older, *_ = reversed(store.find())
    pipeline = new_id()
    store.enqueue(NewJob("work", pipeline_id=pipeline))

    assert [one["id"] for one in answer("jobs", "list", "--after", str(job.id)[-8:])] == [str(older.id)]
    assert len(answer("jobs", "list", "--pipeline-id", str(pipeline)[-8:])) == 1
    assert dibs("enqueue", "work", "--pipeline-id", str(pipeline)[-8:]).exit_code == 0
    assert dibs("jobs", "cancel", "--all", "--yes", "--pipeline-id", str(pipeline)[-8:]).exit_code == 0
    assert len(answer("jobs", "list", "--state", "cancelled")) == 2
