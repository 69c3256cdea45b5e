"""Mistakes at the command line: one line that helps, and no secret in it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dibs import Dibs, NewJob
from dibs.cli._support.options import url_again
from dibs.cli.commands.outbox import _shown
from tests.support.commands import UNKNOWN, dibs, lines
from tests.support.servers import PostgreSQL

pytestmark = pytest.mark.usefixtures("empty_folder")

EVERY = [
    ["jobs", "list"],
    ["why", UNKNOWN],
    ["queues"],
    ["top", "--once"],
    ["doctor"],
    ["migrate"],
    ["enqueue", "greet"],
    ["verify"],
    ["serve", "--port", "0"],
    ["outbox", "list"],
    ["outbox", "relay", "--broker", "nats://127.0.0.1"],
]


def complaint(*words: object, code: int = 1) -> str:
    done = dibs(*words)
    assert (done.exit_code, done.stdout, len(lines(done.stderr))) == (code, "", 1), done.output
    return done.stderr


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "shopper:s3cret@127.0.0.1/shop",
        "shopper:s3cret@127.0.0.1/shop?next=a://b",
        "postgresql//shopper:s3cret@127.0.0.1/shop",
        "postgresql://shopper:s3cret/more@127.0.0.1/shop",
        "postgresql://shopper:s3cret[@127.0.0.1/shop",
        "mysql://shopper:s3cret/more@127.0.0.1/shop",
        "mysql://shopper:1/s3cret@127.0.0.1/shop",
        "sqlite://shopper:s3cret@127.0.0.1/shop",
        "sqlite://shopper:s3cret[@127.0.0.1/shop",
        "oracle://shopper:s3cret@127.0.0.1/shop",
    ],
)
@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_url_that_cannot_be_read_is_not_quoted_with_its_password(words: list[str], url: str) -> None:
    said = complaint(*words, "--url", url)

    assert "s3cret" not in said
    assert "unexpected" not in said


@pytest.mark.parametrize("scheme", ["amqp", "nats", "tls", "redis", "http"])
@pytest.mark.parametrize("place", ["shopper:s3cret/more@127.0.0.1", "shopper:s3cret[@127.0.0.1"])
def test_the_url_of_a_broker_that_cannot_be_read_is_not_quoted(scheme: str, place: str) -> None:
    said = complaint("outbox", "relay", "--url", "sqlite:///shop.db", "--broker", f"{scheme}://{place}")

    assert "s3cret" not in said
    assert "the URL of a broker can't be read" in said


def test_a_broker_without_a_scheme_may_be_a_password() -> None:
    said = complaint("outbox", "relay", "--url", "sqlite:///shop.db", "--broker", "shopper:s3cret@127.0.0.1")

    assert "s3cret" not in said


def test_a_relay_names_the_host_of_a_webhook_and_not_its_path() -> None:
    assert _shown({"default": "https://hooks.example/s3cret"}) == "default at https://hooks.example"


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_an_empty_url_is_not_the_file_here(words: list[str], tmp_path: Path) -> None:
    done = dibs(*words, "--url", "")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "it is empty" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["move", "--from", "sqlite:///here.db", "--to", ""],
        ["move", "--from", "", "--to", "sqlite:///there.db"],
        ["verify", ""],
    ],
    ids=" ".join,
)
def test_an_empty_address_is_not_the_file_here(words: list[str], tmp_path: Path) -> None:
    Dibs("sqlite:///here.db").sync.open().close()

    done = dibs(*words)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "it is empty" in done.stderr
    assert not {"dibs.db", "there.db"} & {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "sqlite:///a.db", "--url", "sqlite:///b.db"], "name one store, not two"),
        (["migrate", "--sql", "--check"], "give --sql or --check, not both"),
        (["move", "--from", "sqlite:///a.db", "--give-back", "--yes", "--dry-run"], "leave --dry-run out"),
        (["move", "--from", "sqlite:///a.db", "--give-back", "--to", "sqlite:///b.db"], "leave --to out"),
        (["outbox", "list", "--table", ""], "'' can't name a table"),
        (["outbox", "list", "--table", "a;b"], "'a;b' can't name a table"),
        (["outbox", "relay", "--broker", "redis://127.0.0.1:1", "--lock-for", "0"], "0.1"),
        (["work", "jobs:app", "--queues", "a\x07b"], "control character"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else None,
)
def test_what_can_only_be_a_mistake_is_refused_and_reaches_no_store(
    words: list[str], said: str, tmp_path: Path
) -> None:
    assert said in complaint(*words, code=2)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_list_names_the_store_that_was_searched() -> None:
    for url in ("sqlite:///dibs.db", "sqlite:///other.db"):
        dibs("migrate", "--url", url)

    assert dibs("jobs", "list").stderr == "no jobs in sqlite:///dibs.db\n"
    assert dibs("jobs", "list", "--queue", "mial").stderr == "no jobs like that in sqlite:///dibs.db\n"
    assert "in sqlite:///other.db" in dibs("queues", "--url", "sqlite:///other.db").stderr


# -- code that does not load --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nraise RuntimeError('no $SHOP_KEY')", "RuntimeError: no $SHOP_KEY (line 2 of "),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name' (line 1 of "),
        ("def app(:", "SyntaxError: invalid syntax"),
        ("", "module 'shop_app' has no attribute 'app'"),
    ],
)
@pytest.mark.parametrize("words", [["work"], ["tables", "sql"]], ids=" ".join)
def test_an_app_that_does_not_load_is_their_affair(
    words: list[str], text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("shop_app.py").write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)

    told = complaint(*words, "shop_app:app")

    assert said in told
    assert "can't load 'shop_app:app'" in told
    assert "report it" not in told


def test_tables_without_sqlalchemy_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.cli.commands.tables.find_spec", lambda _: None)

    assert "pip install 'dibs[sqlalchemy]'" in complaint("tables", "sql", "shop:Report")


# -- hints that can be pasted -------------------------------------------------------------------


def test_the_doctor_quotes_the_name_of_a_paused_queue() -> None:
    with Dibs("sqlite:///dibs.db").sync as store:
        store.pause("two words")

    assert "→ dibs queues resume 'two words'" in dibs("doctor").stdout


def test_a_folder_that_is_not_there_is_said_with_what_to_do() -> None:
    said = complaint("enqueue", "greet", "--url", "sqlite:///nowhere/jobs.db")

    assert "its folder must exist, and you must be allowed to write there" in said


def test_a_file_that_is_no_store_is_not_touched() -> None:
    Path("notes.txt").write_text("buy milk, and much more of this, for a hundred days\n" * 100)

    assert "this one holds something else" in complaint("jobs", "list", "--url", "sqlite:///notes.txt")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "memory://"])
def test_a_job_is_not_put_where_it_would_be_gone_at_once(url: str) -> None:
    assert "this store ends with the command" in complaint("enqueue", "greet", "--url", url)


def test_an_option_that_the_server_does_not_know_is_named() -> None:
    said = complaint("jobs", "list", "--url", "postgresql://127.0.0.1:1/shop?nonsense=s3cret")

    assert 'invalid URI query parameter: "nonsense"; check the URL' in said
    assert "s3cret" not in said


# -- workers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_a_worker_of_no_queue_at_all_is_bad_usage(names: str) -> None:
    assert "--queues names no queue" in complaint("work", "jobs:app", "--queues", names, code=2)


def test_ctrl_c_while_processes_are_still_starting_shows_no_traceback(tmp_path: Path) -> None:
    # Modules here are found by the worker processes alone, not by the supervisor: -P excludes them.
    (tmp_path / "msgspec.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-P", "-m", "dibs.cli", "work", "jobs:app", "--processes", "2"]
    supervisor = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "importing").exists():
        assert supervisor.poll() is None
        time.sleep(0.02)

    supervisor.send_signal(signal.SIGINT)
    _, said = supervisor.communicate(timeout=60)

    assert (supervisor.returncode, said) == (0, "")


# -- words that lead on -------------------------------------------------------------------------


def test_the_next_page_is_that_of_the_same_store() -> None:
    url = "sqlite:///other.db"
    with Dibs(url).sync as store:
        store.enqueue(*(NewJob("greet", train=train) for train in ("a", "b", "c")))

    jobs = dibs("jobs", "list", "--limit", "1", "--url", url)
    before = dibs("--url", url, "jobs", "list", "--limit", "1")
    trains = dibs("trains", "--limit", "1", "--url", url)

    assert jobs.stderr.startswith("next page: dibs jobs list --url sqlite:///other.db --limit 1 --after ")
    assert before.stderr == jobs.stderr
    assert trains.stderr == "next page: dibs trains --url sqlite:///other.db --limit 1 --after a\n"


def test_the_next_page_tells_no_password() -> None:
    assert url_again("postgresql://me:s3cret@db/shop") == ["--url", "postgresql://me@db/shop"]
    assert "s3cret" not in url_again("postgresql://db/shop?password=s3cret")[1]
    assert url_again("redis://db/1?allow_eviction=true") == ["--url", "redis://db/1?allow_eviction=true"]


@pytest.mark.parametrize(
    "options",
    [
        ["--slot-policy", "foo", "--slot", "s"],
        ["--on-failed", "foo"],
        ["--train", "t", "--slot", "s"],
        ["--priority", "40000"],
        ["--max-attempts", "0"],
    ],
    ids=" ".join,
)
def test_options_of_enqueue_that_no_store_would_take_are_bad_usage(options: list[str]) -> None:
    complaint("enqueue", "greet", *options, code=2)


def test_messages_call_things_by_their_names() -> None:
    with Dibs().sync as store:
        [job] = store.enqueue(NewJob("greet"))
        [claim] = store.claim()
        claim.succeed()

    assert "'nope' is not a message id" in complaint("outbox", "redrive", "nope", code=2)
    assert "'nope' is not a pipeline id" in complaint("jobs", "list", "--pipeline-id", "nope", code=2)
    assert "only failed, cancelled or scheduled jobs can be retried" in complaint("jobs", "retry", job.id)
    assert "'jobs' does not name an app" in complaint("work", "jobs", code=2)
    assert "write shop.jobs:app" in complaint("work", "shop/jobs.py:app", code=2)


def test_what_is_no_table_is_named_by_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "no_table.py").write_text("from dibs import Dibs\napp = Dibs('memory://')")

    assert "can't claim rows of a Dibs: pass" in complaint("tables", "sql", "no_table:app")


def test_a_store_without_tables_is_named(postgresql: PostgreSQL) -> None:
    url = postgresql.fresh_database()

    said = complaint("jobs", "list", "--url", url)

    assert f"database {url.rpartition('/')[2]} has no dibs tables yet" in said
    assert "`manage.py migrate`" in said
    assert "`dibs migrate`" in said


def test_every_time_in_a_table_says_that_it_is_utc() -> None:
    with Dibs().sync as store:
        store.enqueue(NewJob("greet", train="a", delay=60))

    for words in (["jobs", "list"], ["trains"], ["trains", "show", "a"]):
        assert re.search(r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", dibs(*words).stdout, re.MULTILINE), (
            words
        )


# -- files that are not there -------------------------------------------------------------------

LOOKING = [
    *(["jobs", "list"], ["jobs", "show", UNKNOWN], ["jobs", "wait", UNKNOWN], ["why", UNKNOWN], ["queues"]),
    *(["trains"], ["trains", "show", "t"], ["slots"], ["pipelines"], ["schedules"], ["workers"]),
    *(["top", "--once"], ["doctor"], ["outbox", "list"]),
]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_command_that_only_looks_makes_no_file(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "typo.db"

    assert f"there is no file {file}: name the store by --url" in complaint(
        *words, "--url", f"sqlite:///{file}"
    )
    assert "no file dibs.db here, and no store was named" in complaint(*words)
    assert not file.exists()
    assert list(Path.cwd().iterdir()) == []


# -- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("jobs list --state done", "invalid value for '--state': 'done' is not one of 'scheduled', "),
        (
            "jobs list --limit x",
            "'--limit': 'x' is not a whole number; see dibs jobs list --help",
        ),
        ("jobs list --limit 0", "invalid value for '--limit': 0 is not in the range 1<=x<=1000; see"),
        ("jobs list --nonsense", "no such option: --nonsense; see dibs jobs list --help"),
        (
            "jobs list --since x",
            "'x' is not a duration: write 30, 30s, 10m, 2h or 7d; see",
        ),
        ("jobs list more", "got unexpected extra argument"),
        ("jobs nonsense", "no such command 'nonsense'; see dibs jobs --help"),
        ("nonsense", "no such command 'nonsense'; see dibs --help"),
        ("--nonsense", "no such option: --nonsense; see dibs --help"),
        ("why", "missing argument 'ID'; see dibs why --help"),
        ("why x", "'x' is not a job id"),
    ],
)
def test_a_mistake_in_what_was_typed_is_one_line_like_any_error(words: str, said: str) -> None:
    line = complaint(*words.split(), code=2)

    assert line.startswith("dibs: ")
    assert said in line
