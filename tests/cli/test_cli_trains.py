"""Trains and slots on the command line, as people type them."""

from __future__ import annotations

from uuid import UUID

import pytest

from dibs import Job, SyncDibs
from tests.support.commands import UNKNOWN, answer, dibs, enqueue, lines

pytestmark = pytest.mark.usefixtures("empty_folder")


def held_train(store: SyncDibs, name: str = "dest_7") -> tuple[Job, Job]:
    """Make a train with a failed head that holds the other job."""
    head, other = (enqueue(store, "deploy", train=name, on_failed="hold", max_attempts=1) for _ in range(2))
    claim = store.claim_job(head.id, worker="pod-a")
    assert claim is not None
    claim.fail("disk full")
    return head, other


# -- trains -------------------------------------------------------------------------------------


def test_trains_are_listed_by_name_with_their_heads(store: SyncDibs) -> None:
    head = enqueue(store, "deploy", train="b")
    enqueue(store, "deploy", train="b")
    store.claim_job(head.id, worker="pod-a")
    ended, _ = held_train(store, "a")

    done = dibs("trains")

    names, first, second = lines(done.stdout)
    assert (done.exit_code, done.stderr) == (0, "")
    assert names.split() == ["train", "held", "jobs", "head", "state", "kind", "about"]
    assert first.split()[:6] == ["a", "held", "2", str(ended.id), "failed", "deploy"]
    assert first.endswith("disk full")
    assert second.split() == ["b", "-", "2", str(head.id), "running", "deploy", "at", "pod-a"]


def test_trains_answer_in_json(store: SyncDibs) -> None:
    head = enqueue(store, "deploy", train="b")

    [train] = answer("trains")

    assert (train["name"], train["length"], train["held"]) == ("b", 1, False)
    assert (train["head"]["id"], train["head"]["state"]) == (str(head.id), "ready")


def test_only_trains_that_wait_for_a_person_are_listed_when_asked_so(store: SyncDibs) -> None:
    enqueue(store, train="b")
    held_train(store, "a")

    assert [train["name"] for train in answer("trains", "--held")] == ["a"]


def test_without_trains_there_is_a_remark_and_nothing_else(store: SyncDibs) -> None:
    done, held = dibs("trains"), dibs("trains", "--held")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no job is on a train\n")
    assert (held.exit_code, held.stdout, held.stderr) == (0, "", "no train is held\n")


def test_trains_are_listed_page_by_page(store: SyncDibs) -> None:
    for name in "abc":
        enqueue(store, train=name)

    done = dibs("trains", "--limit", 2)

    assert done.stderr == "next page: dibs trains --limit 2 --after b\n"
    assert [train["name"] for train in answer("trains", "--limit", 2, "--after", "b")] == ["c"]


def test_a_train_is_shown_with_what_it_waits_for(store: SyncDibs) -> None:
    head, _ = held_train(store)

    done = dibs("trains", "show", "dest_7")

    assert done.exit_code == 0
    assert lines(done.stdout)[:2] == ["train   dest_7", "jobs    2"]
    assert f"head    {head.id} (deploy), failed" in done.stdout
    assert "held    it waits for an operator" in done.stdout
    assert answer("trains", "show", "dest_7")["head"]["id"] == str(head.id)


def test_a_released_train_goes_on(store: SyncDibs) -> None:
    head, other = held_train(store)

    done = dibs("trains", "release", "dest_7")

    assert (done.exit_code, done.stdout) == (0, "released dest_7: 1 to go\n")
    [claim] = store.claim()
    assert claim.job.id == other.id
    assert store.get(head.id).state == "failed"  # type: ignore[union-attr]


def test_no_train_is_released_where_one_of_the_names_is_none(store: SyncDibs) -> None:
    held_train(store, "a")

    done = dibs("trains", "release", "a", "")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "dibs: train must have 1 to 200 characters, not 0\n"
    assert [train.name for train in store.trains.held()] == ["a"]


def test_a_release_answers_the_train_in_json(store: SyncDibs) -> None:
    _, other = held_train(store)

    [train] = answer("trains", "release", "dest_7")

    assert (train["name"], train["length"], train["held"]) == ("dest_7", 1, False)
    assert train["head"]["id"] == str(other.id)


def test_a_train_that_is_not_held_or_not_there_is_refused(store: SyncDibs) -> None:
    enqueue(store, train="b")
    held_train(store, "a")

    done = dibs("trains", "release", "b", "nobody", "a")

    assert (done.exit_code, done.stdout) == (1, "released a: 1 to go\n")
    assert lines(done.stderr) == [
        "dibs: the train 'b' is not held: there is nothing to release",
        "dibs: no train 'nobody': no job is on it",
    ]
    assert (dibs("trains", "show", "nobody").exit_code, dibs("trains", "release").exit_code) == (1, 2)


# -- jobs at gates ------------------------------------------------------------------------------


def test_a_job_is_put_on_a_train_that_it_will_hold(store: SyncDibs) -> None:
    id = dibs("enqueue", "deploy", "--train", "t", "--on-failed", "hold", "--max-attempts", 1).stdout.strip()
    enqueue(store, train="t")

    claim = store.claim_job(id)
    assert claim is not None
    claim.fail("no")

    assert [train["name"] for train in answer("trains", "--held")] == ["t"]


def test_a_slot_is_named_by_text_or_by_its_parts(store: SyncDibs) -> None:
    parts = answer("enqueue", "report", "--slot", '["csv", 7, null]')
    named = answer("enqueue", "report", "--slot", "csv", "--slot-policy", "replace", "--slot-limit", 2)

    assert [job.id for job in store.find(slot=("csv", 7, None))] == [_id(parts)]
    assert [job.id for job in store.find(slot="csv")] == [_id(named)]
    assert [job["id"] for job in answer("jobs", "list", "--slot", '["csv",7,null]')] == [parts["id"]]
    assert [job["id"] for job in answer("jobs", "list", "--slot", "csv")] == [named["id"]]


def test_a_job_that_is_dropped_for_its_slot_is_said_so(store: SyncDibs) -> None:
    first = enqueue(store, "report", slot="csv")

    done = dibs("enqueue", "report", "--slot", "csv", "--slot-policy", "drop")

    assert (done.exit_code, done.stdout) == (0, f"{first.id}\n")
    assert done.stderr == "nothing new: a job of the slot 'csv' is ready\n"


def test_jobs_are_listed_by_train(store: SyncDibs) -> None:
    job = enqueue(store, train="t")
    enqueue(store, train="other")

    assert [found["id"] for found in answer("jobs", "list", "--train", "t")] == [str(job.id)]


@pytest.mark.parametrize(
    "words",
    [
        ["--slot", "a", "--slot-policy", "nonsense"],
        ["--slot", "a", "--train", "b"],
        ["--slot-limit", "2"],
        ["--train", "a", "--on-failed", "nonsense"],
    ],
    ids=" ".join,
)
def test_what_does_not_fit_together_is_bad_usage_in_one_line(store: SyncDibs, words: list[str]) -> None:
    done = dibs("enqueue", "report", *words)

    assert (done.exit_code, done.stdout, len(lines(done.stderr))) == (2, "", 1)
    assert store.find() == []


def test_a_slot_that_is_no_json_array_is_bad_usage(store: SyncDibs) -> None:
    assert dibs("enqueue", "report", "--slot", "[1").exit_code == 2


# -- why ----------------------------------------------------------------------------------------


def test_why_names_the_job_ahead_on_the_train_and_its_worker(store: SyncDibs) -> None:
    head, other = (enqueue(store, "deploy", train="t") for _ in range(2))
    store.claim_job(head.id, worker="pod-a")

    done = dibs("why", other.id)

    expected = f"it is behind job {head.id} (deploy) of its train 't', which is running at pod-a\n"
    assert done.stdout == expected
    assert answer("why", other.id)["code"] == "train"


def test_why_names_the_job_that_holds_the_train_and_what_to_do(store: SyncDibs) -> None:
    head, other = held_train(store)

    said = dibs("why", other.id).stdout

    assert f"its train 'dest_7' is held by job {head.id} (deploy), which failed at" in said
    assert said.endswith("disk full; retry that job or release the train\n")


def test_why_names_the_job_in_the_slot_and_its_worker(store: SyncDibs) -> None:
    first, second = (enqueue(store, "report", slot=("csv", 7)) for _ in range(2))
    store.claim_job(first.id, worker="pod-a")

    done = dibs("why", second.id)

    expected = f"""the slot '["csv",7]' is held by job {first.id} (report), which is running at pod-a\n"""
    assert done.stdout == expected
    assert answer("why", second.id)["code"] == "slot"


def test_a_train_of_a_name_that_looks_like_an_id_is_still_a_train(store: SyncDibs) -> None:
    assert dibs("trains", "show", UNKNOWN).stderr == f"dibs: no train '{UNKNOWN}': no job is on it\n"


def _id(told: dict[str, str]) -> UUID:

    return UUID(told["id"])
