"""Scripts that fail: Redis rolls nothing back, so nothing is written before the last thing that can fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from dibs import Dibs, NewJob
from dibs.engines import redis as redis_engine
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.protocol import ReplyError
from dibs.engines.redis.scripts import lua_script
from dibs.operations import minutes, upkeep
from dibs.operations.minutes import MINUTE_COLUMNS
from dibs.operations.questions import GATE_QUESTIONS, QUESTIONS
from dibs.operations.scripts import Step
from dibs.operations.settle import LateWrite, record_refusals
from tests.support.fault_stores import Place, exchange
from tests.support.internals import age, begin_schedule, core_of, run_script
from tests.support.moves import ELSEWHERE, ask
from tests.support.redis_checks import astray, break_script, call_once, everything, misplaced

LUA = Path(redis_engine.__file__).parent / "lua"
ALL_SCRIPTS = QUESTIONS | GATE_QUESTIONS | {"go_on"}
# Never asked of Redis; nothing to do there.
NO_SCRIPTS = {"claim_within_limits", "forget_minutes", "forget_refusals"}
READS = {
    *("get", "find", "find_oldest", "search", "count", "counts", "queues", "settled", "explain", "now"),
    *("workers", "upcoming", "minutes", "refusals", "traffic"),
    *("ready_lines", "backlog", "examine", "glance", "glance_at_queue", "departed", "gates", "current"),
    *("schedules", "parents", "pipelines", "newest_pipelines", "pipeline_counts"),
}


@pytest.fixture
def client(on_redis: Place) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(on_redis.url, decode_responses=True)) as client:
        yield client


# -- A scene makes what a question is about, and answers how to ask it ----------------------------

Act = Callable[[], Any]
SCENES: dict[str, Callable[[Dibs], Act]] = {}


def scene(make: Callable[[Dibs], Act]) -> Callable[[Dibs], Act]:
    SCENES[make.__name__] = make
    return make


def _running(app: Dibs, many: int = 1, **options: Any) -> list[Any]:
    app.sync.enqueue(*(NewJob("work", **options) for _ in range(many)))
    return app.sync.claim(limit=many, worker="holder")


def _run(app: Dibs, script: Callable[[], Any]) -> Any:
    return run_script(app, script)


@scene
def enqueue(app: Dibs) -> Act:
    jobs = [NewJob("work", unique="key", tags=["a"]), NewJob("other", delay=60, queue="mail"), NewJob("work")]
    return lambda: app.sync.enqueue(*jobs)


@scene
def claim(app: Dibs) -> Act:
    app.sync.enqueue(NewJob("work"), NewJob("other", priority=5))
    return lambda: app.sync.claim(limit=2)


@scene
def claim_job(app: Dibs) -> Act:
    [job] = app.sync.enqueue(NewJob("work"))
    return lambda: app.sync.claim_job(job.id)


@scene
def settle(app: Dibs) -> Act:
    [claim] = _running(app, unique="key")
    return lambda: claim.succeed("well", then=[NewJob("child"), NewJob("child", unique="key")])


@scene
def exchange_(app: Dibs) -> Act:
    one, other = _running(app, 2)
    app.sync.enqueue(NewJob("next"))
    return lambda: exchange(app, [one, other], limit=2)


@scene
def renew(app: Dibs) -> Act:
    [claim] = _running(app)
    return lambda: claim.renew(600)


@scene
def progress(app: Dibs) -> Act:
    [claim] = _running(app)
    return lambda: claim.progress(0.5, "half")


@scene
def stage(app: Dibs) -> Act:
    app.sync.enqueue(NewJob("work", delay=60), NewJob("work", delay=70))
    age(app, 100)
    return app.sync.sweep


@scene
def sweep(app: Dibs) -> Act:
    _running(app, 2)
    _running(app, max_attempts=1)
    [asked] = _running(app)
    app.sync.cancel(asked.job.id, "enough")
    age(app, 3600)
    return app.sync.sweep


@scene
def cancel(app: Dibs) -> Act:
    app.sync.enqueue(NewJob("work", unique="key"), NewJob("work", delay=60), NewJob("other"))
    app.sync.claim(kinds=["other"])
    return lambda: app.sync.cancel_many(state=["ready", "scheduled", "running"])


@scene
def retry(app: Dibs) -> Act:
    for claim in _running(app, 2):
        claim.fail("broken", retry=False)
    app.sync.enqueue(NewJob("work", delay=60))
    return lambda: app.sync.retry_many(state=["failed", "scheduled"])


@scene
def update(app: Dibs) -> Act:
    jobs = app.sync.enqueue(*(NewJob("work", slot="csv", delay=delay) for delay in (0, 0, 60)))
    return lambda: app.sync.update(jobs[0].id, priority=5, delay=600)


@scene
def recover(app: Dibs) -> Act:
    [claim] = _running(app)
    age(app, 3600)
    return lambda: app.sync.recover(claim.job.id, stale_after=1)


@scene
def delete(app: Dibs) -> Act:
    [job] = app.sync.enqueue(NewJob("work", unique="key"))
    return lambda: app.sync.delete(job.id)


@scene
def prune(app: Dibs) -> Act:
    for claim in _running(app, 3):
        claim.succeed()
    age(app, 3600)
    return lambda: app.sync.prune(0)


@scene
def set_queue(app: Dibs) -> Act:
    return lambda: app.sync.limit("mail", 3)


@scene
def tick(app: Dibs) -> Act:
    return lambda: _run(app, lambda: upkeep.tick("pod", None, ["work"], concurrency=1, running=0))


@scene
def enqueue_tick(app: Dibs) -> Act:
    jobs = [core_of(app).registry.prepare(NewJob("work"))]
    now = datetime.now(UTC)
    _run(app, lambda: begin_schedule("nightly", now))
    move = {"schedule": "nightly", "since": now, "revision": 0, "tick": now, "jobs": jobs}

    def script() -> Any:
        return (yield Step("enqueue_tick", move))

    return lambda: _run(app, script)


@scene
def set_schedule(app: Dibs) -> Act:
    app.sync.schedules.put("nightly", "0 0 * * *", NewJob("work"))
    return lambda: app.sync.schedules.pause("nightly")


@scene
def delete_schedule(app: Dibs) -> Act:
    app.sync.schedules.put("nightly", "0 0 * * *", NewJob("work"))
    return lambda: app.sync.schedules.delete("nightly")


@scene
def leave(app: Dibs) -> Act:
    tick(app)()
    return lambda: _run(app, lambda: upkeep.leave("pod"))


@scene
def add_to_minute(app: Dibs) -> Act:
    counts = [1, 2] * (len(MINUTE_COLUMNS) // 2)
    return lambda: _run(app, lambda: minutes.add_to_minute(1, 60, "mail", "work", counts))


@scene
def refuse(app: Dibs) -> Act:
    [job] = app.sync.enqueue(NewJob("work"))
    return lambda: _run(app, lambda: record_refusals([LateWrite(job.id, 7, "pod", "renew")]))


@scene
def identify(app: Dibs) -> Act:
    return lambda: ask(app, "identify", new=ELSEWHERE)


def _to_move(app: Dibs) -> None:
    app.sync.enqueue(NewJob("work", unique="key"), NewJob("work", delay=60), NewJob("other", queue="mail"))
    [claim] = app.sync.claim(kinds=["other"])
    claim.succeed(then=[NewJob("child")])


@scene
def depart(app: Dibs) -> Act:
    _to_move(app)
    return lambda: ask(app, "depart", store=ELSEWHERE, after=None, limit=10)


@scene
def arrive(app: Dibs) -> Act:
    texts = [row["job"] for row in depart(app)()]
    return lambda: ask(app, "arrive", store=ELSEWHERE, jobs=texts)


@scene
def give_back(app: Dibs) -> Act:
    ids = [row["id"] for row in depart(app)()]
    return lambda: ask(app, "give_back", store=ELSEWHERE, ids=ids)


@scene
def landed(app: Dibs) -> Act:
    ids = [row["id"] for row in depart(app)()]
    return lambda: ask(app, "landed", way="out", store=ELSEWHERE, ids=ids)


# -- The same at trains and slots; what follows two underscores says which ------------------------


def _on_train(app: Dibs, many: int = 3, **options: Any) -> list[Any]:
    return app.sync.enqueue(*(NewJob("work", train="t", **options) for _ in range(many)))


def _in_slot(app: Dibs, many: int = 3, **options: Any) -> list[Any]:
    return app.sync.enqueue(*(NewJob("work", slot="s", **options) for _ in range(many)))


def _held_train(app: Dibs) -> list[Any]:
    jobs = _on_train(app, on_failed="hold")
    app.sync.claim_job(jobs[0].id).fail("broken", retry=False)
    return jobs


@scene
def enqueue__onto_trains(app: Dibs) -> Act:
    _on_train(app, 2)
    jobs = [NewJob("work", train=name) for name in ("t", "u", "u")]
    return lambda: app.sync.enqueue(*jobs)


@scene
def enqueue__by_the_policies_of_slots(app: Dibs) -> Act:
    for slot in ("a", "b", "c"):
        app.sync.enqueue(*(NewJob("work", slot=slot) for _ in range(2)))
    app.sync.claim(limit=2)
    policies = {"a": "replace", "b": "preempt", "c": "drop"}
    jobs = [NewJob("work", slot=slot, slot_policy=policy) for slot, policy in policies.items()]
    return lambda: app.sync.enqueue(*jobs)


@scene
def enqueue__by_keys_that_last_or_replace(app: Dibs) -> Act:
    _in_slot(app, 1, unique="key", unique_for=60)
    _in_slot(app, 1)
    jobs = [
        NewJob("work", delay=60, unique="key", on_conflict="replace"),
        NewJob("work", unique="k", unique_for=9),
    ]
    return lambda: app.sync.enqueue(*jobs)


@scene
def claim_job__before_others_of_its_slot(app: Dibs) -> Act:
    *_, last = _in_slot(app)
    return lambda: app.sync.claim_job(last.id)


@scene
def settle__the_head_of_a_train(app: Dibs) -> Act:
    claim = app.sync.claim_job(_on_train(app)[0].id)
    return lambda: claim.succeed(then=[NewJob("child", train="t"), NewJob("child", slot="s")])


@scene
def settle__a_head_that_holds(app: Dibs) -> Act:
    claim = app.sync.claim_job(_on_train(app, on_failed="hold", unique="key", unique_for=60)[0].id)
    return lambda: claim.fail("broken", retry=False)


@scene
def settle__who_snoozes_in_a_slot(app: Dibs) -> Act:
    claim = app.sync.claim_job(_in_slot(app)[0].id)
    return lambda: claim.snooze(30)


@scene
def exchange___at_gates(app: Dibs) -> Act:
    claims = [app.sync.claim_job(jobs[0].id) for jobs in (_on_train(app), _in_slot(app))]
    return lambda: exchange(app, claims, limit=2)


@scene
def stage__in_slots(app: Dibs) -> Act:
    _in_slot(app, 2)
    _in_slot(app, 1, delay=5)
    age(app, 30)
    return app.sync.sweep


@scene
def sweep__at_gates(app: Dibs) -> Act:
    for jobs in (_on_train(app, max_attempts=1, on_failed="hold"), _in_slot(app)):
        app.sync.claim_job(jobs[0].id, lease=1)
    age(app, 60)

    def script() -> Any:
        return (yield Step("sweep", {"limit": 9}))

    return lambda: _run(app, script)


@scene
def cancel__at_gates(app: Dibs) -> Act:
    _on_train(app, 2, on_cancelled="hold")
    _in_slot(app, 2)
    return lambda: app.sync.cancel_many(state=["ready"])


@scene
def retry__the_head_of_a_held_train(app: Dibs) -> Act:
    first, *_ = _held_train(app)
    return lambda: app.sync.retry(first.id)


@scene
def retry__in_a_slot(app: Dibs) -> Act:
    first, *_ = _in_slot(app, 2)
    app.sync.cancel(first.id)
    return lambda: app.sync.retry(first.id)


@scene
def recover__in_a_slot(app: Dibs) -> Act:
    claim = app.sync.claim_job(_in_slot(app)[0].id, lease=1)
    age(app, 3600)
    return lambda: app.sync.recover(claim.job.id, stale_after=1)


@scene
def delete__who_holds_a_train(app: Dibs) -> Act:
    first, *_ = _held_train(app)
    return lambda: app.sync.delete(first.id)


@scene
def delete__who_is_ready_in_a_slot(app: Dibs) -> Act:
    first, *_ = _in_slot(app)
    return lambda: app.sync.delete(first.id)


@scene
def prune__who_was_kept_for_a_while(app: Dibs) -> Act:
    [claim] = _running(app, unique="key", unique_for=60)
    claim.succeed()
    _held_train(app)
    age(app, 3600)
    return lambda: app.sync.prune(0)


@scene
def depart__from_gates(app: Dibs) -> Act:
    _on_train(app)
    _in_slot(app, unique="key", unique_for=60)
    app.sync.pause("default")
    return lambda: ask(app, "depart", store=ELSEWHERE, after=None, limit=2)


@scene
def arrive__at_gates(app: Dibs) -> Act:
    texts = [row["job"] for row in depart__from_gates(app)()]
    return lambda: ask(app, "arrive", store=ELSEWHERE, jobs=texts)


@scene
def release_train(app: Dibs) -> Act:
    _held_train(app)
    return lambda: app.sync.trains.release("t")


@scene
def mend(app: Dibs) -> Act:
    for jobs in (_on_train(app), _in_slot(app)):
        _delete_by_hand(app, jobs[0].id)
    return lambda: _run(app, upkeep.mend)


# -- The same with jobs that wait for parents ----------------------------------------------------


def _pipeline(app: Dibs, **options: Any) -> Any:
    """first, then two beside each other on a train and in a slot, then last."""
    drawn = app.sync.pipeline("nightly", **options)
    first = drawn.add(NewJob("first", slot="a", max_attempts=1))
    both = [drawn.add(NewJob("second", **gate), after=[first]) for gate in ({"train": "t"}, {"slot": "s"})]
    drawn.add(NewJob("last"), after=[first, *both])
    return drawn


def _begun(app: Dibs, **options: Any) -> Any:
    """(The jobs of an enqueued one, the claim of the first)."""
    jobs = _pipeline(app, **options).enqueue()
    return jobs, app.sync.claim_job(jobs[0].id)


def _failed(app: Dibs) -> list[Any]:
    jobs, claim = _begun(app)
    claim.fail("broken")
    return list(jobs)


@scene
def enqueue_pipeline(app: Dibs) -> Act:
    _in_slot(app, 1)
    drawn = _pipeline(app)
    return drawn.enqueue


@scene
def enqueue__in_the_slot_of_a_child(app: Dibs) -> Act:
    _pipeline(app).enqueue()
    return lambda: app.sync.enqueue(NewJob("work", slot="a", slot_policy="replace"))


@scene
def settle__a_child_that_succeeds(app: Dibs) -> Act:
    _, claim = _begun(app)
    return lambda: claim.succeed("well", then=[NewJob("child")])


@scene
def settle__a_child_that_fails(app: Dibs) -> Act:
    _, claim = _begun(app)
    return lambda: claim.fail("broken")


@scene
def exchange___of_a_child(app: Dibs) -> Act:
    _, claim = _begun(app)
    return lambda: exchange(app, [claim], limit=2)


@scene
def sweep__a_child_whose_worker_died(app: Dibs) -> Act:
    _begun(app)
    age(app, 3600)

    def script() -> Any:
        return (yield Step("sweep", {"limit": 9}))

    return lambda: _run(app, script)


@scene
def cancel__a_child(app: Dibs) -> Act:
    jobs = _pipeline(app).enqueue()
    return lambda: app.sync.cancel(jobs[1].id, "enough")


@scene
def retry__a_child_that_failed(app: Dibs) -> Act:
    jobs = _failed(app)
    return lambda: app.sync.retry(jobs[0].id)


@scene
def retry__a_child_that_still_waits(app: Dibs) -> Act:
    jobs = _failed(app)
    return lambda: app.sync.retry(jobs[1].id)


@scene
def delete__a_child(app: Dibs) -> Act:
    jobs = _failed(app)
    return lambda: app.sync.delete(jobs[0].id)


@scene
def delete__a_child_that_waits(app: Dibs) -> Act:
    jobs = _pipeline(app).enqueue()
    return lambda: app.sync.delete(jobs[1].id)


@scene
def prune__in_a_pipeline(app: Dibs) -> Act:
    _, claim = _begun(app)
    claim.succeed()
    _failed(app)
    age(app, 3600)
    return lambda: app.sync.prune(0)


@scene
def depart__from_a_pipeline(app: Dibs) -> Act:
    _failed(app)
    return lambda: ask(app, "depart", store=ELSEWHERE, after=None, limit=2)


def _delete_by_hand(app: Dibs, id: object) -> None:
    def script() -> Any:
        yield Step("age", {"micros": 0})

    break_script(app, "age", "return {}", f"will('DEL', job_key('{id}')) return {{}}")
    _run(app, script)


@scene
def mend__a_pipeline(app: Dibs) -> Act:
    jobs, claim = _begun(app, on_failed="hold")
    claim.succeed()
    app.sync.delete(jobs[1].id)
    _delete_by_hand(app, _pipeline(app).enqueue()[0].id)
    return lambda: _run(app, upkeep.mend)


@scene
def go_on(app: Dibs) -> Act:
    """A cancelled job has more children than one script changes."""
    break_script(app, "cancel", "local budget = 500 ", "local budget = 1")
    jobs = _pipeline(app).enqueue()
    call_once(app, "cancel", ids=[jobs[0].id], reason=None)
    return lambda: call_once(app, "go_on")


def test_redis_has_an_answer_to_every_question_and_no_other() -> None:
    assert set(Redis().answers) == QUESTIONS | GATE_QUESTIONS


def test_every_file_of_lua_belongs_to_a_script() -> None:
    scripts = [lua_script(question).text for question in ALL_SCRIPTS - NO_SCRIPTS]

    for file in LUA.glob("*/*.lua"):
        if file.stem != "settle_or_raise":  # for pipelines of callers
            assert any(file.read_text() in text for text in scripts), f"no question uses {file.name}"


def test_the_decisions_that_lua_makes_about_gates_are_listed_by_name() -> None:
    heading = (LUA / "lib" / "gate.lua").read_text().split("\n\n")[0]
    listed = re.findall(r"^--(?:   (\w+\.lua) +| {17})((?:\w+(?:, )?)+) ", heading, re.MULTILINE)
    file = ""

    assert len(listed) >= 8
    for name, decisions in listed:
        file = name or file
        [text] = [
            path.read_text() for path in LUA.glob(f"*/{file}") if file != "gates.lua" or "lib" in path.parts
        ]
        for decision in decisions.split(", "):
            assert f"local function {decision}(" in text


def test_every_question_that_writes_has_a_scene() -> None:
    never_asked = NO_SCRIPTS | {"age"}  # of users
    only_told = {"echo"}

    writing = ALL_SCRIPTS - READS - never_asked - only_told
    assert set(map(question_of, SCENES)) == writing


def question_of(name: str) -> str:
    return name.partition("__")[0].rstrip("_")


@pytest.mark.parametrize("name", SCENES)
def test_a_script_that_fails_before_any_of_its_writes_has_written_nothing(
    on_redis: Place, client: redis.Redis, name: str
) -> None:
    app = on_redis.app()
    act = SCENES[name](app)
    before, positions = everything(client), 0

    while True:
        fails_at(app, question_of(name), positions + 1)
        try:
            act()
            break
        except ReplyError as error:
            assert "out of luck" in str(error)  # noqa: PT017
        positions += 1
        assert everything(client) == before

    assert positions >= 1, "the script was never made to fail"
    assert everything(client) != before
    if question_of(name) != "mend":  # what was deleted by hand has left more behind than gates
        assert misplaced(client) == []
    assert astray(client) == []


def fails_at(app: Dibs, question: str, position: int) -> None:
    """Let the script fail when it is about to collect its write of this number."""
    failing = f"""
local collected = 0
local function collect()
  collected = collected + 1
  if collected == {position} then error('out of luck') end
end
"""
    break_script(app, question, "local function collect() end", failing)


@pytest.mark.parametrize("question", sorted(ALL_SCRIPTS - {"claim_within_limits"}))
def test_a_script_writes_only_in_its_commit(question: str) -> None:
    decides, _ = lua_script(question).text.split("-- -- Commit ---")
    own = lua_script(question).text.split("redis.call('PUBLISH', store .. ':wake', queue)")[1]

    for command in ("HSET", "HDEL", "ZADD", "ZREM", "SADD", "SREM", "DEL", "INCRBY", "SET", "PUBLISH"):
        assert f"redis.call('{command}'" not in decides + own


# -- What is gone ---------------------------------------------------------------------------------


def test_a_server_that_forgot_the_scripts_is_told_them_again(on_redis: Place, client: redis.Redis) -> None:
    app = on_redis.app()
    [job] = app.sync.enqueue(NewJob("work"))

    client.script_flush()

    [claim] = app.sync.claim()
    client.script_flush()
    claim.succeed()
    assert app.sync.get(job.id).state == "succeeded"


def test_a_job_that_was_deleted_by_hand_stops_no_other(on_redis: Place, client: redis.Redis) -> None:
    """So an instance that evicts against our advice loses jobs, but not the ability to work."""
    app = on_redis.app()
    ready, due, dead, ended = app.sync.enqueue(*(NewJob(kind) for kind in ("a", "b", "c", "d")))
    app.sync.claim_job(dead.id, lease=1)
    app.sync.claim_job(ended.id).succeed()
    app.sync.claim_job(due.id).snooze(60)
    age(app, 120)
    for job in (ready, due, dead, ended):
        client.delete(f"{{dibs}}:job:{job.id}")
    [other] = app.sync.enqueue(NewJob("a"))

    assert [claim.job.id for claim in app.sync.claim(limit=9)] == [other.id]
    app.sync.sweep()
    app.sync.prune(0)
    assert [job.id for job in app.sync.find()] == [other.id]
    assert client.zcard("{dibs}:leases") == 1
    assert not client.exists("{dibs}:scheduled", "{dibs}:ended:succeeded")


def test_many_that_may_not_depart_are_passed_in_long_steps(on_redis: Place, client: redis.Redis) -> None:
    app = on_redis.app()
    app.sync.enqueue(*(NewJob("plain") for _ in range(19)))
    app.sync.enqueue(*(NewJob("work", train="t") for _ in range(200)))
    [last] = app.sync.enqueue(NewJob("plain"))
    before = _scripts_run(client)

    rows = ask(app, "depart", store=ELSEWHERE, after=None, limit=20)

    assert (len(rows), rows[-1]["id"]) == (20, last.id)
    assert _scripts_run(client) - before <= 13  # twenty looked at by each, not one by one


def _scripts_run(client: redis.Redis) -> int:
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    return sum(about["calls"] for name, about in stats.items() if name.startswith("cmdstat_eval"))
