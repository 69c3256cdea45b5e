"""The commands that maintain a store: `dibs doctor`, `dibs prune`, and cancelling many."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs import Dibs, StoreUnavailable, SyncDibs
from dibs.doctor import examine
from dibs.engines.retries import Tries
from tests.support.commands import CLOSED, answer, dibs, enqueue, failed, let_pass, lines, running
from tests.support.internals import run_script
from tests.support.servers import PostgreSQL

pytestmark = pytest.mark.usefixtures("empty_folder")


# -- doctor -------------------------------------------------------------------------------------


def test_the_doctor_says_one_line_per_finding_and_what_to_do(store: SyncDibs) -> None:
    enqueue(store, queue="mail")
    let_pass(store, 600)

    done = dibs("doctor")

    said = lines(done.stdout)
    assert (done.exit_code, done.stderr) == (0, "")
    assert said[0].split()[:3] == ["ok", "store", "SQLite"]
    [place] = [place for place, line in enumerate(said) if line.startswith("warning")]
    assert "1 ready, the oldest for 10 min in the queue 'mail'" in said[place]
    assert said[place + 1].strip() == "→ start a worker"
    assert "\x1b" not in done.stdout


def test_the_doctor_answers_in_json(store: SyncDibs) -> None:
    findings = answer("doctor")

    assert all(one.keys() == {"level", "topic", "sentence", "advice"} for one in findings)
    assert {
        "level": "ok",
        "topic": "isolation",
        "sentence": "one writer at a time",
        "advice": None,
    } in findings


def test_the_doctor_colours_its_verdicts_on_a_terminal(store: SyncDibs) -> None:
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "140", "TERM": "xterm-256color"}

    assert "\x1b[32mok" in dibs("doctor", **terminal).stdout
    assert "\x1b[32m" not in dibs("doctor", **terminal, NO_COLOR="1").stdout


def test_a_store_that_cannot_be_reached_is_a_problem_and_exit_code_1() -> None:
    done = dibs("doctor", "--url", CLOSED)

    assert done.exit_code == 1
    assert lines(done.stdout)[0].startswith("problem  store")


def test_tables_that_are_missing_are_a_problem_and_exit_code_1(postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()

    done = dibs("doctor", "--url", url, "--json")

    assert done.exit_code == 1
    assert "dibs migrate" in done.stdout


def test_a_server_set_to_forget_is_a_problem() -> None:
    with PostgreSQL(settings={"fsync": "off", "synchronous_commit": "off"}) as server:
        url = server.create_database("shop")
        dibs("migrate", "--url", url)

        done = dibs("doctor", "--url", url)

    assert done.exit_code == 1
    assert "problem  durability    fsync is off" in done.stdout
    assert "warning  durability    synchronous_commit is off" in done.stdout


def test_the_doctor_names_the_session_of_an_open_transaction(
    migrated_database: str, postgresql: PostgreSQL
) -> None:
    with postgresql.connect("conformance") as connection:
        connection.execute("set application_name = 'report'")
        connection.execute("begin")
        with Dibs(migrated_database).sync as store:
            examined = run_script(store, lambda: examine(0))

    [who] = [about for about, _ in examined.about("transaction") if "report" in about]
    assert "idle in transaction" in who


# -- prune --------------------------------------------------------------------------------------


def test_prune_removes_what_finished_long_ago(store: SyncDibs) -> None:
    old = failed(store)
    let_pass(store, 60)
    young = failed(store)

    done = dibs("prune", "--older-than", "30s", input="y\n")

    assert done.exit_code == 0
    assert lines(done.stdout)[-1] == "pruned 1 job"
    assert (store.get(old.id), store.get(young.id) is not None) == (None, True)
    assert answer("prune", "--older-than", "0", "--state", "failed", "--yes") == {"pruned": 1}


def test_prune_asks_first_and_a_no_changes_nothing(store: SyncDibs) -> None:
    job = failed(store)

    done = dibs("prune", "--older-than", "1m", input="n\n")

    assert done.exit_code == 1
    question = "prune all succeeded, failed and cancelled jobs that finished more than 60 s ago? [y/N]: "
    assert done.stderr.startswith(question)
    assert "nothing was changed" in done.stderr
    assert store.get(job.id) is not None


def test_prune_leaves_other_states_alone(store: SyncDibs) -> None:
    job = failed(store)

    assert answer("prune", "--older-than", "0", "--state", "succeeded", "--yes") == {"pruned": 0}
    assert store.get(job.id) is not None


# -- many ---------------------------------------------------------------------------------------


def test_many_are_cancelled_for_one_reason(store: SyncDibs) -> None:
    waiting, at_work = enqueue(store), running(store)

    done = answer("jobs", "cancel", "--all", "--yes", "--reason", "sent twice")

    gone = store.get(waiting.id)
    assert done == {"cancelled": 2}
    assert gone is not None
    assert (gone.state, gone.message) == ("cancelled", "sent twice")
    let_pass(store, 3600)
    store.sweep()
    stopped = store.get(at_work.id)
    assert stopped is not None
    assert (stopped.state, stopped.message) == ("cancelled", "sent twice")


# -- errors that can't heal ---------------------------------------------------------------------


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("/shop", "/nothere"), 'database "nothere" does not exist'),
        (lambda url: url.replace("postgres@", "nobody@"), 'role "nobody" does not exist'),
        (lambda url: url.replace("127.0.0.1", "nohost.invalid"), "nohost.invalid"),
    ],
    ids=["database", "user", "host"],
)
def test_what_trying_again_cannot_heal_is_said_at_once(
    postgresql: PostgreSQL,
    change: Callable[[str], str],
    words: str,
    face: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tries, "pause", lambda *_: pytest.fail("it was tried again"))
    app = Dibs(change(postgresql.url("shop")))

    with pytest.raises(StoreUnavailable, match="check the URL") as raised:
        app.sync.counts() if face == "sync" else asyncio.run(app.counts())

    assert words in str(raised.value)


def test_a_missing_index_is_said_by_migrate_check(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    dibs("migrate", "--url", url)
    whole = dibs("migrate", "--check", "--url", url)
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.execute("drop index dibs_jobs_due")
    connection.close()

    said = dibs("migrate", "--check", "--url", url)
    listed = dibs("migrate", "--check", "--json", "--url", url)

    assert (whole.exit_code, whole.stdout) == (0, "the tables are as they should be\n")
    assert said.exit_code == listed.exit_code == 1
    assert "the index dibs_jobs_due of dibs_jobs is missing" in said.stdout
    assert [(one["what"], one["name"]) for one in json.loads(listed.stdout)] == [("index", "dibs_jobs_due")]
