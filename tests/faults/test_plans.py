"""The plan guard: with 100,000 jobs around it, each hot statement reads only what it is about."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from dibs import Dibs, NewJob
from dibs.engines.postgresql.session import SESSION
from dibs.engines.sql.blocks import placeholders
from dibs.engines.sql.engine import Query
from dibs.operations.manage import FIRST_ID
from dibs.operations.queries import job_filter
from dibs.operations.scripts import Step
from tests.support import fault_cases
from tests.support.fault_stores import Place, Places, blocks
from tests.support.internals import engine_of, store_of
from tests.support.servers import PostgreSQL

AROUND = 100_000
READY, RUNNING = 20, 200
FEW = 30  # that have finished otherwise than most
MOST_BUFFERS = 500  # 8 kB each; a walk over the jobs around would be some thousands
MOST_STEPS = 60_000  # of SQLite's machine; a walk over the jobs around would be a million

SETTLEMENT = {
    "succeeded": [uuid4()],
    "tokens": [1],
    "settlements": json.dumps([{"id": str(uuid4()), "token": 1, "state": "failed", "settled_as": "failed"}]),
}
WISH = {
    "worker": "planner",
    "lease": 60_000_000,
    "leases": "{}",
    "limit": 3,
    "look": True,
    "job": uuid4(),
    "queues": None,
    "kinds": None,
    "walk": True,
}
NAMED = {**WISH, "queues": ["default"], "kinds": ["work"], "walk": False}


def _marks(*kinds: str) -> str:
    """Before everything that there is of these kinds."""
    first = {"queue": "default", "priority": 0, "run_at": "2000-01-01T00:00:00Z", "id": str(UUID(int=0))}
    return json.dumps([{**first, "kind": kind} for kind in kinds])


@pytest.fixture(scope="module")
def surrounded(postgresql: PostgreSQL, template: str) -> str:
    """A template: 100,000 scheduled, finished and blocked, some running, a few ready; no statistics."""

    def fill(url: str) -> None:
        place = Place("postgresql", url)
        for table in ("dibs_jobs", "dibs_finished"):
            place.sql(f"alter table {table} set (autovacuum_enabled = off)")
        _surround(place)
        _surround_gates(place)
        place.close()

    name = "dibs_surrounded"
    if name not in postgresql._templates:
        fill(postgresql.create_database(name, template=template))
        postgresql._templates.add(name)
    return name


def _surround(place: Place, around: int = AROUND) -> None:
    fault_cases.crowd(place, around, state="scheduled")
    fault_cases.crowd(place, around, state="succeeded", table="dibs_finished")
    fault_cases.crowd(place, FEW, state="failed", table="dibs_finished")
    fault_cases.crowd(place, FEW, state="cancelled", table="dibs_finished")
    fault_cases.crowd(place, RUNNING, state="running")
    fault_cases.crowd(place, READY, state="ready", kind="work")
    fault_cases.crowd(place, READY, state="ready", kind="work", queue="other")


def _surround_gates(place: Place, around: int = AROUND) -> None:
    """One long train, one long slot, and many gates that are none of ours."""
    blocked = """
        insert into dibs_jobs (id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at,
            train, slot, slot_policy, slot_limit, position)
        select gen_random_uuid(), 'crowd', 'default', '{}', 0, 'blocked', 3, now(), now(), """
    place.sql(f"{blocked} 'long', null, null, null, n from generate_series(1, {around // 2}) n")
    place.sql(f"{blocked} null, 'long', 'wait', 2, 0 from generate_series(1, {around // 4}) n")
    place.sql(f"{blocked} null, 's' || n, 'wait', 1, 0 from generate_series(1, {around // 4}) n")
    place.sql("""
        insert into dibs_gates (sort, name, last_position)
        select 'slot', slot, 0 from dibs_jobs where slot is not null group by slot
        union all select 'train', 'long', 1000000
        on conflict do nothing""")
    place.sql("update dibs_jobs set state = 'ready' where train = 'long' and position = 1")


@pytest.fixture(params=["analyzed", "never analyzed"])
def crowded(request: pytest.FixtureRequest, postgresql: PostgreSQL, surrounded: str) -> Iterator[Place]:
    place = Place("postgresql", postgresql.fresh_database(surrounded))
    if request.param == "analyzed":
        place.sql("analyze")
    yield place
    place.close()
    postgresql.drop_database(place.url.rpartition("/")[2])


HOT: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "claim by walking": ("claim", WISH, "dibs_jobs_ready"),
    "claim of named lines": ("claim", NAMED, "dibs_jobs_ready"),
    "claim of a line": ("claim_line", {**WISH, "queue": "default", "kind": "work"}, "dibs_jobs_ready"),
    "claim of named jobs": ("claim_named", {**NAMED, "named": [uuid4()]}, "dibs_jobs_pkey"),
    "claim of named queues": ("claim", {**WISH, "queues": ["default", "other"]}, "dibs_jobs_ready"),
    "claim within limits": ("claim_within_limits", WISH, "dibs_jobs_ready"),
    "claim by id": ("claim_job", WISH, "dibs_jobs_pkey"),
    "exchange by walking": ("exchange", {**SETTLEMENT, **WISH}, "dibs_jobs_ready"),
    "exchange of named lines": ("exchange", {**SETTLEMENT, **NAMED}, "dibs_jobs_ready"),
    "exchange that goes on": (
        "exchange_on",
        {**SETTLEMENT, **WISH, "marks": _marks("work"), "ahead": [uuid4()]},
        "dibs_jobs_ready",
    ),
    "exchange that goes on in two lines": (
        "exchange_on",
        {**SETTLEMENT, **WISH, "marks": _marks("work", "crowd"), "ahead": []},
        "dibs_jobs_ready",
    ),
    "settle": ("settle", SETTLEMENT, "dibs_jobs_pkey"),
    "renew": ("renew", {"ids": [uuid4()], "tokens": [1], "lease": 1}, "dibs_jobs_pkey"),
    "stage": ("stage", {"limit": 500}, "dibs_jobs_due"),
    "sweep": ("sweep", {"limit": 500}, "dibs_jobs_leases"),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_reads_only_what_a_statement_is_about(crowded: Place, mode: str) -> None:
    texts = blocks(crowded.app())
    crowded.sql("update dibs_jobs set run_at = now() where id in "
                "(select id from dibs_jobs where state = 'scheduled' limit 5)")  # fmt: skip
    crowded.sql("update dibs_jobs set lease_until = now() where id in "
                "(select id from dibs_jobs where state = 'running' limit 5)")  # fmt: skip
    crowded.sql(f"set plan_cache_mode = {mode}")

    plans = {name: _explain(crowded, texts[block], given) for name, (block, given, _) in HOT.items()}

    found = [wrong for name, plan in plans.items() for wrong in _complaints(name, plan, HOT[name][2])]
    assert not found, "\n".join(found)


def _complaints(name: str, plan: Mapping[str, Any], index: str) -> Iterator[str]:
    nodes = list(_nodes(plan))
    walked = [(node["Node Type"], node.get("Alias")) for node in nodes if _walks(node)]
    read = _buffers(plan)
    if walked:
        yield f"{name} walks over dibs_jobs: {walked}"
    if index and index not in {node.get("Index Name") for node in nodes}:
        yield f"{name} does not use {index}"
    if not 0 < read <= MOST_BUFFERS:
        yield f"{name} reads {read} buffers"


# Each with a train and a slot of tens of thousands of blocked jobs.
NOBODY_ENDED: Mapping[str, Any] = {"ended": [], "trains": [], "positions": []}
OPENING: Mapping[str, Any] = {
    "let_through": [uuid4()],
    "sent_back": [uuid4()],
    "asked": [uuid4()],
    "reasons": ["pre-empted"],
    "offered": ["long"],
    "not_offered": ["s7"],
    "gone": ["s8"],
    "micros": 1,
    "wake": ["default"],
}
LONG = {"sorts": ["slot", "train"], "names": ["long", "long"]}
AT_GATES: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "lock": ("lock_gates", {**LONG, "places": [1, 1]}, "dibs_gates_pkey"),
    "lock if free": ("lock_if_free", LONG, "dibs_gates_pkey"),
    "lock what is free": ("lock_free_gates", LONG, "dibs_gates_pkey"),
    "open a train": ("open_trains", {"names": ["long"], "tell": True, **NOBODY_ENDED}, "dibs_jobs_train"),
    "read slots": ("slots", {"names": ["long", "s7"], "waiting": 1}, "dibs_jobs_slot"),
    "open slots": ("open_slots", OPENING, "dibs_jobs_pkey"),
    "settle": ("settle_at_gates", SETTLEMENT, "dibs_jobs_pkey"),
    "gates of jobs": ("gates_of", {"ids": [uuid4()]}, "dibs_jobs_pkey"),
    "gates of keys": ("gates_of_keys", {"keys": ["nobody"]}, "dibs_jobs_unique_key"),
    "cancel": ("cancel", {"ids": [uuid4()], "reason": None}, "dibs_jobs_pkey"),
    "overtake": ("overtake", {"job": uuid4()}, "dibs_jobs_pkey"),
    "drop": ("slot_members", {"name": "long", "later": [uuid4()], "most": 2}, "dibs_jobs_slot"),
    "keys that last": ("forget_kept_keys", {"ids": [uuid4()]}, "dibs_jobs_pkey"),
    "restless slots": ("restless_slots", {"limit": 500}, "dibs_jobs_due"),
    "stage at slots": ("stage_at_slots", {"names": ["long"], "limit": 500}, ""),
    "read slots at the end of offers": ("slots", {"names": ["s7"], "waiting": 100}, "dibs_jobs_slot"),
    "end offers": ("end_offers", {"names": ["s7"]}, ""),
    "the dead at gates": ("expired_at_gates", {"limit": 500}, "dibs_jobs_leases"),
    "sweep at gates": (
        "sweep_at_gates",
        {"trains": ["long"], "slots": ["long"], "limit": 500},
        "dibs_jobs_leases",
    ),
    "who is current": ("current", {"slots": ["long"]}, "dibs_jobs_slot_token"),
}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_reads_of_a_gate_only_who_may_go(crowded: Place, mode: str) -> None:
    texts = blocks(crowded.app())
    crowded.sql(f"set plan_cache_mode = {mode}")

    plans = {name: _explain(crowded, texts[block], given) for name, (block, given, _) in AT_GATES.items()}

    found = [wrong for name, plan in plans.items() for wrong in _complaints(name, plan, AT_GATES[name][2])]
    assert not found, "\n".join(found)


def test_a_plan_that_was_made_for_few_jobs_serves_many(postgres: Place) -> None:
    """Plans are kept; on our own connections they are made for any number of jobs."""
    texts = blocks(postgres.app())
    for name, value in SESSION.items():
        postgres.sql(f"set {name} = '{value}'")
    for table in ("dibs_jobs", "dibs_gates", "dibs_finished"):
        postgres.sql(f"alter table {table} set (autovacuum_enabled = off)")
    hot = {name: HOT[name] for name in ("claim by walking", "claim by id", "settle", "renew", "sweep")}
    hot |= {name: AT_GATES[name] for name in ("open a train", "read slots", "open slots")}
    fault_cases.crowd(postgres, 10, state="ready", kind="work")
    _surround_gates(postgres, 20)
    connection = postgres._raw
    assert connection is not None
    for nth, (block, given, _) in enumerate(hot.values()):
        _prepare(connection, f"kept_{nth}", texts[block], given)
    _surround_gates(postgres, 20_000)

    found = []
    for nth, (name, (block, given, index)) in enumerate(hot.items()):
        plan = _explain_kept(connection, f"kept_{nth}", texts[block], given)
        found += list(_complaints(name, plan, index))

    assert not found, "\n".join(found)


def _prepare(connection: Any, name: str, text: str, given: Mapping[str, Any]) -> None:
    connection.execute(f"prepare {name} as {placeholders(text, 'numeric')[0]}")
    _explain_kept(connection, name, text, given)


def _explain_kept(connection: Any, name: str, text: str, given: Mapping[str, Any]) -> Any:
    values = ", ".join(_literal(given[each]) for each in placeholders(text, "numeric")[1])
    with connection.transaction(force_rollback=True):
        asked = f"explain (analyze, buffers, format json) execute {name}({values})"
        [(plan,)] = connection.execute(asked).fetchall()
    return plan[0]["Plan"]


@pytest.mark.long
def test_a_plain_claim_reads_no_more_because_a_hundred_thousand_wait_at_gates(places: Places) -> None:
    """As many plain jobs that are not due cost the same: indexes are a step deeper in such a table."""
    crowds: dict[str, Callable[[int], Mapping[str, Any]]] = {
        "plain": lambda n: {"delay": 0 if n < 10 else 31_536_000},
        "trains": lambda n: {"train": f"t{n % 10}"},
        "slots": lambda n: {"slot": f"s{n % 10}"},
    }

    read = {beside: _read_by_plain_claims(places("postgresql"), crowd) for beside, crowd in crowds.items()}
    alone = _read_by_plain_claims(places("postgresql"), lambda _: {}, size=10)

    print(alone, read)
    for way, usual in read["plain"].items():
        for beside in ("trains", "slots"):
            more = {what: (many, usual[what]) for what, many in read[beside][way].items()}
            assert all(many <= 1.1 * usually for many, usually in more.values()), (way, beside, more)
            assert read[beside][way]["buffers"] <= alone[way]["buffers"] + 20, (way, beside)  # two per job
            one, ever = read[beside][way]["buffers of one"], alone[way]["buffers of one"]
            assert one <= 1.1 * ever, (way, beside, one, ever)


def _read_by_plain_claims(
    place: Place, crowd: Callable[[int], Mapping[str, Any]], size: int = AROUND
) -> dict[str, dict[str, float]]:
    """What claims of ten and of one read, in each way; ten of the crowd run, the others wait."""
    app = place.app()
    for first in range(0, size, 1000):
        app.sync.enqueue(*(NewJob("crowd", **crowd(n)) for n in range(first, min(first + 1000, size))))
    assert len(app.sync.claim(limit=20, lease=3600)) == 10
    app.sync.enqueue(*(NewJob("work") for _ in range(1000)))
    assert app.sync.counts()["ready"] == 1000
    for name, value in SESSION.items():
        place.sql(f"set {name} = '{value}'")
    place.sql("vacuum analyze dibs_jobs, dibs_finished, dibs_gates")
    texts = blocks(app)
    ways = ("claim by walking", "claim of named lines", "claim of a line")
    read = {}
    for way in ways:
        block, given, _ = HOT[way]
        of_ten, of_one = (
            [_explain(place, texts[block], {**given, "limit": limit}, keep=True) for _ in range(9)]
            for limit in (10, 1)
        )
        read[way] = {
            "rows": statistics.median(map(_rows, of_ten)),
            "buffers": statistics.median(map(_buffers, of_ten)),
            "buffers of one": statistics.median(map(_buffers, of_one)),
        }
    return read


def _rows(plan: Mapping[str, Any]) -> int:
    """Of all scans together."""
    return sum(
        int(node["Actual Rows"] * node["Actual Loops"])
        for node in _nodes(plan)
        if "Scan" in node["Node Type"]
    )


def _buffers(plan: Mapping[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_does_not_compare_each_claim_with_each_job(crowded: Place, mode: str) -> None:
    """Once a batch of 500 settlements cost 250,000 comparisons, because the planner expected one row."""
    texts = blocks(crowded.app())
    crowded.sql("update dibs_jobs set lease_until = now(), token = 7 where state = 'running'")
    ids = [row[0] for row in crowded.sql("select id from dibs_jobs where state = 'running'")]
    tokens = [7] * RUNNING
    settled = {"succeeded": ids, "tokens": tokens, "settlements": "[]"}
    failed = _all(ids, state="failed", settled_as="failed")
    returned = _all(ids, state="scheduled", settled_as="retried", delay=1)
    crowded.sql(f"set plan_cache_mode = {mode}")

    plans = {
        "settle": _explain(crowded, texts["settle"], settled),
        "settle what failed": _explain(crowded, texts["settle"], failed),
        "give back": _explain(crowded, texts["settle"], returned),
        "exchange": _explain(crowded, texts["exchange"], {**settled, **WISH}),
        "renew": _explain(crowded, texts["renew"], {"ids": ids, "tokens": tokens, "lease": 1}),
        "sweep": _explain(crowded, texts["sweep"], {"limit": 500}),
    }

    for name, plan in plans.items():
        compared = sum(_compared(node) for node in _nodes(plan))
        assert compared <= 10 * RUNNING, f"{name} compares {compared} pairs for {RUNNING} jobs"


def _all(ids: list[UUID], **settlement: Any) -> dict[str, Any]:
    """These claims settled in a way that takes more words than success."""
    rows = [{"id": str(id), "token": 7, **settlement} for id in ids]
    return {"succeeded": [], "tokens": [], "settlements": json.dumps(rows)}


def _compared(node: Mapping[str, Any]) -> int:
    return int(node.get("Rows Removed by Join Filter", 0) * max(node["Actual Loops"], 1))


def _explain(place: Place, text: str, given: Mapping[str, Any], *, keep: bool = False) -> Any:
    """The plan of the statement as it was really run, with all that it read; nothing is kept, unless told."""
    statement, order = placeholders(text, "numeric")
    connection = place._raw
    assert connection is not None
    with contextlib.closing(connection.cursor()) as cursor:
        with connection.transaction(force_rollback=not keep):
            cursor.execute(f"prepare hot as {statement}")
            values = ", ".join(_literal(given[name]) for name in order)
            cursor.execute(f"explain (analyze, buffers, format json) execute hot({values})")
            [(plan,)] = cursor.fetchall()
        cursor.execute("deallocate hot")
    return plan[0]["Plan"]


def _literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool() | int():
            return str(value).lower()
        case list():
            return "'" + json.dumps(value, default=str).replace("[", "{").replace("]", "}") + "'"
        case _:
            return f"'{value}'"


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _walks(node: Mapping[str, Any]) -> bool:
    """A whole-table scan of the live jobs, or an index scan that throws most of its rows away."""
    if node.get("Relation Name") != "dibs_jobs" or not node["Actual Loops"]:
        return False
    thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return node["Node Type"] == "Seq Scan" or thrown * node["Actual Loops"] > 10 * RUNNING


NEEDLES = {"in_args": "{", "in_errors": None, "in_text": None, "contained": None}

# What people ask for who look for trouble, and how many such jobs there are.
LOOKS: dict[str, tuple[str, Mapping[str, Any], int]] = {
    "list what failed": ("find", {"states": ["failed"], "after": None}, FEW),
    "list what did not succeed": ("find", {"states": ["failed", "cancelled"], "after": None}, 2 * FEW),
    "search what failed": ("search", {"states": ["failed"], "after": None, **NEEDLES}, FEW),
    "count what failed": ("count", {"states": ["failed"], "after": None}, FEW),
    "retry what failed": ("find_oldest", {"states": ["failed"], "after": FIRST_ID}, FEW),
}


def _asked(app: Dibs, question: str, filter: Mapping[str, Any]) -> Query:
    """The one query that answers it."""
    limit = {"count": {"scan": 500}, "search": {"scan": 500, "limit": 500}}.get(question, {"limit": 500})
    step = Step(question, {**job_filter(), **limit, **filter})
    query = next(engine_of(app).answer(step))
    assert isinstance(query, Query)
    return query


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_finds_what_failed_however_much_succeeded(crowded: Place, mode: str) -> None:
    app = crowded.app()
    crowded.sql(f"set plan_cache_mode = {mode}")

    found = []
    for name, (question, filter, many) in LOOKS.items():
        query = _asked(app, question, filter)
        plan = _explain(crowded, blocks(app)[query.name], query.params)
        found += list(_complaints(name, plan, "dibs_finished_state"))
        assert plan["Actual Rows"] == (1 if question == "count" else many)

    assert not found, "\n".join(found)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_does_not_look_for_live_jobs_among_the_finished(crowded: Place, mode: str) -> None:
    query = _asked(app := crowded.app(), "find", {"states": ["running"], "after": None})
    crowded.sql(f"set plan_cache_mode = {mode}")

    plan = _explain(crowded, blocks(app)[query.name], query.params)

    read = [node for node in _nodes(plan) if node.get("Relation Name") == "dibs_finished"]
    assert plan["Actual Rows"] == RUNNING
    assert [node["Node Type"] for node in read if node["Actual Loops"]] == []


# -- SQLite -------------------------------------------------------------------------------------

SQLITE_HOT: dict[str, tuple[Mapping[str, Any], str]] = {
    "lines": ({"queues": None, "kinds": None}, "dibs_jobs_ready"),
    "near": ({"queue": "default", "kind": "work", "limit": 3}, "dibs_jobs_ready"),
    "wanted": ({"job": "none"}, "sqlite_autoindex_dibs_jobs_1"),
    "overdue": ({}, "dibs_jobs_due"),
    "expired": ({"limit": 500}, "dibs_jobs_leases"),
    "stage": ({"limit": 500}, "dibs_jobs_due"),
    "renew": ({"id": "none", "token": 1, "lease": 1}, "sqlite_autoindex_dibs_jobs_1"),
    "lease": (
        {"worker": "w", "token": 1, "leases": "{}", "lease": 1, "ids": '["none"]'},
        "sqlite_autoindex_dibs_jobs_1",
    ),
}


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_sqlite_reads_only_what_a_statement_is_about(sqlite: Place, analyzed: bool) -> None:
    app = sqlite.app()
    app.sync.migrate()
    _surround(sqlite)
    connection = sqlite.connect()
    if analyzed:
        connection.execute("analyze")

    with contextlib.closing(connection):
        for name, (given, index) in SQLITE_HOT.items():
            text = blocks(app)[name]
            plan = [row[3] for row in connection.execute(f"explain query plan {text}", given)]
            steps = _steps(connection, text, given)

            assert any(index in line for line in plan), f"{name} does not use {index}: {plan}"
            assert not [line for line in plan if _is_walk(line)], f"{name} walks: {plan}"
            assert steps <= MOST_STEPS, f"{name} takes {steps} steps"
    before = _claim_steps(sqlite)
    assert before <= MOST_STEPS, f"a claim takes {before} steps"


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_sqlite_finds_what_failed_however_much_succeeded(sqlite: Place, analyzed: bool) -> None:
    app = sqlite.app()
    app.sync.migrate()
    _surround(sqlite)
    connection = sqlite.connect()
    if analyzed:
        connection.execute("analyze")

    with contextlib.closing(connection):
        for name, (question, filter, many) in LOOKS.items():
            query = _asked(app, question, filter)
            text = blocks(app)[query.name]

            rows = connection.execute(text, query.params).fetchall()
            assert (rows[0][0] if question == "count" else len(rows)) == many
            steps = _steps(connection, text, query.params)
            assert steps <= MOST_STEPS, f"{name} takes {steps} steps"


def _is_walk(line: str) -> bool:
    """A scan of the whole table, by whatever name the statement calls it, that no index narrows."""
    tables = ("ready", "job", "due", "dead", "dibs_jobs", "other", "next")
    return any(line == f"SCAN {table}" for table in tables)


def _steps(connection: Any, text: str, given: Mapping[str, Any]) -> int:
    """How many steps SQLite's machine makes of it, in thousands rounded up; nothing is kept."""
    counted = [0]

    def count() -> None:
        counted[0] += 1

    connection.execute("begin")
    connection.set_progress_handler(count, 1000)
    connection.execute(text, given).fetchall()
    connection.set_progress_handler(None, 0)
    connection.execute("rollback")
    return counted[0] * 1000


def _claim_steps(place: Place) -> int:
    app = place.app()
    app.sync.counts()
    counted = [0]

    def count() -> None:
        counted[0] += 1

    connection = store_of(app)._file._connection
    connection.set_progress_handler(count, 1000)
    assert len(app.sync.claim(limit=3)) == 3
    connection.set_progress_handler(None, 0)
    return counted[0] * 1000


# -- MariaDB ------------------------------------------------------------------------------------

MARIADB_AROUND = 20_000
MOST_ROWS = 30  # read by one statement
# What the guard must be able to see: left to itself, the server reads all of a line to find the next one.
WALK = "select queue, kind from dibs_jobs where state = 'scheduled' group by queue, kind"

NOBODY = uuid4().hex
LAST = {  # behind all that is ready
    "queue": "default",
    "kind": "ahead",
    "precedence": 0,
    "run_at": "2100-01-01",
    "id": NOBODY,
    "limit": 3,
}
MARIADB_HOT: dict[str, Mapping[str, Any]] = {
    "opening": {"look": 1},
    "line": {"queue": "default", "kind": "crowd", "limit": 3},
    "near": {"queue": "default", "kind": "work", "limit": 3},
    "lock_first": {"queue": "default", "kind": "work", "limit": 3},
    "lock_first_on": LAST,
    "near_on": LAST,
    "lock_these": {"ids": json.dumps([NOBODY])},
    "lease": {"taken": json.dumps([[NOBODY, 1, None]]), "worker": "w", "now": None},
    "held": {"claims": json.dumps([[NOBODY, 1]])},
    "held_and_free": {"claims": json.dumps([[NOBODY, 1]])},
    "end_settled": {"settlements": json.dumps([[NOBODY, 1, "succeeded"]])},
    "return_settled": {"settlements": json.dumps([[NOBODY, 1, "ready"]])},
    "forget": {"ids": json.dumps([NOBODY])},
    "renew": {"ids": json.dumps([NOBODY]), "lease_until": None},
    "holders": {"keys": json.dumps(["nobody"])},
    "stored": {"ids": json.dumps([NOBODY])},
    "due": {"limit": 5},
    "expired": {"limit": 5},
    "upcoming": {},
    "get": {"ids": json.dumps([NOBODY])},
}


@pytest.fixture(params=["analyzed", "statistics of an empty table"])
def crowded_mariadb(request: pytest.FixtureRequest, places: Places) -> Place:
    place = places("mariadb")
    for table in ("dibs_jobs", "dibs_finished"):
        place.sql(f"alter table {table} stats_persistent = 1, stats_auto_recalc = 0")
    place.sql("analyze table dibs_jobs, dibs_finished")
    _surround(place, MARIADB_AROUND)
    fault_cases.crowd(place, 1000, state="ready", kind="ahead")
    if request.param == "analyzed":
        place.sql("analyze table dibs_jobs, dibs_finished")
    return place


def test_mariadb_reads_only_what_a_statement_is_about(crowded_mariadb: Place) -> None:
    texts = blocks(crowded_mariadb.app())
    with contextlib.closing(crowded_mariadb.connect()) as connection:
        read = {name: _rows_read(connection, texts[name], given) for name, given in MARIADB_HOT.items()}
        walked = _rows_read(connection, WALK, {})

    assert walked >= MARIADB_AROUND
    assert {name: rows for name, rows in read.items() if rows > MOST_ROWS} == {}
    assert read["lock_first"] >= 3


def test_mariadb_finds_what_failed_however_much_succeeded(crowded_mariadb: Place) -> None:
    app = crowded_mariadb.app()
    with contextlib.closing(crowded_mariadb.connect()) as connection:
        for name, (question, filter, many) in LOOKS.items():
            query = _asked(app, question, filter)
            read = _rows_read(connection, blocks(app)[query.name], query.params)

            passes = 20 if question == "search" else 10  # ranked in a temporary table, whose reads count, too
            assert many <= read <= passes * many, f"{name} reads {read} rows"


def test_mariadb_counts_what_has_finished_without_reading_their_rows(crowded_mariadb: Place) -> None:
    text = blocks(crowded_mariadb.app())["counts"]
    with contextlib.closing(crowded_mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"explain {text}")
        found = [(row[5], row[9]) for row in cursor.fetchall() if row[2] == "job"]

    assert found == [("dibs_jobs_ready", "Using index"), ("dibs_finished_state", "Using index")]


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
