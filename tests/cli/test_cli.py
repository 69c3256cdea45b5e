"""The commands that list, show and change jobs, as people type them."""

from __future__ import annotations

import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, Job, NewJob, ScheduleInfo, SyncDibs
from dibs.cli import app
from dibs.cli._support import changes
from dibs.cli._support.options import duration
from dibs.jobs.ids import new_id
from dibs.operations import search
from dibs.operations.upkeep import tick
from tests.support.commands import CLOSED, UNKNOWN, answer, dibs, enqueue, failed, let_pass, lines, running
from tests.support.internals import run_script
from tests.support.servers import PostgreSQL

ROOT = Path(__file__).parents[2]

BY_ID = [
    ["jobs", "show"],
    ["jobs", "retry"],
    ["jobs", "cancel"],
    ["jobs", "recover"],
    ["jobs", "delete"],
    ["why"],
]
LOOKING = [["jobs", "list"], ["queues"], ["schedules"], ["trains"]]
SWITCHING = [["queues", "pause", "mail"], ["queues", "resume", "mail"], ["queues", "limit", "mail", "3"]]
MANY = [
    ["jobs", "retry", "--all", "--yes"],
    ["jobs", "cancel", "--all", "--yes"],
    ["prune", "--older-than", "7d", "--yes"],
]
EVERY = [*([*words, UNKNOWN] for words in BY_ID), *LOOKING, *SWITCHING, *MANY, ["enqueue", "greet"]]

words_of = " ".join

pytestmark = pytest.mark.usefixtures("empty_folder")


# -- enqueue ------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_of_what_it_stored(store: SyncDibs) -> None:
    done = dibs("enqueue", "greet", '{"name": "Zoë"}')

    job = store.get(done.stdout.strip())
    assert (done.exit_code, done.stderr) == (0, "")
    assert job is not None
    assert (job.kind, job.args, job.queue, job.state) == ("greet", {"name": "Zoë"}, "default", "ready")


def test_every_option_of_enqueue_reaches_the_job(store: SyncDibs) -> None:
    pipeline = new_id()
    options = ["--queue", "mail", "--priority", "-5", "--max-attempts", "9", "--unique", "k"]
    more = ["--pipeline-id", pipeline, "--tag", "a", "--tag", "b", "--meta", '{"by": 1}']

    said = answer("enqueue", "greet", "{}", *options, *more)

    job = store.get(said["id"])
    assert job is not None
    assert (job.queue, job.priority, job.max_attempts, job.unique) == ("mail", -5, 9, "k")
    assert (job.pipeline_id, job.tags, job.meta) == (pipeline, ["a", "b"], {"by": 1})
    assert said["is_new"] is True
    assert datetime.fromisoformat(said["enqueued_at"]) == job.enqueued_at


def test_enqueue_can_put_a_job_off(store: SyncDibs) -> None:
    delayed = answer("enqueue", "greet", "--delay", "2h")
    dated = answer("enqueue", "greet", "--run-at", "2090-01-31T12:00:00+02:00")

    waits = datetime.fromisoformat(delayed["run_at"]) - datetime.fromisoformat(delayed["enqueued_at"])
    assert (delayed["state"], waits) == ("scheduled", timedelta(hours=2))
    assert datetime.fromisoformat(dated["run_at"]) == datetime(2090, 1, 31, 10, tzinfo=UTC)


def test_arguments_can_come_from_stdin(store: SyncDibs) -> None:
    said = answer("enqueue", "greet", "-", input='{"name": "Ann"}\n')

    assert said["args"] == {"name": "Ann"}


def test_a_unique_key_that_is_taken_gives_the_job_that_has_it(store: SyncDibs) -> None:
    first = enqueue(store, unique="k")

    done = dibs("enqueue", "greet", "--unique", "k")

    assert (done.exit_code, done.stdout) == (0, f"{first.id}\n")
    assert lines(done.stderr) == ["nothing new: a job with the unique key 'k' is ready"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["{oops"], "can't be read as JSON"),
        (["[1, 2]"], "must be a JSON object"),
        (["-"], "can't be read as JSON"),
        (["[" * 100_000], "can't be read as JSON"),
        (["{}", "--meta", "seven"], "--meta can't be read as JSON"),
        (["{}", "--delay", "1m", "--run-at", "2090-01-01T00:00:00Z"], "not both"),
        (["{}", "--queue", "a\x07b"], "control character"),
        (["{}", "--pipeline-id", "seven"], "not a pipeline id"),
        (["{}", "--meta", '{"x": "\\u0000"}'], "U+0000"),
    ],
)
def test_what_enqueue_cannot_read_is_one_line_and_exit_code_2(given: list[str], words: str) -> None:
    done = dibs("enqueue", "greet", *given, input=b"\xff")

    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(lines(done.stderr)) == 1


def test_what_the_store_would_not_keep_is_refused_with_one_line() -> None:
    done = dibs("enqueue", "greet", "--url", "memory://")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "this store ends with the command" in done.stderr
    assert len(lines(done.stderr)) == 1


# -- jobs list ----------------------------------------------------------------------------------


def test_the_list_has_aligned_columns_when_piped(store: SyncDibs) -> None:
    first, second = enqueue(store, queue="mail"), enqueue(store, "a_longer_kind", delay=3600)

    done = dibs("jobs", "list")

    head, newest, oldest = lines(done.stdout)
    assert (done.exit_code, done.stderr) == (0, "")
    assert head.split() == ["id", "state", "queue", "kind", "tries", "about"]
    assert newest.split()[:5] == [str(second.id), "scheduled", "default", "a_longer_kind", "0/3"]
    assert oldest.split()[:5] == [str(first.id), "ready", "mail", "greet", "0/3"]
    assert len({head.index("kind"), newest.index("a_longer"), oldest.index("greet")}) == 1
    assert "\x1b" not in done.stdout


def test_the_list_shows_what_one_wants_to_know_of_each_state(store: SyncDibs) -> None:
    failed(store)
    running(store)
    store.cancel(enqueue(store).id, "sent twice")
    done = store.claim_job(enqueue(store, args={"n": 1}).id)
    assert done is not None
    done.succeed({"text": "x" * 200})

    succeeded, cancelled, at_work, broken = lines(dibs("jobs", "list").stdout)[1:]

    assert re.search(r'took \d+ ms, args \{"n":1\}, result \{"text":"x{50,60}…$', succeeded)
    assert cancelled.endswith("sent twice")
    assert at_work.endswith("at pod-a")
    assert broken.endswith("ValueError: no such order")


def test_the_list_has_colours_on_a_terminal_unless_no_color_is_set(store: SyncDibs) -> None:
    failed(store)
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "140", "TERM": "xterm-256color"}

    coloured = dibs("jobs", "list", **terminal)
    sober = dibs("jobs", "list", **terminal, NO_COLOR="1")

    assert "\x1b[1;31mfailed" in coloured.stdout
    assert "\x1b[1;31m" not in sober.stdout
    assert "failed" in sober.stdout


def test_a_narrow_terminal_shows_ids_whole(store: SyncDibs) -> None:
    job = enqueue(store, "a_kind_with_a_name_that_is_rather_long", queue="a_queue_with_a_long_name_too")

    done = dibs("jobs", "list", FORCE_COLOR="1", NO_COLOR="1", COLUMNS="80", TERM="xterm")

    assert str(job.id) in done.stdout
    plain = re.sub(r"\x1b\[\d*m", "", done.stdout)
    assert max(map(len, lines(plain))) <= 80
    assert lines(plain)[0].split() == ["id", "state", "queue", "kind", "tries"]


def test_stored_text_cannot_move_the_cursor(store: SyncDibs) -> None:
    job = failed(store, ValueError("\x1b[2Jgone\x9b1A"), args={"x": "\x9b"})

    shown = [dibs(*words).stdout for words in (["jobs", "list"], ["jobs", "show", job.id], ["why", job.id])]

    for text in shown:
        assert not {"\x1b", "\x9b"} & set(text)
        assert "gone" in text


def test_the_list_filters_by_everything_it_offers(store: SyncDibs) -> None:
    pipeline = new_id()
    wanted = failed(store, kind="bill", queue="mail", tags=["a", "b"], pipeline_id=pipeline)
    failed(store, kind="bill", queue="mail", tags=["a"])
    enqueue(store, "bill", queue="mail", tags=["a", "b"], pipeline_id=pipeline)

    filters = ["--state", "failed", "--queue", "mail", "--kind", "bill", "--tag", "a", "--tag", "b"]
    found = answer("jobs", "list", *filters, "--pipeline-id", pipeline)

    assert [one["id"] for one in found] == [str(wanted.id)]


def test_several_states_are_any_of_them(store: SyncDibs) -> None:
    broken, _, ready = failed(store), running(store), enqueue(store)

    found = answer("jobs", "list", "--state", "failed", "--state", "ready")

    assert [one["id"] for one in found] == [str(ready.id), str(broken.id)]


def test_the_list_says_how_to_get_the_next_page_and_that_works(store: SyncDibs) -> None:
    jobs = [enqueue(store, queue="a b") for _ in range(5)]

    first = dibs("jobs", "list", "--queue", "a b", "--limit", "2")
    hint = first.stderr.strip().removeprefix("next page: ")
    second = answer("jobs", "list", "--queue", "a b", "--limit", "2", "--after", hint.split()[-1])

    assert hint == f"dibs jobs list --queue 'a b' --limit 2 --after {jobs[3].id}"
    assert [one["id"] for one in second] == [str(jobs[2].id), str(jobs[1].id)]


def test_the_last_page_promises_no_other(store: SyncDibs) -> None:
    for _ in range(2):
        enqueue(store)

    assert dibs("jobs", "list", "--limit", "2").stderr == ""


def test_the_list_is_searched(store: SyncDibs, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, *_ = [enqueue(store, "bill", args={"order_id": n}) for n in (42, 43, 44)]
    held = running(store)

    found = answer("jobs", "list", "--search", "args.order_id:42 kind:b*", "--since", "2h")
    at_work = answer("jobs", "list", "--worker", held.worker)
    monkeypatch.setattr(search, "MOST_SEARCHED", 2)
    first = dibs("jobs", "list", "--search", "args.order_id:42")

    assert [[one["id"] for one in jobs] for jobs in (found, at_work)] == [[str(wanted.id)], [str(held.id)]]
    looked, hint = lines(first.stderr)[-2:]
    assert looked == "looked at the newest 2 jobs that match the rest; older ones may match, too"
    assert hint.startswith("next page: dibs jobs list --search args.order_id:42 --after")
    again = dibs(*hint.removeprefix("next page: dibs ").split())
    assert str(wanted.id) in again.stdout


def test_all_that_a_search_finds_are_changed(store: SyncDibs) -> None:
    wanted = [failed(store, kind="bill", args={"n": 1}) for _ in range(2)]
    failed(store, kind="bill", args={"n": 2})

    asked = dibs("jobs", "retry", "--all", "--search", "args.n:1", "--since", "2h", input="y\n")
    gone = answer("jobs", "delete", "--all", "--search", "bill", "--state", "ready", "--yes")

    assert "retry 2 jobs enqueued in the last 2 h matching args.n:1? [y/N]" in asked.output
    assert lines(asked.stdout)[-1] == "retried 2 jobs"
    assert gone == {"deleted": 2}
    assert not [job for job in wanted if store.get(job.id)]


# -- jobs show and why --------------------------------------------------------------------------


def test_show_tells_all_fields_the_errors_and_why(store: SyncDibs) -> None:
    job = failed(store, queue="mail", args={"order": 7}, tags=["vip"])

    text = dibs("jobs", "show", job.id).stdout

    named = {line.split()[0] for line in lines(text) if line and not line.startswith(" ")}
    assert named >= {"why", *set(Job.__struct_fields__) - {"errors", "is_new"}}
    assert '{"order":7}' in text
    assert "attempt 1 failed at pod-a" in text
    assert "ValueError: no such order" in text
    assert "commands.py" in text


def test_attempts_that_failed_alike_are_shown_once(store: SyncDibs) -> None:
    job = enqueue(store, max_attempts=9)
    for reason in ("no such order", "no such order", "no such order", "no memory", "no such order"):
        let_pass(store, 4000)
        store.sweep()
        claim = store.claim_job(job.id, worker="pod-a")
        assert claim is not None
        claim.fail(ValueError(reason))

    text = dibs("jobs", "show", job.id).stdout

    assert text.count("ValueError: no such order") == 2
    assert "attempts 1 to 3 failed alike, the last at pod-a" in text
    assert "attempt 4 failed at pod-a" in text
    assert "attempt 5 failed at pod-a" in text
    assert len(answer("jobs", "show", job.id)["errors"]) == 5


def test_show_answers_in_json_with_the_reason(store: SyncDibs) -> None:
    job = failed(store)

    shown = answer("jobs", "show", job.id)

    assert (shown["id"], shown["state"], shown["why"]["code"]) == (str(job.id), "failed", "finished")
    assert shown["errors"][0]["message"] == "no such order"


def test_why_is_a_sentence_or_a_code(store: SyncDibs) -> None:
    job = running(store)

    assert dibs("why", job.id).stdout.startswith("it has been running at pod-a for ")
    assert answer("why", job.id)["code"] == "running"


def test_why_names_a_paused_queue(store: SyncDibs) -> None:
    job = enqueue(store, queue="mail")
    dibs("queues", "pause", "mail")

    assert answer("why", job.id) == {
        "code": "paused",
        "sentence": "the queue 'mail' is paused; resume it to let its jobs run",
    }


# -- retry, cancel, recover, delete -------------------------------------------------------------


def test_retry_lets_jobs_run_again(store: SyncDibs) -> None:
    jobs = [failed(store), failed(store)]

    done = dibs("jobs", "retry", *(job.id for job in jobs))

    assert (done.exit_code, done.stderr) == (0, "")
    assert lines(done.stdout) == [f"retried {job.id}: it is ready" for job in jobs]
    assert store.counts()["ready"] == 2


def test_retry_does_not_claim_to_have_changed_a_job_that_waits_already(store: SyncDibs) -> None:
    ready, blocked = enqueue(store, train="t"), enqueue(store, train="t")
    later = enqueue(store, delay=3600)

    done = dibs("jobs", "retry", ready.id, blocked.id, later.id)

    assert (done.exit_code, done.stderr) == (0, "")
    assert lines(done.stdout) == [
        f"{ready.id} was ready already: nothing was changed",
        f"{blocked.id} was blocked already: nothing was changed",
        f"retried {later.id}: it is ready",
    ]


def test_cancel_ends_what_waits_and_asks_what_runs(store: SyncDibs) -> None:
    waiting, held = enqueue(store), running(store)

    done = dibs("jobs", "cancel", waiting.id, held.id, "--reason", "sent twice")

    assert lines(done.stdout) == [
        f"cancelled {waiting.id}",
        f"asked {held.id} to stop: it is running at pod-a",
    ]
    ended = store.get(waiting.id)
    assert ended is not None
    assert (ended.state, ended.message) == ("cancelled", "sent twice")


def test_recover_takes_a_job_only_from_a_holder_that_is_long_dead(store: SyncDibs) -> None:
    job = running(store)
    let_pass(store, 60 + 20 * 60)

    early = dibs("jobs", "recover", job.id)
    done = dibs("jobs", "recover", job.id, "--stale-after", "15m")

    assert (early.exit_code, early.stdout) == (1, "")
    assert "may still be running at pod-a" in early.stderr
    assert (done.exit_code, done.stdout) == (0, f"recovered {job.id}: it is ready\n")


def test_delete_removes_a_job_for_good(store: SyncDibs) -> None:
    job, other = enqueue(store), enqueue(store)

    done = dibs("jobs", "delete", job.id)

    assert (done.exit_code, done.stdout) == (0, f"deleted {job.id}\n")
    assert store.get(job.id) is None
    assert answer("jobs", "delete", other.id) == [{"id": str(other.id), "deleted": True}]


@pytest.mark.parametrize("verb", ["retry", "cancel", "recover"])
def test_what_was_changed_is_answered_in_json(verb: str, store: SyncDibs) -> None:
    make = {"retry": failed, "cancel": enqueue, "recover": running}[verb]
    job = make(store)
    let_pass(store, 7200)

    changed = answer("jobs", verb, job.id)

    after = {"retry": "ready", "cancel": "cancelled", "recover": "ready"}[verb]
    assert [(one["id"], one["state"]) for one in changed] == [(str(job.id), after)]


@pytest.mark.parametrize("verb", ["retry", "cancel", "recover", "delete"])
def test_one_refused_id_does_not_stop_the_others(verb: str, store: SyncDibs) -> None:
    make = {"retry": failed, "cancel": enqueue, "recover": running, "delete": enqueue}[verb]
    first, last = make(store), make(store)
    let_pass(store, 7200)

    done = dibs("jobs", verb, first.id, UNKNOWN, last.id)

    [unknown] = lines(done.stderr)
    assert done.exit_code == 1
    assert unknown.startswith(f"dibs: no job {UNKNOWN}")
    assert [line.split()[1].rstrip(":") for line in lines(done.stdout)] == [str(first.id), str(last.id)]


@pytest.mark.parametrize("verb", ["retry", "cancel", "recover", "delete"])
def test_nothing_is_changed_where_one_of_the_ids_is_none(verb: str, store: SyncDibs) -> None:
    job = failed(store)

    done = dibs("jobs", verb, job.id, "seven")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "dibs: 'seven' is not a job id: pass a UUID or its text, or its last 8 characters\n"
    assert store.counts()["failed"] == 1


def test_json_says_what_was_changed_also_when_something_was_refused(store: SyncDibs) -> None:
    job = enqueue(store)

    done = dibs("jobs", "cancel", UNKNOWN, job.id, "--json")

    assert done.exit_code == 1
    assert [one["id"] for one in json.loads(done.stdout)] == [str(job.id)]


@pytest.mark.parametrize(("verb", "make"), [("retry", running), ("cancel", failed), ("delete", running)])
def test_a_state_that_does_not_allow_it_is_a_refusal(verb: str, make: Any, store: SyncDibs) -> None:
    job = make(store)

    done = dibs("jobs", verb, job.id)

    assert (done.exit_code, done.stdout, len(lines(done.stderr))) == (1, "", 1)
    assert str(job.id) in done.stderr


# -- --all --------------------------------------------------------------------------------------


def test_all_asks_first_and_says_how_many(store: SyncDibs) -> None:
    for _ in range(3):
        failed(store, queue="mail")
    failed(store, queue="other")

    done = dibs("jobs", "retry", "--all", "--state", "failed", "--queue", "mail", input="y\n")

    assert done.exit_code == 0
    assert "retry 3 failed jobs of queue mail? [y/N]" in done.output
    assert lines(done.stdout)[-1] == "retried 3 jobs"
    assert (store.counts("mail")["ready"], store.counts("other")["failed"]) == (3, 1)


@pytest.mark.parametrize("said", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_changed(said: str, store: SyncDibs) -> None:
    enqueue(store)

    done = dibs("jobs", "cancel", "--all", input=said)

    assert done.exit_code == 1
    assert "dibs: nothing was changed" in done.stderr
    assert "--yes" in lines(done.stderr)[-1]
    assert store.counts()["ready"] == 1


def test_a_question_about_jobs_that_cannot_be_counted_says_which(store: SyncDibs) -> None:
    failed(store, tags=["a"])

    done = dibs("jobs", "retry", "--all", "--state", "failed", "--tag", "a", "--kind", "greet", input="y\n")

    assert "retry all failed jobs of kind greet with tags a? [y/N]" in done.output
    assert lines(done.stdout)[-1] == "retried 1 job"


def test_yes_spares_the_question_and_json_gives_the_number(store: SyncDibs) -> None:
    enqueue(store)
    running(store)

    assert answer("jobs", "cancel", "--all", "--yes") == {"cancelled": 2}
    assert answer("jobs", "retry", "--all", "--yes") == {"retried": 1}


def test_jobs_of_a_train_or_a_slot_are_changed_together(store: SyncDibs) -> None:
    for gate in ({"train": "a"}, {"train": "a"}, {"train": "b"}, {"slot": "s"}):
        enqueue(store, **gate)

    assert answer("jobs", "cancel", "--all", "--train", "a", "--yes") == {"cancelled": 2}
    assert answer("jobs", "cancel", "--all", "--slot", "s", "--yes") == {"cancelled": 1}
    assert answer("jobs", "retry", "--all", "--train", "a", "--yes") == {"retried": 2}
    assert answer("jobs", "delete", "--all", "--slot", "s", "--yes") == {"deleted": 1}
    assert store.counts()["cancelled"] == 0


def test_a_bar_is_drawn_on_a_terminal(store: SyncDibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "COUNT_EVERY", 0.001)
    store.enqueue(*(NewJob("greet") for _ in range(1500)))

    done = dibs("jobs", "cancel", "--all", "--yes", FORCE_COLOR="1", TERM="xterm-256color")

    assert (done.exit_code, done.stdout) == (0, "cancelled 1,500 jobs\n")
    assert "━" in done.stderr


# -- queues -------------------------------------------------------------------------------------


def test_queues_are_shown_with_their_switches_and_counts(store: SyncDibs) -> None:
    enqueue(store, queue="mail")
    running(store, queue="mail")
    failed(store, queue="mail")
    store.pause("slow")
    store.limit("mail", 4)

    done = dibs("queues")

    head, mail, slow, total = lines(done.stdout)
    assert head.split() == ["queue", "paused", "limit", "scheduled", "blocked", "ready", "running"]
    assert mail.split() == ["mail", "-", "4", "0", "0", "1", "1"]
    assert slow.split() == ["slow", "paused", "-", "0", "0", "0", "0"]
    assert total == "total: 1 ready, 1 running, 1 failed"


def test_queues_answer_in_json(store: SyncDibs) -> None:
    enqueue(store, queue="mail")

    counts = {"scheduled": 0, "blocked": 0, "ready": 1, "running": 0}
    assert answer("queues") == [{"name": "mail", "paused": False, "limit": None, "counts": counts}]


def test_a_queue_is_paused_resumed_and_limited(store: SyncDibs) -> None:
    enqueue(store, queue="mail")

    assert dibs("queues", "pause", "mail").stdout == "mail is paused\n"
    assert store.claim(queues=["mail"]) == []
    assert dibs("queues", "resume", "mail").stdout == "resumed mail\n"
    assert dibs("queues", "limit", "mail", "3").stdout == "mail runs at most 3 at a time\n"
    assert dibs("queues", "limit", "mail", "none").stdout == "mail has no limit\n"
    assert len(store.claim(queues=["mail"])) == 1


@pytest.mark.parametrize(
    "words", [["pause", "mial"], ["limit", "mial", "3"], ["resume", "mial"]], ids=words_of
)
def test_an_unknown_queue_is_changed_with_a_note_on_the_known_ones(words: list[str], store: SyncDibs) -> None:
    for name in ("mail", "slow"):
        enqueue(store, queue=name)

    done = dibs("queues", *words)

    assert (done.exit_code, len(lines(done.stdout))) == (0, 1)
    assert done.stderr == "no job of the queue 'mial' is there yet; known are mail, slow\n"


def test_only_some_of_many_queues_are_named(store: SyncDibs) -> None:
    for number in range(10):
        enqueue(store, queue=f"q{number}")

    assert dibs("queues", "pause", "q").stderr.endswith("; known are q0, q1, q2, q3, q4 and 5 more\n")


def test_a_queue_may_be_paused_before_there_is_any(store: SyncDibs) -> None:
    done = dibs("queues", "pause", "mail")

    assert (done.exit_code, done.stdout) == (0, "mail is paused\n")
    assert done.stderr == "no job of the queue 'mail' is there yet\n"
    assert [queue.paused for queue in store.queues()] == [True]


def test_nothing_is_added_of_a_queue_that_has_had_jobs_or_has_a_worker(store: SyncDibs) -> None:
    failed(store, queue="mail")
    run_script(store, lambda: tick("pod-a", ["slow"], ["greet"], concurrency=1, running=0))

    for name in ("mail", "slow"):
        assert dibs("queues", "pause", name).stderr == ""


def test_a_queue_that_was_not_paused_is_not_said_to_be_resumed(store: SyncDibs) -> None:
    enqueue(store, queue="mail")

    assert dibs("queues", "resume", "mail").stdout == "mail was not paused\n"


def test_a_switched_queue_is_answered_in_json(store: SyncDibs) -> None:
    switched = [answer(*words) for words in SWITCHING]

    assert [(one["name"], one["paused"], one["limit"]) for one in switched] == [
        ("mail", True, None),
        ("mail", False, None),
        ("mail", False, 3),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["queues", "pause", "mail"],
        ["trains", "show", "a"],
        ["jobs", "list"],
        ["outbox", "list"],
        ["tables", "sql", "shop_table:reports"],
    ],
    ids=words_of,
)
def test_json_and_url_may_stand_before_the_last_word_of_a_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "sqlite:///other.db"
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("shop_table.py").write_text(TABLE)
    with Dibs(url).sync as store:
        enqueue(store, queue="mail", train="a")
    with sqlite3.connect("other.db") as connection:
        connection.execute("create table reports (id integer primary key)")
    group, *rest = words

    after = dibs(group, *rest, "--json", "--url", url)
    before = dibs(group, "--json", "--url", url, *rest)

    assert (before.exit_code, before.stderr) == (0, "")
    assert json.loads(before.stdout) == json.loads(after.stdout)


TABLE = """
from sqlalchemy import Column, Integer, MetaData, Table

reports = Table("reports", MetaData(), Column("id", Integer, primary_key=True))
"""


@pytest.mark.parametrize("option", [["--held"], ["--limit", "5"], ["--after", "a"]], ids=words_of)
def test_what_a_command_alone_can_use_is_refused_before_another_word(
    option: list[str], store: SyncDibs
) -> None:
    enqueue(store, train="a")

    done = dibs("trains", *option, "show", "a")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"dibs: {option[0]} is for `dibs trains` alone: leave it out before show\n"


def test_json_before_a_word_that_has_none_is_refused() -> None:
    done = dibs("outbox", "--json", "relay", "--broker", "redis://127.0.0.1:1")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "dibs: `dibs outbox relay` has no --json: leave it out\n"


# -- schedules ----------------------------------------------------------------------------------


@pytest.fixture
def nightly(store: SyncDibs) -> ScheduleInfo:
    new = NewJob("count", args={"n": 1}, queue="nights")
    return store.schedules.put("roll up", "*/5 * * * *", new, tz="Europe/Berlin")


def test_schedules_are_shown_with_their_ticks(store: SyncDibs, nightly: ScheduleInfo) -> None:
    head, line = lines(dibs("schedules").stdout)
    [shown] = answer("schedules")

    assert re.split("  +", head) == ["schedule", "kind", "queue", "every", "last tick", "next tick"]
    assert re.split("  +", line) == [
        *("roll up", "count", "nights", "*/5 * * * * Europe/Berlin", "-", f"{nightly.next_tick:%F %T} UTC")
    ]
    assert (shown["name"], shown["args"], shown["paused"]) == ("roll up", {"n": 1}, False)


def test_a_schedule_is_paused_and_resumed(store: SyncDibs, nightly: ScheduleInfo) -> None:
    assert dibs("schedules", "pause", "roll up").stdout == "roll up is paused\n"
    assert lines(dibs("schedules").stdout)[1].endswith("  paused")
    assert answer("schedules", "pause", "roll up")["paused"] is True
    assert dibs("schedules", "resume", "roll up").stdout.startswith("resumed roll up, next tick 20")
    assert store.schedules.list() == [nightly]


def test_a_schedule_is_run_by_hand(store: SyncDibs, nightly: ScheduleInfo) -> None:
    said = dibs("schedules", "run", "roll up").stdout

    [job] = store.find(queue="nights")
    assert said == f"{job.id} ready\n"
    assert answer("schedules", "run", "roll up")["kind"] == "count"


def test_a_schedule_is_deleted(store: SyncDibs, nightly: ScheduleInfo) -> None:
    assert dibs("schedules", "delete", "roll up").stdout == "deleted roll up\n"
    assert store.schedules.list() == []


# -- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", BY_ID, ids=words_of)
def test_an_unknown_id_is_one_line_and_exit_code_1(words: list[str]) -> None:
    done = dibs(*words, UNKNOWN)

    assert (done.exit_code, done.stdout) == (1, "")
    assert f"no job {UNKNOWN}" in done.stderr
    assert len(lines(done.stderr)) == 1


@pytest.mark.parametrize("id", ["seven", ""])
@pytest.mark.parametrize(
    "words",
    [*BY_ID, ["jobs", "list", "--after"], ["jobs", "list", "--pipeline-id"], ["outbox", "redrive"]],
    ids=words_of,
)
def test_what_is_no_id_is_one_line_and_exit_code_2_and_reaches_no_store(
    words: list[str], id: str, tmp_path: Path
) -> None:
    done = dibs(*words, id)

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{id!r} is not a " in done.stderr
    assert len(lines(done.stderr)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["", "a\x07b", "x" * 201])
@pytest.mark.parametrize(
    "words",
    [
        ["enqueue"],
        ["enqueue", "greet", "--unique"],
        ["queues", "pause"],
        ["queues", "resume"],
        ["trains", "show"],
        ["trains", "release"],
        ["trains", "--after"],
        *(["jobs", "list", f"--{what}"] for what in ("queue", "kind", "tag", "train", "slot")),
        ["jobs", "retry", "--all", "--queue"],
        ["outbox", "list", "--topic"],
        ["outbox", "redrive", "--all", "--target"],
    ],
    ids=words_of,
)
def test_what_can_be_no_name_is_one_line_and_exit_code_2(words: list[str], name: str) -> None:
    done = dibs(*words, name)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "characters, not" in done.stderr or "control character" in done.stderr
    assert len(lines(done.stderr)) == 1


@pytest.mark.parametrize("words", EVERY, ids=words_of)
def test_a_stopped_server_is_one_line_and_exit_code_1(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.engines.retries.PAUSES", (0.0,))

    done = dibs(*words, "--url", CLOSED)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not answer" in done.stderr
    assert len(lines(done.stderr)) == 1


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", LOOKING, ids=words_of)
def test_an_empty_store_is_no_error(words: list[str]) -> None:
    done = dibs(*words)

    assert done.exit_code == 0
    assert len(lines(done.stderr)) == 1
    assert answer(*words) == []


@pytest.mark.parametrize("words", MANY, ids=words_of)
def test_all_of_nothing_is_nothing(words: list[str]) -> None:
    done = dibs(*[word for word in words if word != "--yes"])

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("0 jobs\n")


@pytest.mark.parametrize(
    "words",
    [
        ["enqueue"],
        ["enqueue", "greet", "--delay", "soon"],
        ["enqueue", "greet", "--delay", "-5"],
        ["enqueue", "greet", "--run-at", "tomorrow"],
        ["enqueue", "greet", "--run-at", "2090-01-01T00:00:00"],
        ["enqueue", "greet", "--priority", "high"],
        ["jobs", "list", "--state", "done"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "list", "--search", "colour:red"],
        ["jobs", "list", "--since", "soon"],
        ["jobs", "delete", "--all", "--yes", "--state", "running"],
        ["jobs", "show"],
        ["jobs", "retry"],
        ["jobs", "retry", UNKNOWN, "--all"],
        ["jobs", "retry", UNKNOWN, "--queue", "mail"],
        ["jobs", "retry", "--all", "--yes", "--state", "running"],
        ["prune"],
        ["prune", "--older-than", "soon"],
        ["prune", "--older-than", "7d", "--state", "running"],
        ["jobs", "recover", UNKNOWN, "--stale-after", "1w"],
        ["jobs", "delete"],
        ["jobs", "nonsense"],
        ["queues", "nonsense"],
        ["queues", "pause"],
        ["queues", "limit", "mail", "many"],
        ["queues", "limit", "mail"],
        ["why"],
    ],
    ids=words_of,
)
def test_bad_usage_is_exit_code_2_and_reaches_no_store(words: list[str], tmp_path: Path) -> None:
    done = dibs(*words)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("1.5m", 90), ("10M", 600), ("2h", 7200), ("7d", 604800)]
)
def test_durations_read_like_people_write_them(text: str, seconds: float) -> None:
    assert duration(text) == seconds


# -- which store --------------------------------------------------------------------------------


def names_of_queues(*words: object, before: Sequence[object] = (), **environment: str) -> list[str]:
    done = dibs(*before, "queues", *words, "--json", **environment)
    assert done.exit_code == 0, done.stderr
    return [queue["name"] for queue in json.loads(done.stdout)]


@pytest.fixture
def four_stores(tmp_path: Path) -> dict[str, str]:
    """Make a store for each way to name one, each with a queue of that name."""
    urls = {name: f"sqlite:///{name}.db" for name in ("dibs", "flag", "variable", "project")}
    for name, url in urls.items():
        with Dibs(url).sync as store:
            store.pause(name)
    return urls


def test_flags_win_over_the_environment_over_pyproject_over_the_default(
    four_stores: dict[str, str], tmp_path: Path
) -> None:
    flag, variable = four_stores["flag"], four_stores["variable"]

    assert names_of_queues() == ["dibs"]
    (tmp_path / "pyproject.toml").write_text('[tool.dibs]\nurl = "sqlite:///project.db"\n')
    assert names_of_queues() == ["project"]
    assert names_of_queues(DIBS_URL=variable) == ["variable"]
    assert names_of_queues("--url", flag, DIBS_URL=variable) == ["flag"]
    assert names_of_queues(before=["--url", flag], DIBS_URL=variable) == ["flag"]


def test_the_url_may_stand_before_in_or_after_a_group(four_stores: dict[str, str]) -> None:
    url = four_stores["flag"]

    for words in (
        ["--url", url, "queues", "limit", "flag", "1"],
        ["queues", "--url", url, "limit", "flag", "1"],
        ["queues", "limit", "--url", url, "flag", "1"],
    ):
        assert answer(*words)["paused"] is True
    for words in (["--url", url, "jobs", "list"], ["jobs", "--url", url, "list"]):
        assert answer(*words) == []


def test_a_project_file_is_found_from_below_and_its_sqlite_file_beside_it(
    four_stores: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dibs]\nurl = "sqlite:///project.db"\n')
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert names_of_queues() == ["project"]
    assert list(below.iterdir()) == []


def test_other_settings_come_from_the_project_file_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dibs]\nprefix = "shop"\n[tool.dibs.later]\nx = 1\n')
    dibs("queues", "pause", "mail")

    assert names_of_queues() == ["mail"]
    assert names_of_queues(DIBS_PREFIX="dibs") == []


@pytest.mark.parametrize(
    "text",
    ['[tool.dibs]\nulr = "sqlite:///x.db"\n', "[tool.dibs]\nurl = 5\n", "[tool.dibs\n", "tool = 3\n"],
)
def test_a_project_file_that_makes_no_sense_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)

    done = dibs("queues")

    assert done.exit_code == 1
    assert str(tmp_path / "pyproject.toml") in done.stderr
    assert "tool.dibs" in done.stderr
    assert len(lines(done.stderr)) == 1


# -- as processes, on PostgreSQL ----------------------------------------------------------------


def shell(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-c", "from dibs.cli import main; main()"]
    return subprocess.run(
        [*script, *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_without_tables_says_what_to_run(postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()

    for words in (["jobs", "list"], ["queues"], ["why", UNKNOWN], ["enqueue", "greet"]):
        done = dibs(*words, "--url", url)
        assert (done.exit_code, done.stdout, len(lines(done.stderr))) == (1, "", 1)
        assert "run `dibs migrate`" in done.stderr


def test_a_night_at_the_console_on_postgresql(postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()
    shell("migrate", DIBS_URL=url)

    id = shell("enqueue", "greet", "{}", "--queue", "mail", "--url", url).stdout.strip()
    with Dibs(url).sync as store:
        [claim] = store.claim(queues=["mail"], worker="pod-a")
        claim.fail("no such order", retry=False)
    listed = shell("--url", url, "jobs", "list", "--state", "failed")
    retried = shell("jobs", "retry", "--all", "--state", "failed", "--yes", "--json", "--url", url)
    why = shell("why", id, "--json", DIBS_URL=url)
    again = shell("jobs", "retry", id, UNKNOWN, DIBS_URL=url)

    assert lines(listed.stdout)[1].split()[:4] == [id, "failed", "mail", "greet"]
    assert json.loads(retried.stdout) == {"retried": 1}
    assert json.loads(why.stdout)["code"] == "no_worker"
    assert (again.returncode, len(lines(again.stderr))) == (1, 1)


def test_a_stopped_server_shows_no_traceback() -> None:
    done = shell("queues", "--url", CLOSED)

    assert (done.returncode, done.stdout, len(lines(done.stderr))) == (1, "", 1)


def test_a_bug_is_one_line_too_unless_one_asks_for_more() -> None:
    words = "import sys; sys.argv[1:] = ['queues', 'pause', 'q']"
    script = f"{words}; import dibs.cli as c; c.queues.open_store = None; "
    broken = [sys.executable, "-c", f"{script} c.main()"]

    short = subprocess.run(broken, capture_output=True, text=True, check=False)
    full = subprocess.run(
        broken, capture_output=True, text=True, check=False, env={**os.environ, "DIBS_TRACEBACK": "1"}
    )

    assert (short.returncode, len(lines(short.stderr))) == (1, 1)
    assert "unexpected TypeError" in short.stderr
    assert "Traceback" in full.stderr


def test_a_reader_that_leaves_early_sees_no_traceback(store: SyncDibs) -> None:
    store.enqueue(*(NewJob("greet", args={"text": "x" * 2000}) for _ in range(500)))
    reader = (
        f"{sys.executable} -c 'from dibs.cli import main; main()' jobs list --json --limit 500 | head -c 10"
    )

    done = subprocess.run(["bash", "-c", reader], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


# -- help ---------------------------------------------------------------------------------------


def reference(name: str = "cli") -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "reference" / f"draw_{name}.py"))


@pytest.mark.parametrize("name", ["cli", "verbs"])
def test_the_reference_page_is_up_to_date(name: str) -> None:
    assert reference(name)["page"]() == (ROOT / "docs" / "reference" / f"{name}.md").read_text()


def test_a_verb_that_the_table_lacks_is_an_error() -> None:
    compare = reference("verbs")["_compare"]

    compare("verb", {"cancel"}, {"cancel"})
    for there, listed in (({"cancel", "new"}, {"cancel"}), ({"cancel"}, {"cancel", "gone"})):
        with pytest.raises(SystemExit, match="verb"):
            compare("verb", there, listed)


def test_every_command_helps_with_an_example() -> None:
    import typer

    for path, _ in reference()["_commands"]("dibs", typer.main.get_command(app)):
        done = dibs(*path.split()[1:], "--help")
        assert done.exit_code == 0
        assert f"Usage: {path}" in done.stdout
        assert f"Example: {path}" in done.stdout
