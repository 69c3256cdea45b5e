"""`dibs move` as people type it: from engine to engine, killed in between, and refused with the reason."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dibs import Dibs, NewJob, SyncDibs
from dibs.jobs.job import STORED_TYPES
from tests.support.commands import answer, dibs, enqueue, lines
from tests.support.internals import engine_of
from tests.support.matrix import MYSQLS
from tests.support.moves import ELSEWHERE, ask, ids, left_behind, settle, stored
from tests.support.servers import PostgreSQL, mysql_connection

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def stop(
    tmp_path: Path, empty_redis: Callable[..., str], request: pytest.FixtureRequest
) -> Callable[[str], str]:
    """Return the URL of an empty store of an engine, with its tables."""
    numbers = itertools.count()

    def make(engine: str) -> str:
        if engine == "redis":
            return empty_redis("redis")
        if engine == "sqlite":
            return f"sqlite:///{tmp_path}/{next(numbers)}.db"
        url: str = request.getfixturevalue(engine).fresh_database()
        assert dibs("migrate", "--url", url).exit_code == 0
        return url

    return make


@contextlib.contextmanager
def opened(url: str) -> Iterator[Dibs]:
    app = Dibs(url)
    try:
        app.sync.open()
        yield app
    finally:
        app.sync.close()


def fill(app: Dibs, many: int) -> None:
    """Enqueue jobs in every state but running; one in ten has a unique key, one in five a pipeline."""
    store, sixth = app.sync, many // 6
    for first in range(0, many, 5000):
        store.enqueue(*(_new(n) for n in range(first, min(first + 5000, many))))
    for claims in _claimed(store, sixth):
        settle(app, claims, "succeeded", result='"well"')
    for claims in _claimed(store, sixth):
        settle(app, claims, "failed", errors=_ERRORS)
    for claims in _claimed(store, sixth):
        settle(app, claims, "scheduled", delay=3_600_000_000)
    for first in range(0, sixth, 500):
        found = store.find(state="ready", limit=min(500, sixth - first))
        ask(app, "cancel", ids=[job.id for job in found], reason="enough")


_ERRORS = (
    '[{"attempt":1,"token":1,"at":"2030-01-01T00:00:00Z","worker":"pod","type":"E",'
    '"message":"no","traceback":null}]'
)
_PIPELINE = UUID(int=99)


def _new(n: int) -> NewJob:
    return NewJob(
        f"kind {n % 5}",
        args={"n": n, "text": 'é"\\' * 5},
        queue=f"queue {n % 3}",
        priority=n % 4,
        unique=f"key {n}" if n % 10 == 0 else None,
        pipeline_id=_PIPELINE if n % 5 == 0 else None,
        delay=3600 if n % 6 == 5 else None,
        tags=["even"] if n % 2 == 0 else (),
    )


def _claimed(store: SyncDibs, many: int) -> Iterator[list[Any]]:
    left = many
    while left > 0 and (claims := store.claim(limit=min(left, 500), worker="pod", lease=600)):
        yield claims
        left -= len(claims)


# -- From engine to engine ------------------------------------------------------------------------


def around(stop: Callable[[str], str], engines: list[str], many: int) -> list[float]:
    """Move jobs of all states from store to store, compare everything at each; return the durations."""
    urls = [stop(engine) for engine in engines]
    took = []
    with opened(urls[0]) as first:
        fill(first, many)
        counts, before = first.sync.counts(), stored(first)
    for here, there in itertools.pairwise(urls):
        begun = time.monotonic()
        moved = answer("move", "--from", here, "--to", there)
        took.append(time.monotonic() - begun)
        assert sum(moved["jobs"].values()) == len(before) == many
        with opened(there) as target, opened(here) as source:
            assert target.sync.counts() == counts
            assert {job.id for job in stored(target)} == {job.id for job in before}
            assert sum(source.sync.counts().values()) == 0
            assert left_behind(source, target) == []
    with opened(urls[-1]) as last:
        assert stored(last) == before
    assert all(counts[state] > 0 for state in counts if state not in ("running", "blocked"))
    return took


def test_from_engine_to_engine_and_back_everything_is_as_it_was(stop: Callable[[str], str]) -> None:
    around(stop, ["sqlite", "postgresql", "mariadb", "mysql", "redis", "postgresql", "sqlite"], 120)


@pytest.mark.long
def test_fifty_thousand_jobs_of_all_states_go_around(stop: Callable[[str], str]) -> None:
    took = around(stop, ["sqlite", "postgresql", "redis", "sqlite"], 50_000)
    print("seconds per move of 50,000 jobs:", *(f"{seconds:.1f}" for seconds in took))


# -- Killed -------------------------------------------------------------------------------------

SMALL_BATCHES = """
import sys
from dibs.cli import main
from dibs.moving import transfer
transfer._next_batch = lambda texts: 20
sys.argv[0] = "dibs"
main()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def start_move(source: str, target: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SMALL_BATCHES, "move", "--from", source, "--to", target])


class Claimers:
    """Threads that claim and settle jobs in both stores, and count them."""

    def __init__(self, *urls: str) -> None:
        self.done: Counter[UUID] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=[url]) for url in urls]

    def __enter__(self) -> Counter[UUID]:
        for thread in self._threads:
            thread.start()
        return self.done

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, url: str) -> None:
        with opened(url) as app:
            while not self._over.wait(0.02):
                for claim in app.sync.claim(kinds=["quick"], limit=5):
                    self.done[claim.job.id] += 1
                    claim.succeed()
                    app.sync.delete(claim.job.id)  # the hardest case: no finished job is left


@pytest.mark.parametrize(
    ("one", "other"), [("sqlite", "postgresql"), ("mariadb", "redis"), ("redis", "sqlite")]
)
def test_a_mover_killed_again_and_again_loses_and_doubles_nothing(
    stop: Callable[[str], str], one: str, other: str
) -> None:
    here, there = stop(one), stop(other)
    with opened(here) as source, opened(there) as target:
        kept = source.sync.enqueue(*(NewJob("kept", args={"n": n}, unique=f"key {n}") for n in range(400)))
        quick = source.sync.enqueue(*(NewJob("quick") for _ in range(200)))
        kills = 0

        with Claimers(here, there) as done:
            for part in (1, 150, 300):
                mover = start_move(here, there)
                wait_until(lambda: target.sync.counts()["ready"] >= part or mover.poll() is not None)  # noqa: B023
                kills += mover.poll() is None
                mover.kill()
                mover.wait()
            assert start_move(here, there).wait(60) == 0
            wait_until(lambda: len(done) >= len(quick))

        assert kills >= 2, "it was too quick to be killed"
        assert set(done) == {job.id for job in quick}
        assert set(done.values()) == {1}
        assert ids(target) == {job.id for job in kept}
        assert ids(source) == set()
        assert left_behind(source, target) == []


def test_interrupted_by_ctrl_c_it_says_that_nothing_is_lost(stop: Callable[[str], str]) -> None:
    here, there = stop("sqlite"), stop("sqlite")
    with opened(here) as source:
        source.sync.enqueue(*(NewJob("work") for _ in range(50)))
        [claim] = source.sync.claim()
        mover = subprocess.Popen(
            [sys.executable, "-m", "dibs.cli", "move", "--from", here, "--to", there],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: source.sync.counts()["ready"] == 0)

        os.kill(mover.pid, signal.SIGINT)  # waits for the running job

        _, said = mover.communicate(timeout=30)
        assert (mover.returncode, lines(said)) == (
            130,
            ["dibs: interrupted; nothing is lost: run the same move again, and it continues"],
        )
        claim.succeed()
        assert answer("move", "--from", here, "--to", there)["problems"] == []
    with opened(there) as target:
        counts = target.sync.counts()
        assert (counts["ready"], counts["succeeded"]) == (49, 1)


# -- What it says -------------------------------------------------------------------------------


def test_it_says_what_was_moved_and_nothing_else_in_a_pipe(store: SyncDibs) -> None:
    enqueue(store)
    enqueue(store, delay=60)
    store.pause("mail")

    planned = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db", "--dry-run")
    done = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db")
    again = dibs("move", "--to", "sqlite:///new.db", DIBS_FROM="sqlite:///dibs.db")  # `ps` shows no password

    assert planned.stdout == "would move 2 jobs: 1 scheduled, 1 ready; and 1 queue setting\n"
    assert done.stdout == "moved 2 jobs: 1 scheduled, 1 ready; and 1 queue setting\n"
    assert again.stdout == "moved 0 jobs; and 1 queue setting\n"
    assert planned.stderr == ""
    resume = "paused in the target: mail; `dibs queues resume NAME` there lets them go on"
    assert lines(done.stderr) == lines(again.stderr) == [resume]
    assert (planned.exit_code, done.exit_code, again.exit_code) == (0, 0, 0)


def test_a_dry_run_lists_the_jobs_that_would_stay_and_what_to_do(store: SyncDibs) -> None:
    enqueue(store, queue="mail", train="a")

    planned = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db", "--dry-run")

    assert (planned.exit_code, planned.stdout) == (0, "would move 0 jobs\n")
    assert "1 job of the queue 'mail' would stay" in planned.stderr
    assert "`dibs queues pause`" in planned.stderr


def test_a_held_train_stays_with_the_command_that_releases_it(store: SyncDibs) -> None:
    head, _ = (enqueue(store, train="t", on_failed="hold") for _ in range(2))
    [claim] = store.claim()
    claim.fail("no", retry=False)

    move = ("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db")
    planned, done = dibs(*move, "--dry-run"), dibs(*move)

    assert (planned.exit_code, planned.stdout) == (0, "would move 0 jobs\n")
    assert (done.exit_code, done.stdout) == (1, "moved 0 jobs\n")
    assert lines(done.stderr) == [f"dibs: {line}" for line in lines(planned.stderr)]
    assert lines(planned.stderr) == [
        f"2 jobs of the train 't' stay: job {head.id} failed and holds them; `dibs trains release t` or "
        f"`dibs jobs retry {head.id}`, then move again"
    ]


def test_on_a_terminal_there_is_a_bar(store: SyncDibs) -> None:
    enqueue(store)
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "100", "TERM": "xterm-256color"}

    done = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db", **terminal)

    assert "1/1" in done.stderr
    assert done.stdout == "moved 1 job: 1 ready\n"


def test_what_was_left_behind_is_exit_code_1_and_the_reason(store: SyncDibs) -> None:
    enqueue(store, unique="key")
    with opened("sqlite:///new.db") as target:
        enqueue(target.sync, unique="key")

    done = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db")

    assert done.exit_code == 1
    assert done.stdout == "moved 0 jobs\n"
    [reason] = lines(done.stderr)
    assert "of the target has its unique key 'key'" in reason


def test_running_jobs_are_left_with_running_leave(store: SyncDibs) -> None:
    enqueue(store)
    [claim] = store.claim()

    left = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db", "--running", "leave")
    late = dibs("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///new.db", "--timeout", "0")

    assert (left.exit_code, late.exit_code) == (0, 1)
    assert lines(left.stderr) == ["1 job still running in the source: run the move again later"]
    assert lines(late.stderr)[-1] == "dibs: 1 job still ran when the time was up; run the move again later"
    claim.succeed()


def test_a_target_without_tables_is_refused_with_the_command_that_makes_them(
    store: SyncDibs, postgresql: PostgreSQL
) -> None:
    job = enqueue(store)
    url = postgresql.fresh_database()

    done = dibs("move", "--from", "sqlite:///dibs.db", "--to", url)

    assert (done.exit_code, done.stdout) == (1, "")
    assert f"run `dibs migrate --url {url}`" in done.stderr
    assert store.get(job.id) is not None


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("sqlite:///dibs.db", "sqlite:///./dibs.db", "both addresses lead to the same store"),
        ("sqlite:///typo.db", "sqlite:///new.db", "there is no file typo.db to move from"),
        ("sqlite:///dibs.db", "oracle://shop", "no store for 'oracle' URLs"),
        ("sqlite:///dibs.db", "memory://", "memory:// ends with its process"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_the_reason(
    store: SyncDibs, source: str, target: str, words: str
) -> None:
    job = enqueue(store)

    done = dibs("move", "--from", source, "--to", target)

    assert (done.exit_code, done.stdout, len(lines(done.stderr))) == (1, "", 1)
    assert words in done.stderr
    assert store.get(job.id) is not None
    assert not Path("typo.db").exists()


def test_without_a_place_to_move_to_it_is_bad_usage(store: SyncDibs) -> None:
    done = dibs("move", "--from", "sqlite:///dibs.db")

    assert (done.exit_code, lines(done.stderr)) == (2, ["dibs: name the store to move to: --to URL"])


def test_prefixes_of_one_database_are_two_stores(store: SyncDibs) -> None:
    job = enqueue(store)

    there = answer("move", "--from", "sqlite:///dibs.db", "--to", "sqlite:///dibs.db", "--to-prefix", "other")

    assert there["jobs"] == {"ready": 1}
    with opened("sqlite:///dibs.db") as same:
        assert ids(same) == set()
    other = Dibs("sqlite:///dibs.db", prefix="other")
    assert ids(other) == {job.id}
    other.sync.close()


def test_what_a_lost_target_was_to_get_can_be_given_back(store: SyncDibs) -> None:
    job = enqueue(store)
    with opened("sqlite:///dibs.db") as app:
        ask(app, "depart", store=ELSEWHERE, after=None, limit=1)

    no = dibs("move", "--from", "sqlite:///dibs.db", "--give-back", input="n\n")
    yes = answer("move", "--from", "sqlite:///dibs.db", "--give-back", "--yes")

    assert (no.exit_code, yes) == (1, {"given_back": 1})
    assert store.get(job.id) is not None


# -- Nothing forgotten --------------------------------------------------------------------------

# Columns that a store derives from the others, or needs only within one call.
NOT_MOVED = {one: {"precedence", "due_at", "stored_by", "gate", "place", "key_is_free"} for one in MYSQLS}


def _columns(engine: str, url: str, table: str) -> set[str]:
    if engine == "sqlite":
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return {row[1] for row in connection.execute(f"pragma table_info({table})")}
    sql = "select column_name from information_schema.columns where table_schema = {} and table_name = %s"
    if engine == "postgresql":
        with psycopg.connect(url) as postgres:
            return {row[0] for row in postgres.execute(sql.format("current_schema()"), [table])}
    with contextlib.closing(mysql_connection(url)) as mysql, mysql.cursor() as cursor:
        cursor.execute(sql.format("database()"), [table])
        return {row[0] for row in cursor.fetchall()}


@pytest.mark.parametrize("table", ["dibs_jobs", "dibs_finished"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"])
def test_every_column_that_a_store_keeps_of_a_job_is_moved(
    engine: str, table: str, request: pytest.FixtureRequest
) -> None:
    fixture = {"sqlite": "migrated_file", "postgresql": "migrated_database"}
    url = str(request.getfixturevalue(fixture.get(engine, f"migrated_{engine}")))

    kept = _columns(engine, url, table) - NOT_MOVED.get(engine, set())

    assert kept == set(STORED_TYPES), "add it to StoredJob in jobs.py, and it is moved"


@pytest.mark.parametrize("engine", ["memory", "redis"])
def test_a_field_that_the_move_does_not_know_stops_it(engine: str, request: pytest.FixtureRequest) -> None:
    """Refuse, also without columns to compare, to move a job without all of its fields."""
    url = "memory://" if engine == "memory" else request.getfixturevalue("empty_redis")("redis")
    with opened(url) as app:
        [job] = app.sync.enqueue(NewJob("work"))
        if engine == "memory":
            engine_of(app)._live[job.id]["novelty"] = 1
        else:
            import redis

            with contextlib.closing(redis.Redis.from_url(url)) as client:
                client.hset(f"{{dibs}}:job:{job.id}", "novelty", 1)

        with pytest.raises((TypeError, KeyError), match="novelty"):
            ask(app, "depart", store=ELSEWHERE, after=None, limit=1)
