"""Checks of all keys of a Redis store: every job is listed exactly where its state says; broken scripts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import redis

from dibs import Dibs
from dibs.engines.redis.scripts import LuaScript, lua_script, make_script
from tests.support.internals import engine_of, store_of

STORE = "{dibs}"
FINISHED = ("succeeded", "failed", "cancelled")


def everything(client: redis.Redis) -> dict[str, Any]:
    """Return all keys and values: a script that failed must not have changed any."""
    keys = sorted(client.keys())
    with client.pipeline(transaction=False) as asking:
        for key in keys:
            asking.type(key)
        kinds = asking.execute()
        for key, kind in zip(keys, kinds, strict=True):
            _READERS[kind](asking, key)
        return dict(zip(keys, asking.execute(), strict=True))


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "hash": lambda asking, key: asking.hgetall(key),
    "zset": lambda asking, key: asking.zrange(key, 0, -1, withscores=True),
    "set": lambda asking, key: asking.smembers(key),
    "string": lambda asking, key: asking.get(key),
    "list": lambda asking, key: asking.lrange(key, 0, -1),
}


def misplaced(client: redis.Redis) -> list[tuple[str, str]]:
    """Return the keys that do not fit the jobs: (what, key)."""
    stored = everything(client)
    jobs = {key.split(":job:")[1]: value for key, value in stored.items() if ":job:" in key}
    expected = (
        _expected(jobs, stored) | _expected_at_gates(jobs, stored) | _expected_in_pipelines(jobs, stored)
    )
    found = {key: value for key, value in stored.items() if not _is_apart(key)}
    wrong = [
        ("differs", key) for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)
    ]
    return wrong + list(_unlike_their_state(jobs))


def astray(client: redis.Redis) -> list[str]:
    """Return what must hold at trains and slots, and does not."""
    stored = everything(client)
    jobs = {key.split(":job:")[1]: value for key, value in stored.items() if ":job:" in key}
    return [*_astray_on_trains(jobs, stored), *_astray_in_slots(jobs)]


def places(client: redis.Redis) -> dict[UUID, tuple[int | None, int, str | None]]:
    """Return the position of each job at a gate, its slot's limit, and why it was asked to stop."""
    stored = everything(client)
    jobs = {key.split(":job:")[1]: value for key, value in stored.items() if ":job:" in key}
    return {
        UUID(id): (_number(job.get("position")), int(job.get("slot_limit", 1)), _asked(job))
        for id, job in jobs.items()
        if _gate(job) and job["state"] not in FINISHED
    }


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _asked(job: dict[str, str]) -> str | None:
    """Drop the '!' that stands before every reason, because an empty text is not stored."""
    return job["cancel_reason"][1:] if job.get("cancel_reason") else None


def _is_apart(key: str) -> bool:
    name = key.removeprefix(f"{STORE}:").split(":")[0]
    return name in (
        *("job", "token", "settings", "paused", "limits", "schedules", "workers", "worker", "minutes"),
        "refusals",
        *("identity", "departed", "arrived", "gate", "offers", "started", "onward", "parents"),
    )


def _expected(jobs: dict[str, dict[str, str]], stored: dict[str, Any]) -> dict[str, Any]:
    keys, kept = stored.get(f"{STORE}:unique", {}), dict(stored.get(f"{STORE}:kept", ()))
    sets: defaultdict[str, dict[str, float]] = defaultdict(dict)
    lines, busy, unique = set(), set(), {}
    for id, job in jobs.items():
        state, line = job["state"], f"{job['queue']}\n{job['kind']}"
        lines.add(line)
        sets[f"ids:{state}:{line}"][id] = 0
        if job.get("pipeline_id"):
            sets[f"pipeline:{job['pipeline_id']}"][id] = 0
            sets["pipelines"][job["pipeline_id"]] = 0
        lasts = job.get("unique_until") and keys.get(job["unique_key"]) == id
        if job.get("unique_key") and (state not in FINISHED or lasts):
            unique[job["unique_key"]] = id
        if state == "ready":
            busy.add(line)
            sets[f"ready:{line}"][_rank(id, job)] = 0
        elif state == "scheduled":
            sets["scheduled"][id] = float(job["run_at"])
        elif state == "running":
            sets["leases"][id] = float(job["lease_until"])
        elif _waits(job):
            sets["waiting"][id] = 0
        elif _holds(id, job, stored) or (_may_be_kept(job) and id in kept):
            sets["kept"][id] = float("inf") if _holds(id, job, stored) else kept.get(id, 0)
        elif state in FINISHED:
            sets[f"ended:{state}"][id] = float(job["finished_at"])
    named: dict[str, Any] = {key: sorted(members.items(), key=_place) for key, members in sets.items()}
    named |= {name: value for name, value in (("lines", lines), ("busy", busy), ("unique", unique)) if value}
    return {f"{STORE}:{name}": value for name, value in named.items()}


def _expected_at_gates(jobs: dict[str, dict[str, str]], stored: dict[str, Any]) -> dict[str, Any]:
    sets: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for id, job in jobs.items():
        if not (key := _gate(job)):
            continue
        sets[f"gated:{key}"][id] = 0
        holds = _holds(id, job, stored)
        if holds:
            sets["held"][job["train"]] = 0
        is_there = job["state"] not in FINISHED and not _waits(job)
        if holds or is_there:
            sets["gates"][key] = 0
        if is_there:
            sets[f"members:{key}"][_turn(id, job)] = 0
            if "slot" in job and job["state"] == "blocked":
                sets[f"line:{job['slot']}"][_turn(id, job)] = 0
            elif "slot" in job and job["state"] != "scheduled":
                sets[f"going:{job['slot']}"][_turn(id, job)] = 0
    missing = {key for key in sets["gates"] if f"{STORE}:gate:{key}" not in stored}
    left = {key for key in stored if ":gate:" in key and key.split(":gate:")[1] not in sets["gates"]}
    assert not missing | left, f"gates without jobs, or jobs without a gate: {missing | left}"
    named = {key: sorted(members.items(), key=_place) for key, members in sets.items() if members}
    return {f"{STORE}:{name}": value for name, value in named.items()}


def _expected_in_pipelines(jobs: dict[str, dict[str, str]], stored: dict[str, Any]) -> dict[str, Any]:
    """Derive all sets of pipelines from `parents:` and from the jobs."""
    sets: defaultdict[str, set[str]] = defaultdict(set)
    for key, parents in stored.items():
        child = key.partition(":parents:")[2]
        for parent, order in parents if child else ():
            # No job asks for the children of one that succeeded; the set goes when it departs or is pruned.
            listed = (child, 0.0) in stored.get(f"{STORE}:children:{parent}", ())
            if order > 0 or (parent in jobs and listed):
                sets[f"children:{parent}"].add(child)
            if parent in jobs and jobs[child]["state"] not in FINISHED:
                sets[f"asking:{parent}"].add(child)
    # A job that departed and was given back has no hash of its pipeline; a waiting job has one.
    drawn = {
        job["pipeline_id"]
        for job in jobs.values()
        if _in_pipeline(job) and (_waits(job) or f"{STORE}:drawn:{job['pipeline_id']}" in stored)
    }
    named = {key: [(member, 0.0) for member in sorted(members)] for key, members in sets.items()}
    named |= {"drawn": [(id, 0.0) for id in sorted(drawn)]} if drawn else {}
    notes = {f"{STORE}:drawn:{id}": stored.get(f"{STORE}:drawn:{id}") for id in drawn}
    return {f"{STORE}:{name}": value for name, value in named.items()} | notes


def _in_pipeline(job: dict[str, str]) -> bool:
    return job.get("pipeline_id", "")[14:15] == "8"


def _waits(job: dict[str, str]) -> bool:
    """Tell whether it waits for parents: it has no position yet."""
    return job["state"] == "blocked" and not job.get("position")


def _may_be_kept(job: dict[str, str]) -> bool:
    return bool(job.get("unique_until") or job.get("train") or _in_pipeline(job))


def _gate(job: dict[str, str]) -> str:
    return f"train:{job['train']}" if job.get("train") else f"slot:{job['slot']}" if job.get("slot") else ""


def _holds(id: str, job: dict[str, str], stored: dict[str, Any]) -> bool:
    gate: dict[str, str] = stored.get(f"{STORE}:gate:{_gate(job)}", {})
    return gate.get("held_by") == id


def _turn(id: str, job: dict[str, str]) -> str:
    return f"{int(job['position']) + 10**12:013}{_rank(id, job)}"


def _astray_on_trains(jobs: dict[str, dict[str, str]], stored: dict[str, Any]) -> Iterator[str]:
    """Check that the head of each train may go and no other job, unless it is held."""
    trains: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for job in jobs.values():
        if job.get("train") and job["state"] not in FINISHED and not _waits(job):
            trains[job["train"]].append((int(job["position"]), job["state"]))
    for name, positions in trains.items():
        (_, head), *others = sorted(positions)
        held = bool(stored[f"{STORE}:gate:train:{name}"]["held_by"])
        if (head == "blocked") != held:
            yield f"the head of train {name} is {head}, and it is {'' if held else 'not '}held"
        if any(state != "blocked" for _, state in others):
            yield f"not only the head of train {name} may go: {positions}"


def _astray_in_slots(jobs: dict[str, dict[str, str]]) -> Iterator[str]:
    """Check that in each slot at most as many go as the strictest limit allows, and at least one."""
    slots: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for job in jobs.values():
        if job.get("slot") and job["state"] in ("blocked", "ready", "running") and not _waits(job):
            slots[job["slot"]].append(job)
    for name, members in slots.items():
        going = [int(job.get("slot_limit", 1)) for job in members if job["state"] != "blocked"]
        if not going:
            yield f"no job goes in slot {name}"
        elif len(going) > min(going):
            yield f"{len(going)} go in slot {name}"


def _rank(id: str, job: dict[str, str]) -> str:
    seconds, micros = divmod(int(job["run_at"]), 1_000_000)
    return f"{32767 - int(job['priority']):05}{seconds + 10**11:012}{micros:06}{id}"


def _place(member: tuple[str, float]) -> tuple[float, str]:
    return member[1], member[0]


def _unlike_their_state(jobs: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    for id, job in jobs.items():
        state, get = job["state"], job.get
        if state == "running" and not (get("worker") and get("token") and get("lease_until")):
            yield "running without a holder", id
        if state not in ("running", *FINISHED) and (
            get("worker") or get("lease_until") or get("cancel_reason")
        ):
            yield "waiting with a holder", id
        if (state in FINISHED) != bool(get("finished_at")):
            yield "finished_at is not as its state", id


class StaleMutant(Exception):
    """The text that a mutant replaces is not in the script any more."""


def break_script(app: Dibs, question: str, old: str, new: str) -> None:
    """Replace this app's script of the question with a broken one."""
    scripts = engine_of(app).scripts
    whole = scripts.script
    text = lua_script(question).text
    if old not in text:
        raise StaleMutant(f"{question} does not say {old!r} any more; reword the mutant")
    broken = make_script(question, text.replace(old, new))

    def script(name: str) -> LuaScript:
        return broken if name == question else whole(name)

    scripts.script = script


def call_once(app: Dibs, script: str, **given: Any) -> Any:
    """Call a script as a process that dies before it asks for the rest."""
    store: Any = store_of(app)

    def requests() -> Any:
        return (yield store._engine.scripts.call(script, **given))

    return store._sync._send(requests)
