"""Trains, slots and unique keys on MariaDB: many at once, slow commits, locks, and broken rules."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from dibs import Dibs, DibsError, Job, NewJob
from dibs.engines import retries
from dibs.engines.mysql.engine import MySQL
from dibs.engines.sql.blocks import placeholders, schema_files, schema_version, statements
from dibs.engines.sql.engine import Plan
from tests.support.fault_stores import Place, Places, answers_within, blocks, mutate, together
from tests.support.internals import age
from tests.support.matrix import MYSQLS
from tests.support.servers import MariaDB, mysql_connection

AT_ONCE_SECONDS = 5.0  # a lock is waited for twice as long


@pytest.fixture(params=MYSQLS)
def store(request: pytest.FixtureRequest, places: Places) -> Place:
    return places(request.param)


# -- What must hold, always (ADR 12) ------------------------------------------------------------

ASTRAY = {
    "two of a train may go": """
        select train from dibs_jobs
        where train is not null and state <> 'blocked'
        group by train having count(*) > 1
    """,
    "somebody else than the first of a train may go": """
        select job.id from dibs_jobs job
        where job.train is not null and job.state <> 'blocked' and exists (
            select 1 from dibs_jobs ahead where ahead.train = job.train and ahead.position < job.position
        )
    """,
    "a train is stuck": """
        select job.train from dibs_jobs job
        where job.train is not null
          and not exists (
              select 1 from dibs_jobs head where head.train = job.train and head.state <> 'blocked'
          )
          and not exists (
              select 1 from dibs_gates gate
              where gate.sort = 'train' and gate.name = job.train and gate.held_by is not null
          )
    """,
    "too many of a slot may go": """
        select slot from dibs_jobs
        where slot is not null and state in ('ready', 'running')
        group by slot having count(*) > min(slot_limit)
    """,
    "a slot is stuck": """
        select job.slot from dibs_jobs job
        where job.slot is not null and job.state = 'blocked' and not exists (
            select 1 from dibs_jobs going
            where going.slot = job.slot and going.state in ('ready', 'running')
        )
    """,
    "a gate is missing": """
        select job.gate from dibs_jobs job
        left join dibs_gates gate on concat(left(gate.sort, 1), gate.name) = job.gate
        where job.gate is not null and gate.name is null
    """,
    "a gate was left behind": """
        select gate.name from dibs_gates gate
        left join dibs_jobs job on job.gate = concat(left(gate.sort, 1), gate.name)
        where job.id is null and gate.held_by is null
    """,
}


def astray(place: Place) -> list[str]:
    return [wrong for wrong, look in ASTRAY.items() if place.sql(look.strip())]


def drain(app: Dibs) -> list[Any]:
    """Ids in the order in which one claimer takes them."""
    order = []
    while claims := app.sync.claim(limit=50):
        order += [claim.job.id for claim in claims]
        for claim in claims:
            claim.succeed()
    return order


# -- Many at once -------------------------------------------------------------------------------

PRODUCERS, SLOW = 50, 8


def at_once(place: Place, options: Mapping[str, Any], producers: int = PRODUCERS) -> list[Job]:
    """So many enqueue one job each at the same moment, a few in transactions that are slow to commit."""
    app = place.app(pool_size=10)
    app.sync.counts()

    def put() -> Job:
        return app.sync.enqueue(NewJob("work", **options))[0]

    def put_slowly() -> Job:
        with contextlib.closing(mysql_connection(place.url, autocommit=False)) as connection:
            job = app.sync.enqueue(NewJob("work", **options), within=connection)[0]
            time.sleep(0.05)
            connection.commit()
            return job

    return together(*[put_slowly] * SLOW, *[put] * (producers - SLOW))


def test_producers_who_meet_on_a_train_make_one_head(store: Place) -> None:
    jobs = at_once(store, {"train": "t"})

    assert astray(store) == []
    assert store.app().sync.counts()["ready"] == 1
    order = drain(store.app())
    assert len(order) == PRODUCERS
    assert set(order) == {job.id for job in jobs}
    assert astray(store) == []


@pytest.mark.parametrize("policy", ["wait", "replace", "preempt", "drop"])
def test_producers_who_meet_in_a_slot_let_one_go(store: Place, policy: str) -> None:
    at_once(store, {"slot": "s", "slot_policy": policy}, producers=20)

    counts = store.app().sync.counts()
    assert counts["ready"] == 1
    assert counts["cancelled"] == (19 if policy == "replace" else 0)
    assert sum(counts.values()) == (1 if policy == "drop" else 20)
    assert astray(store) == []
    drain(store.app())
    assert astray(store) == []


@pytest.mark.parametrize("options", [{}, {"unique_for": 60}, {"on_conflict": "replace"}], ids=repr)
def test_producers_who_meet_at_a_key_store_one_job(store: Place, options: dict[str, Any]) -> None:
    jobs = at_once(store, {"unique": "key", **options})

    assert len({job.id for job in jobs}) == 1
    assert sum(job.is_new for job in jobs) == 1
    assert sum(store.app().sync.counts().values()) == 1


def test_two_open_transactions_that_replace_one_job_never_undo_each_other(
    store: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked who has the key before either stores its job."""
    app = store.app().sync
    [old] = app.enqueue(NewJob("work", unique="key"))
    have_looked, stores = threading.Barrier(2, timeout=10), MySQL._store

    def store_together(*given: Any, **options: Any) -> Plan:
        have_looked.wait()
        return (yield from stores(*given, **options))

    monkeypatch.setattr(MySQL, "_store", store_together)

    def replace(n: int) -> Job:
        with contextlib.closing(mysql_connection(store.url, autocommit=False)) as connection:
            new = NewJob("work", {"n": n}, unique="key", on_conflict="replace")
            [job] = app.enqueue(new, within=connection)
            connection.commit()
            return job

    jobs = together(lambda: replace(1), lambda: replace(2))

    assert [(job.id, job.is_new) for job in jobs] == [(old.id, False)] * 2
    assert app.get(old.id).args["n"] in (1, 2)


def test_workers_and_producers_at_the_same_gates_never_run_two(store: Place) -> None:
    assert storm(store) == ""


def storm(place: Place) -> str:
    """Jobs end, fail, come back, are cancelled, and run out of time, while others come."""
    seen: list[int] = []
    kept: list[Any] = []

    def work(app: Dibs) -> None:
        for _ in range(25):
            for claim in app.sync.claim(limit=3, lease=60):
                others = app.sync.find(state="running", train=claim.job.train, slot=claim.job.slot)
                seen.append(len([job for job in others if job.train or job.slot]))
                ends = [claim.succeed, claim.release, lambda claim=claim: claim.fail("broken")]
                ends[len(seen) % 3]()

    def produce(app: Dibs) -> None:
        for number in range(15):
            gates = [{"train": f"t{number % 2}"}, {"slot": f"s{number % 2}"}]
            kept.extend(app.sync.enqueue(*(NewJob("work", **gate) for gate in gates)))

    def meddle(app: Dibs) -> None:
        for _ in range(10):
            app.sync.sweep()
            for job in kept[-2:]:
                with contextlib.suppress(DibsError):
                    app.sync.cancel(job.id)

    apps = place.apps(6)
    works: list[Callable[[Dibs], None]] = [produce, produce, meddle, work, work, work]
    together(*[lambda work=work, app=app: work(app) for work, app in zip(works, apps, strict=True)])
    if len(seen) < 15:
        return f"hardly anything happened: {len(seen)} claims"
    if max(seen) > 1:
        return "two of a gate ran at the same time"
    return ", ".join(astray(place))


def test_trains_in_bulk_and_in_any_order_meet_no_error(store: Place) -> None:
    """One call locks all its gates in one order, whatever the order of its jobs."""
    apps = store.apps(6)
    names = [f"t{number}" for number in range(20)]

    def put(app: Dibs, names: list[str]) -> None:
        for _ in range(4):
            app.sync.enqueue(*(NewJob("work", train=name) for name in names))

    together(*[lambda app=app, n=n: put(app, names[n:] + names[:n]) for n, app in enumerate(apps)])

    assert astray(store) == []
    assert [train.length for train in apps[0].sync.trains.list()] == [24] * 20


# -- Those who use no gates are never blocked ---------------------------------------------------


@contextlib.contextmanager
def an_open_gate(place: Place, isolation: str) -> Iterator[Any]:
    """Somebody enqueued at gates where others are, and has yet to commit."""
    app = place.app()
    app.sync.enqueue(NewJob("gated", slot="s"), NewJob("gated", slot="s"), NewJob("gated", train="t"))
    with contextlib.closing(mysql_connection(place.url, autocommit=False)) as connection:
        connection.query(f"set session transaction isolation level {isolation}")
        connection.begin()
        app.sync.enqueue(
            NewJob("gated", slot="s"), NewJob("gated", train="t"), NewJob("new", slot="n"), within=connection
        )
        yield connection.rollback


@pytest.mark.parametrize("plain", [0, 3], ids=["no-plain-jobs", "some-plain-jobs"])
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_whoever_works_at_a_gate_blocks_nobody_without_one(store: Place, isolation: str, plain: int) -> None:
    for _ in range(plain):
        store.app().sync.enqueue(NewJob("work"))

    with an_open_gate(store, isolation) as end:
        assert answers_within(AT_ONCE_SECONDS, lambda: use_no_gates(store.app()), then=end) == [plain + 3]


def test_a_gate_that_changed_since_your_snapshot_is_seen_as_it_is(store: Place) -> None:
    """At REPEATABLE READ a plain read would show who was there when the transaction began."""
    app = store.app().sync
    old = app.enqueue(NewJob("work", train="t"), NewJob("work", slot="s"))
    with contextlib.closing(mysql_connection(store.url, autocommit=False)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("select * from dibs_jobs")
        for job in old:
            app.claim_job(job.id).succeed()
        others = app.enqueue(NewJob("work", train="t"))

        mine = [
            app.enqueue(NewJob("work", train="t"), NewJob("work", slot="s"), within=connection)
            for _ in range(2)
        ]
        connection.commit()

    assert [app.get(job.id).state for jobs in mine for job in jobs] == [
        "blocked",
        "ready",
        "blocked",
        "blocked",
    ]
    assert app.get(others[0].id).state == "ready"
    assert astray(store) == []


def use_no_gates(app: Dibs) -> int:
    app.sync.enqueue(NewJob("work"), NewJob("work", delay=0.001, priority=5))
    app.sync.enqueue(NewJob("work", unique="key"))
    time.sleep(0.01)
    app.sync.sweep()
    claims = app.sync.claim(kinds=["work"], limit=10)
    for claim in claims:
        claim.succeed()
    return len(claims)


# -- What is read -------------------------------------------------------------------------------

CROWD = 5000
MOST_ROWS = 30

HOT: dict[str, Mapping[str, Any]] = {
    "train_heads": {"gates": json.dumps(["tcrowd"])},
    "train_heads_newest": {"gates": json.dumps(["tcrowd"])},
    "slot_line": {"gate": "scrowd", "limit": 2},
    "slot_running": {"gate": "scrowd"},
    "slot_in_use": {"gate": "scrowd"},
    "current": {"slots": json.dumps(["crowd"]), "gates": json.dumps(["scrowd"])},
    "lasting": {"keys": json.dumps(["nobody"])},
    "offers_over": {"limit": 5},
    "due_in_slots": {"limit": 5},
    "expired_at_gates": {"limit": 5},
    "held_by": {"ids": json.dumps([uuid4().hex])},
    "gates_of": {"ids": json.dumps([uuid4().hex])},
    "near": {"queue": "default", "kind": "work", "limit": 3},
    "lock_first": {"queue": "default", "kind": "work", "limit": 3},
    "opening": {"look": 1},
    "upcoming": {},
}


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "statistics of an empty table"])
def test_a_statement_at_a_crowded_gate_reads_only_what_it_is_about(store: Place, analyzed: bool) -> None:
    for table in ("dibs_jobs", "dibs_finished"):
        store.sql(f"alter table {table} stats_persistent = 1, stats_auto_recalc = 0")
        store.sql(f"analyze table {table}")
    app = store.app()
    for gate in ({"train": "crowd"}, {"slot": "crowd"}, {}):
        app.sync.enqueue(*(NewJob("work", **gate) for _ in range(CROWD)))
    app.sync.claim_job(app.sync.find(slot="crowd", state="ready")[0].id)
    if analyzed:
        store.sql("analyze table dibs_jobs, dibs_finished")

    texts = blocks(app)
    with contextlib.closing(store.connect()) as connection:
        read = {name: _rows_read(connection, texts[name], given) for name, given in HOT.items()}

    assert {name: rows for name, rows in read.items() if rows > MOST_ROWS} == {}
    assert read["slot_line"] >= 2


def _rows_read(connection: Any, text: str, given: Mapping[str, Any]) -> int:
    """How many rows the server's tables handed over; nothing is kept."""
    statement, _ = placeholders(text, "pyformat")
    connection.begin()
    with connection.cursor() as cursor:
        cursor.execute("flush status")
        cursor.execute(statement, given or None)
        cursor.fetchall()
        cursor.execute("show session status like 'handler_read%'")
        counted = sum(int(many) for _, many in cursor.fetchall())
    connection.rollback()
    return counted


def test_a_plain_claim_does_not_write_to_the_index_of_gates(store: Place) -> None:
    """Its columns are null, or stay as they are."""
    app = store.app()
    app.sync.enqueue(NewJob("work"))
    look = "select gate, place, position, precedence, run_at, id from dibs_jobs"
    before = store.sql(look)

    app.sync.claim()

    assert store.sql(look) == before
    assert before[0][:3] == (None, None, None)


# -- The migration ------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", MYSQLS)
def test_a_migration_that_was_interrupted_anywhere_can_be_run_again(
    engine: str, request: pytest.FixtureRequest
) -> None:
    """Making and altering tables can't be undone here; MySQL has no `add column if not exists`."""
    server: MariaDB = request.getfixturevalue(engine)
    dialect = MySQL().dialect
    texts = {version: statements(dialect.rename(text)) for version, text in schema_files("mysql")}
    lasting = [at for at, text in enumerate(texts[4], 1) if text.startswith(("execute", "create"))]
    assert len(lasting) == 3
    for done in (0, *lasting):
        url = server.create_database(f"interrupted_{done}")
        with contextlib.closing(mysql_connection(url, autocommit=True)) as connection:
            for statement in [*texts[1], *texts[2], *texts[3], *texts[4][:done]]:
                connection.query(statement)
            connection.query("create table dibs_schema (version integer not null primary key)")
            connection.query("insert into dibs_schema values (1), (2), (3)")

        with contextlib.closing(Dibs(url).sync) as app:
            assert app.migrate() == list(range(4, schema_version("mysql") + 1))
            assert app.enqueue(NewJob("work", train="t"))[0].state == "ready"
        server.drop_database(f"interrupted_{done}")


# -- Rules broken on purpose --------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """What is broken, by which changes (block, text, what instead), and who must notice."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    scene: Callable[[Place], str]

    def hurt(self, app: Dibs) -> None:
        for change in self.changes:
            mutate(app, *change)


def a_head_ends(place: Place) -> str:
    app = place.app().sync
    jobs = app.enqueue(*(NewJob("work", train="t") for _ in range(3)))
    for job in jobs:
        [claim] = app.claim(limit=5)
        if claim.job.id != job.id:
            return "not in order"
        claim.succeed()
    return ""


def a_slot_is_taken(place: Place) -> str:
    app = place.app().sync
    first, second = app.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    app.claim_job(first.id)
    return "both run" if app.claim_job(second.id) else ""


def a_turn_comes_while_a_sibling_runs(place: Place) -> str:
    app = place.app()
    first, later = app.sync.enqueue(NewJob("work", slot="s"), NewJob("work", slot="s", delay=60))
    app.sync.claim_job(first.id, lease=600)
    age(app, 61)
    claimed = app.sync.claim(limit=5)
    return "" if not claimed and app.sync.get(later.id).state == "blocked" else "two may go"


def a_holder_is_kept(place: Place) -> str:
    app = place.app()
    first, _ = app.sync.enqueue(*(NewJob("work", train="t", on_failed="hold") for _ in range(2)))
    app.sync.claim_job(first.id).fail("broken", retry=False)
    age(app, 60)
    return "pruned" if app.sync.prune(0) else ""


def a_key_lasts(place: Place) -> str:
    app = place.app().sync
    [job] = app.enqueue(NewJob("work", unique="key", unique_for=60))
    app.claim_job(job.id).succeed()
    return "a second job" if app.enqueue(NewJob("work", unique="key"))[0].is_new else ""


def producers_meet(place: Place) -> str:
    apps = place.apps(6)
    for number in range(6):
        train = f"t{number}"
        new = {"kind": "work", "train": train}
        together(*[lambda app=app, new=new: app.sync.enqueue(NewJob(**new)) for app in apps])
        if wrong := astray(place):
            return ", ".join(wrong)
    return ""


def a_corpse_is_swept(place: Place) -> str:
    app = place.app()
    first, second = app.sync.enqueue(*(NewJob("work", train="t", max_attempts=1) for _ in range(2)))
    app.sync.claim_job(first.id, lease=1)
    age(app, 5)
    app.sync.sweep()
    return "" if app.sync.get(second.id).state == "ready" else "stuck"


def a_claim_waits_for_no_gate(place: Place) -> str:
    """A claimer has locked the ready one and is about to take it; whoever is at the gate must see that."""
    app = place.app()
    first, second = app.sync.enqueue(*(NewJob("work", slot="s") for _ in range(2)))
    with contextlib.closing(place.connect()) as claimer:
        claimer.begin()
        claimer.execute("select id from dibs_jobs where id = %s for update", (first.id.bytes,))

        def take() -> None:
            claimer.execute(
                "update dibs_jobs set state = 'running', token = 1, worker = 'w', "
                "lease_until = utc_timestamp() + interval 60 second where id = %s",
                (first.id.bytes,),
            )
            claimer.commit()

        answers_within(0.3, lambda: app.sync.claim_job(second.id), then=take)
    states = [app.sync.get(job.id).state.value for job in (first, second)]
    return "" if states == ["running", "blocked"] else f"they are {states}"


MUTANTS = [
    Mutant(
        "gates are not locked",
        (("lock_gates", "\non duplicate", "\nwhere false\non duplicate"),
         ("locked_gates", "for update /*!80017 of gate */", "")),
        producers_meet,
    ),
    Mutant(
        "a ready sibling is not locked", (("lock_ready", "for update /*!80017 of job */", ""),),
        a_claim_waits_for_no_gate,
    ),
    Mutant("who runs is not counted", (("slot_running", "in (40, 41)", "in (90, 91)"),), a_slot_is_taken),
    Mutant("the last of a train is its head",
           (("train_heads", "head.place, head.position", "head.place, head.position desc"),),
           a_head_ends),
    Mutant(
        "a job of a slot is staged like any other", (("due", "and job.slot is null", ""),),
        a_turn_comes_while_a_sibling_runs,
    ),
    Mutant(
        "who holds a train is pruned",
        (("old", "and not exists (select 1 from dibs_gates gate where gate.held_by = job.id)", ""),),
        a_holder_is_kept,
    ),
    Mutant("a key that lasts is not looked for", (("lasting", "key_is_free = false", "key_is_free = true"),),
           a_key_lasts),
    Mutant("the dead at gates are not swept", (("expired_at_gates", "is not null", "is null"),),
           a_corpse_is_swept),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_found_out(store: Place, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.01, 0.02))
    store.broken_by = mutant.hurt

    try:
        wrong = mutant.scene(store)
    except (DibsError, KeyError) as error:
        wrong = repr(error)
    assert wrong, f"{mutant.name}: nobody noticed"


@pytest.mark.parametrize(
    "scene", dict.fromkeys(mutant.scene for mutant in MUTANTS), ids=lambda scene: scene.__name__
)
def test_the_rules_as_they_are_pass_the_same_scene(store: Place, scene: Callable[[Place], str]) -> None:
    assert scene(store) == ""
