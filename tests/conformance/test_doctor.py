"""What a store says about itself, and that the doctor can be asked on every store, from both faces."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dibs import Finding, Level, NewJob
from dibs.operations.scripts import Script, Step
from tests.support.faces import Face, Make


def by_topic(findings: list[Finding]) -> dict[str, list[Finding]]:
    topics: dict[str, list[Finding]] = {}
    for one in findings:
        topics.setdefault(one.topic, []).append(one)
    return topics


def test_an_empty_store_has_no_problem(app: Face) -> None:
    topics = by_topic(app.doctor())

    assert {"store", "durability", "isolation", "clock", "workers", "waiting"} <= topics.keys()
    assert [one for found in topics.values() for one in found if one.level == Level.problem] == []


def test_a_store_that_wakes_is_heard(app: Face) -> None:
    findings = by_topic(app.doctor())

    assert [one.level for one in findings.get("wake-ups", [])] == [Level.ok]


def test_the_clock_of_this_machine_is_the_stores_here(app: Face) -> None:
    assert [one.level for one in by_topic(app.doctor())["clock"]] == [Level.ok]


def test_the_doctor_sees_what_waits_and_what_is_paused(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    make.ready(queue="slow")
    app.age(600)
    app.pause("slow")

    findings = by_topic(app.doctor())

    [waiting], [queues] = findings["waiting"], findings["queues"]
    assert (waiting.level, queues.level) == (Level.warning, Level.note)
    assert "1 ready, the oldest for 10 min in the queue 'mail'" in waiting.sentence


def test_the_doctor_sees_trains_that_wait_for_a_person(app: Face) -> None:
    for name in ("t", "u"):
        first, _ = app.enqueue(NewJob("work", train=name, on_failed="hold"), NewJob("work", train=name))
        app.claim_job(first.id).fail("broken", retry=False)
    app.enqueue(NewJob("work", train="going"), NewJob("work", train="going"))

    [trains] = by_topic(app.doctor())["trains"]
    assert trains.level == Level.note
    assert trains.sentence == "'t' and 1 more train wait for an operator, with 2 jobs behind"
    assert "dibs trains --held" in str(trains)

    app.trains.release("u")
    assert by_topic(app.doctor())["trains"][0].sentence == "'t' waits for an operator, with 1 job behind"
    app.trains.release("t")
    assert "trains" not in by_topic(app.doctor())


def test_the_doctor_sees_leases_that_nobody_took_back(app: Face, make: Make) -> None:
    make.running(lease=1)
    app.age(60)

    assert "lease ran out" in by_topic(app.doctor())["upkeep"][0].sentence


def test_the_doctor_takes_a_slot_that_was_offered_for_no_job_that_was_due(app: Face, make: Make) -> None:
    first, _ = app.enqueue(NewJob("greet", slot="export"), NewJob("greet", slot="export"))
    app.claim_job(first.id, lease=3600)
    app.age(60)

    assert not any("job that was due" in one.sentence for one in app.doctor())


def test_the_doctor_changes_nothing(app: Face, make: Make) -> None:
    make.expired()
    make.scheduled(delay=0.1)
    app.age(60)
    before = app.find(limit=100)

    app.doctor()

    assert app.find(limit=100) == before


# -- the questions ------------------------------------------------------------------------------


def _ask(question: str, **params: object) -> Script[list[dict[str, object]]]:
    return [dict(row) for row in (yield Step(question, dict(params)))]


def lines(app: Face, queues: list[str] | None = None) -> set[tuple[object, object]]:
    return {(row["queue"], row["kind"]) for row in app.ask(lambda: _ask("ready_lines", queues=queues))}


def test_ready_lines_are_the_pairs_that_could_be_claimed(app: Face, make: Make) -> None:
    make.ready("greet", queue="mail")
    make.ready("greet", queue="mail")
    make.ready("bill", queue="mail")
    make.ready("bill", queue="slow")
    make.scheduled("later", queue="mail")
    make.running("busy", queue="mail")
    make.succeeded("done", queue="mail")
    make.ready("greet", queue="paused")
    app.pause("paused")

    assert lines(app) == {("mail", "greet"), ("mail", "bill"), ("slow", "bill")}
    assert lines(app, ["slow", "paused"]) == {("slow", "bill")}


def test_a_backlog_counts_what_is_ready_and_since_when(app: Face, make: Make) -> None:
    first = make.ready(queue="mail", priority=-5)
    make.ready(queue="mail", priority=5)
    make.scheduled(queue="mail")
    make.running(queue="slow")

    rows = app.ask(lambda: _ask("backlog"))

    assert [(row["queue"], row["jobs"]) for row in rows] == [("mail", 2)]
    assert abs(rows[0]["since"] - first.run_at) < timedelta(milliseconds=2)


def test_traffic_counts_new_and_failed_jobs_of_each_queue(app: Face, make: Make) -> None:
    old = make.succeeded(queue="mail")
    make.ready(queue="mail")
    make.running(queue="mail")
    make.failed(queue="mail")
    make.failed(queue="slow")

    rows = app.ask(lambda: _ask("traffic", since=old.id, limit=100))

    found = {(row["queue"], row["what"]): row["jobs"] for row in rows}
    assert found == {
        ("mail", "enqueued"): 3,
        ("mail", "failed"): 1,
        ("slow", "enqueued"): 1,
        ("slow", "failed"): 1,
    }


def test_facts_are_text_and_there_is_one_of_each(app: Face) -> None:
    rows = app.ask(lambda: _ask("examine"))

    assert {type(row["value"]) for row in rows} <= {str, type(None)}
    assert len({(row["fact"], row["about"]) for row in rows}) == len(rows)
    assert "version" in {row["fact"] for row in rows}


@pytest.mark.parametrize("hint", ["!someone", "mail"])
def test_an_echo_is_answered_on_every_store(app: Face, hint: str) -> None:
    assert len(app.ask(lambda: _ask("echo", hint=hint))) == 1
