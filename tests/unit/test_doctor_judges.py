"""What the doctor makes of what it is told: decided from values, without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Finding, Level, Queue, SchemaOutdated, StoreUnavailable, WorkerInfo
from dibs.doctor import Backlog, ClockDifference, HintCheck, StoreFacts, judge, unwell
from dibs.engines.sqlite.engine import file_system
from tests.support.param_names import named

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SAME, HEARD = ClockDifference(0.001, 0.0005), HintCheck(0.002)

POSTGRESQL: dict[tuple[str, str], str | None] = {
    ("version", "PostgreSQL"): "15.16 (Debian 15.16-0)",
    ("needs", "PostgreSQL"): "12",
    ("needs", "schema"): "2",
    ("setting", "fsync"): "on",
    ("setting", "full_page_writes"): "on",
    ("setting", "synchronous_commit"): "on",
    ("setting", "autovacuum"): "on",
    ("isolation", "own connections"): "read committed",
    ("connections", "used"): "3",
    ("connections", "most"): "100",
    ("bytes", "dibs_jobs"): "65536",
    ("live rows", "dibs_jobs"): "0",
    ("dead rows", "dibs_jobs"): "0",
    ("vacuumed", "dibs_jobs"): None,
}
SQLITE: dict[tuple[str, str], str | None] = {
    ("version", "SQLite"): "3.40.1",
    ("needs", "SQLite"): "3.35",
    ("setting", "journal_mode"): "wal",
    ("setting", "synchronous"): "2",
    ("file", "path"): "/srv/jobs.db",
    ("file", "bytes"): "8192",
    ("file", "file system"): "ext4",
    ("disk", "free bytes"): "900000000000",
    ("pages", "all"): "2",
    ("pages", "free"): "0",
}
REDIS: dict[tuple[str, str], str | None] = {
    ("version", "Redis"): "7.0.15",
    ("needs", "Redis"): "6.2",
    ("isolation", "own connections"): "one script at a time",
    ("setting", "appendonly"): "yes",
    ("setting", "appendfsync"): "always",
    ("setting", "maxmemory-policy"): "noeviction",
    ("memory", "used"): "1000000",
    ("memory", "most"): "100000000",
    ("connections", "used"): "3",
    ("connections", "most"): "10000",
}

MARIADB: dict[tuple[str, str], str | None] = {
    ("version", "MariaDB"): "10.11.19-MariaDB-0+deb12u1",
    ("needs", "MariaDB"): "10.6",
    ("needs", "schema"): "2",
    ("setting", "innodb_flush_log_at_trx_commit"): "1",
    ("setting", "innodb_doublewrite"): "on",
    ("setting", "sync_binlog"): "1",
    ("setting", "read_only"): "off",
    ("isolation", "own connections"): "read committed",
    ("isolation", "by default"): "repeatable read",
    ("hints", "new jobs"): "looked for",
    ("connections", "used"): "3",
    ("connections", "most"): "151",
    ("bytes", "dibs_jobs"): "65536",
    ("live rows", "dibs_jobs"): "0",
}


def look(
    facts: dict[tuple[str, str], str | None] = POSTGRESQL,
    *,
    clock: ClockDifference = SAME,
    echo: HintCheck | None = HEARD,
    schema: int = 2,
    **more: Any,
) -> list[Finding]:
    return judge(StoreFacts(facts=facts, clock=clock, now=NOW, **more), echo, schema)


def on(topic: str, findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.topic == topic]


def the(topic: str, findings: list[Finding]) -> Finding:
    [finding] = on(topic, findings)
    return finding


def worker(*, queues: list[str] | None = None, kinds: list[str] | None = None) -> WorkerInfo:
    return WorkerInfo(
        name="pod-a", queues=queues, kinds=kinds or ["greet"], concurrency=10, running=4,
        started_at=NOW, seen_at=NOW,
    )  # fmt: skip


@pytest.mark.parametrize(
    "facts",
    [POSTGRESQL, SQLITE, REDIS, MARIADB],
    ids=["postgresql", "sqlite", "redis", "mariadb-facts"],
)
def test_a_store_that_is_well_has_nothing_but_ok(facts: dict[tuple[str, str], str | None]) -> None:
    findings = look(facts, workers=[worker()])

    assert {one.level for one in findings} == {Level.ok}
    assert all(one.advice is None for one in findings)


@pytest.mark.parametrize(
    ("changed", "level", "topic", "words"),
    [
        ({("version", "PostgreSQL"): "11.22"}, "problem", "store", "too old: dibs needs 12"),
        ({("setting", "fsync"): "off"}, "problem", "durability", "fsync is off"),
        ({("setting", "full_page_writes"): "off"}, "problem", "durability", "can corrupt tables"),
        ({("setting", "synchronous_commit"): "off"}, "warning", "durability", "lose the last jobs"),
        ({("standby", "server"): "on"}, "problem", "writable", "standby"),
        ({("setting", "default_transaction_read_only"): "on"}, "problem", "writable", "read-only"),
        ({("isolation", "own connections"): "repeatable read"}, "warning", "isolation", "repeatable read"),
        ({("transaction", "pid 7 (psql)"): "90.5"}, "note", "transactions", "pid 7 (psql) has been open"),
        ({("transaction", "pid 7"): "7200"}, "warning", "transactions", "open for 2 h"),
        ({("prepared", "tx-1"): "7200"}, "warning", "transactions", "prepared tx-1 has been open for 2 h"),
        ({("slot", "standby_1"): "2000000"}, "warning", "transactions", "2,000,000 transactions"),
        ({("setting", "autovacuum"): "off"}, "warning", "tables", "autovacuum is off"),
        ({("dead rows", "dibs_jobs"): "500000"}, "warning", "tables", "500,000 dead rows beside 0 live"),
        ({("bytes", "dibs_jobs"): "3000000000"}, "note", "tables", "3.0 GB for 0 rows"),
        ({("connections", "used"): "95"}, "warning", "connections", "95 of 100"),
    ],
    ids=named,
)
def test_what_postgresql_may_suffer_from(
    changed: dict[tuple[str, str], str], level: str, topic: str, words: str
) -> None:
    finding = the(topic, look({**POSTGRESQL, **changed}))

    assert finding.level == level
    assert words in finding.sentence
    assert finding.advice


@pytest.mark.parametrize(
    ("changed", "level", "topic", "words"),
    [
        ({("version", "MariaDB"): "10.5.9-MariaDB"}, "problem", "store", "too old: dibs needs 10.6"),
        ({("setting", "innodb_flush_log_at_trx_commit"): "2"}, "warning", "durability", "the last second"),
        ({("setting", "sync_binlog"): "0"}, "warning", "durability", "leave replicas without jobs"),
        ({("setting", "innodb_doublewrite"): "off"}, "problem", "durability", "can corrupt tables"),
        ({("setting", "read_only"): "on"}, "problem", "writable", "read-only"),
        ({("isolation", "own connections"): "repeatable read"}, "warning", "isolation", "repeatable read"),
        ({("thread", "thread 7"): "7200"}, "warning", "transactions", "thread 7 has been open for 2 h"),
        (
            {("unseen", "transactions"): "the privilege PROCESS"},
            "note",
            "transactions",
            "without the privilege",
        ),
        ({("bytes", "dibs_jobs"): "3000000000"}, "note", "tables", "3.0 GB for 0 rows"),
        ({("connections", "used"): "150"}, "warning", "connections", "150 of 151"),
    ],
    ids=named,
)
def test_what_mariadb_may_suffer_from(
    changed: dict[tuple[str, str], str], level: str, topic: str, words: str
) -> None:
    finding = the(topic, look({**MARIADB, **changed}))

    assert finding.level == level
    assert words in finding.sentence
    assert finding.advice


def test_the_default_isolation_of_mariadb_is_told_and_no_fault() -> None:
    assert "your own begin at repeatable read" in the("isolation", look(MARIADB)).sentence


@pytest.mark.parametrize(
    ("changed", "level", "topic", "words"),
    [
        ({("version", "SQLite"): "3.31.1"}, "problem", "store", "dibs needs 3.35"),
        ({("setting", "journal_mode"): "delete"}, "problem", "durability", "journal_mode is delete"),
        ({("setting", "synchronous"): "1"}, "warning", "durability", "power cut"),
        ({("file", "file system"): "nfs4"}, "problem", "file", "network file system (nfs4)"),
        ({("kept", "jobs"): "nowhere"}, "note", "durability", "gone when this process ends"),
    ],
    ids=named,
)
def test_what_sqlite_may_suffer_from(
    changed: dict[tuple[str, str], str], level: str, topic: str, words: str
) -> None:
    finding = the(topic, look({**SQLITE, **changed}))

    assert finding.level == level
    assert words in finding.sentence
    assert finding.advice


@pytest.mark.parametrize(
    ("changed", "level", "topic", "words"),
    [
        ({("version", "Redis"): "6.0.16"}, "problem", "store", "dibs needs 6.2"),
        ({("setting", "appendonly"): "no"}, "warning", "durability", "since its last snapshot"),
        ({("setting", "save"): "off"}, "warning", "durability", "loses every job"),
        ({("setting", "appendfsync"): "everysec"}, "note", "durability", "appendfsync is everysec"),
        ({("setting", "appendfsync"): "no"}, "warning", "durability", "power cut"),
        ({("standby", "server"): "on"}, "problem", "writable", "standby"),
        ({("failing", "append-only file"): "err"}, "problem", "writable", "its last append-only file"),
        ({("memory", "used"): "95000000"}, "warning", "memory", "95 MB of 100 MB are used"),
        ({("connections", "used"): "9900"}, "warning", "connections", "9900 of 10000"),
    ],
    ids=named,
)
def test_what_redis_may_suffer_from(
    changed: dict[tuple[str, str], str], level: str, topic: str, words: str
) -> None:
    finding = the(topic, look({**REDIS, **changed}))

    assert finding.level == level
    assert words in finding.sentence
    assert finding.advice


@pytest.mark.parametrize(
    ("most", "level"), [("100000000", "problem"), (None, "note")], ids=["bounded", "unbounded"]
)
def test_a_store_that_evicts_is_a_problem_once_memory_has_a_bound(most: str | None, level: str) -> None:
    eager = {**REDIS, ("setting", "maxmemory-policy"): "allkeys-lru", ("memory", "most"): most}

    worse, fine = on("memory", look(eager))

    assert (worse.level, fine.level) == (level, "ok")
    assert "allkeys-lru" in worse.sentence


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({("disk", "free bytes"): "5000000"}, "5.0 MB are left"),
        ({("file", "log bytes"): "900000000"}, "log has grown to 900 MB"),
        ({("file", "bytes"): "900000000", ("pages", "free"): "70", ("pages", "all"): "100"}, "70% of it"),
    ],
    ids=named,
)
def test_a_file_that_is_there_may_still_want_care(changed: dict[tuple[str, str], str], words: str) -> None:
    worse = [one for one in on("file", look({**SQLITE, **changed})) if one.level != Level.ok]

    assert [words in one.sentence for one in worse] == [True]


def test_one_of_our_own_settings_can_be_bad_beside_good_ones() -> None:
    bad = {("setting", "fsync"): "off", ("setting", "synchronous_commit"): "off"}

    findings = on("durability", look({**POSTGRESQL, **bad}))

    assert [one.level for one in findings] == [Level.problem, Level.warning]


@pytest.mark.parametrize(
    ("clock", "level", "words"),
    [
        (ClockDifference(0.2, 0.001), "ok", "within 200 ms"),
        (ClockDifference(3.0, 2.0), "ok", "within 3.0 s"),
        (ClockDifference(2.0, 0.001), "note", "this machine is 2.0 s behind the store"),
        (ClockDifference(-30.0, 0.001), "warning", "this machine is 30 s ahead of the store"),
    ],
    ids=named,
)
def test_clocks_are_compared_no_more_exactly_than_they_were_read(
    clock: ClockDifference, level: str, words: str
) -> None:
    finding = the("clock", look(clock=clock))

    assert (finding.level, words in finding.sentence) == (level, True)


@pytest.mark.parametrize(
    ("echo", "level"),
    [
        (HintCheck(0.003), "ok"),
        (HintCheck(1.2), "note"),
        (HintCheck(None), "warning"),
        (HintCheck(None, "no LISTEN"), "warning"),
    ],
    ids=named,
)
def test_a_hint_that_does_not_come_back_is_a_warning(echo: HintCheck, level: str) -> None:
    finding = the("wake-ups", look(echo=echo))

    assert finding.level == level
    assert echo.error is None or echo.error in finding.sentence


def test_a_store_without_hints_is_not_blamed_for_it() -> None:
    assert on("wake-ups", look(SQLITE, echo=None)) == []


def test_tables_of_a_newer_dibs_are_worth_a_note() -> None:
    assert the("schema", look(schema=3)).level == Level.note


def test_a_store_that_cannot_be_examined_is_a_problem() -> None:
    outdated, away = unwell(SchemaOutdated(0, 2)), unwell(StoreUnavailable("gone"))

    assert (outdated.level, outdated.topic) == (Level.problem, "schema")
    assert "dibs migrate" in outdated.sentence
    assert (away.level, away.topic, away.sentence) == (Level.problem, "store", "gone")


# -- the work -----------------------------------------------------------------------------------


def ready(queue: str, seconds: float, jobs: int = 5) -> Backlog:
    return Backlog(queue, jobs, NOW - timedelta(seconds=seconds))


def queue(name: str, *, paused: bool = False, **counts: int) -> Queue:
    return Queue(name=name, paused=paused, limit=None, counts=counts)


def test_jobs_that_just_came_in_are_fine() -> None:
    assert the("waiting", look(backlog=[ready("mail", 2)])).level == Level.ok


def test_jobs_that_wait_for_long_are_a_warning_that_names_the_queue() -> None:
    finding = the("waiting", look(backlog=[ready("fast", 2), ready("mail", 300)], workers=[worker()]))

    assert finding.level == Level.warning
    assert "10 ready, the oldest for 5 min in the queue 'mail'" in finding.sentence
    assert "concurrency" in (finding.advice or "")


def test_without_a_worker_the_advice_is_to_start_one() -> None:
    assert the("waiting", look(backlog=[ready("mail", 300)])).advice == "start a worker"
    assert the("workers", look()).level == Level.note


def test_more_workers_are_not_advised_where_no_worker_takes_the_jobs() -> None:
    there = [worker(kinds=["greet"])]
    findings = look(backlog=[ready("mail", 300)], pairs=[("mail", "stranger")], workers=there)

    assert the("waiting", findings).level == Level.ok
    assert the("kinds", findings).level == Level.warning


def test_a_paused_queue_is_a_note_and_its_jobs_do_not_count_as_waiting() -> None:
    findings = look(backlog=[ready("mail", 300)], queues=[queue("mail", paused=True, ready=5)])

    assert the("waiting", findings).level == Level.ok
    assert the("queues", findings).level == Level.note
    assert the("queues", findings).sentence == "'mail' is paused with 5 ready jobs"


def test_a_paused_queue_with_one_job_has_one() -> None:
    findings = look(queues=[queue("mail", paused=True, ready=1)])

    assert the("queues", findings).sentence == "'mail' is paused with 1 ready job"


@pytest.mark.parametrize(
    ("here", "level"),
    [
        ([worker(kinds=["greet"])], None),
        ([worker(kinds=["other"])], "warning"),
        ([worker(queues=["slow"])], "warning"),
        ([worker(kinds=["other"]), worker()], None),
        ([], None),
    ],
    ids=named,
)
def test_a_kind_that_no_live_worker_takes_is_a_warning(here: list[WorkerInfo], level: str | None) -> None:
    found = on("kinds", look(pairs=[("mail", "greet")], workers=here))

    assert [one.level for one in found] == ([] if level is None else [level])


@pytest.mark.parametrize("what", ["next_lease", "next_due"])
@pytest.mark.parametrize(
    ("late", "here", "level"),
    [(1, [worker()], None), (20, [worker()], "warning"), (20, [], "note")],
    ids=named,
)
def test_upkeep_that_is_late_is_said(what: str, late: int, here: list[WorkerInfo], level: str | None) -> None:
    found = on("upkeep", look(**{what: NOW - timedelta(seconds=late)}, workers=here))

    assert [one.level for one in found] == ([] if level is None else [level])


# -- files --------------------------------------------------------------------------------------


def test_the_innermost_mount_says_what_file_system_a_file_is_on() -> None:
    mounts = "/dev/a / ext4 rw 0 0\nserver:/x /srv/our\\040files nfs4 rw 0 0\ntmpfs /srv/our tmpfs rw 0 0\n"

    assert file_system("/srv/our files/jobs.db", mounts) == "nfs4"
    assert file_system("/srv/other/jobs.db", mounts) == "ext4"
    assert file_system("/srv/ourselves.db", mounts) == "ext4"


def test_jobs_that_an_interrupted_move_left_on_the_way_are_a_warning() -> None:
    finding = the("move", look(workers=[worker()], departed=20))

    assert finding.level == Level.warning
    assert "20 jobs are on the way to another store" in finding.sentence
    assert "run the same one again" in str(finding.advice)
