"""Jobs with `isolation="process"`: each in a process of its own, which can be killed and may die."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dibs import BadRequest, Dibs, NewJob, Worker
from dibs.worker.isolation import pool as pool
from tests.support.internals import store_of
from tests.support.workers import Apps, drain, finished, look, processes, take_back, wait_until, working

JOBS = "tests.support.isolated_jobs"
JOBS_FILE = Path(__file__).parents[1] / "support" / "isolated_jobs.py"

on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
colours = pytest.mark.parametrize("colour", ["", "_awaited"], ids=["plain", "async"])


@pytest.fixture
def jobs(url: str, apps: Apps, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of isolated jobs, with its app on this test's store."""
    monkeypatch.setenv("DIBS_URL", url)
    monkeypatch.delitem(sys.modules, JOBS, raising=False)
    module = importlib.import_module(JOBS)
    apps.adopt(module.app)
    yield module
    sys.modules.pop(JOBS, None)


@pytest.fixture
def app(jobs: ModuleType) -> Dibs:
    return jobs.app


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def read(folder: str, name: str) -> str | None:
    file = Path(folder, name)
    return file.read_text() if file.exists() else None


def exists(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def began(folder: str) -> int:
    return int(await wait_until(lambda: read(folder, "began")))


# -- Running jobs -------------------------------------------------------------------------------


async def test_isolated_jobs_run_in_another_process(app: Dibs, jobs: Any) -> None:
    plain, awaited, inside = await app.enqueue(jobs.plain.new(2), jobs.awaited.new(3), jobs.inside.new(4))

    await drain(app)

    done = [await app.get(job.id) for job in (plain, awaited, inside)]
    assert [(job.state, job.result["n"]) for job in done] == [
        ("succeeded", 2),
        ("succeeded", 3),
        ("succeeded", 4),
    ]
    assert [job.result["pid"] == os.getpid() for job in done] == [False, False, True]


@on_sqlite
async def test_a_process_is_kept_for_the_next_job(app: Dibs, jobs: Any) -> None:
    ids = [job.id for job in await app.enqueue(*(jobs.plain.new(n) for n in range(20)))]

    await drain(app, concurrency=1)

    pids = {(await app.get(id)).result["pid"] for id in ids}
    assert len(pids) == 1
    assert not exists(pids.pop())


@on_sqlite
async def test_isolated_jobs_run_beside_each_other(app: Dibs, jobs: Any, folder: str) -> None:
    names = ["a", "b", "c"]
    ids = [job.id for job in await app.enqueue(*(jobs.together.new(folder, names, name) for name in names))]

    await drain(app, concurrency=3)

    assert len({(await app.get(id)).result for id in ids}) == 3


@on_sqlite
async def test_a_process_without_a_job_ends_after_a_while(
    app: Dibs, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)
    async with working(app):
        first = await finished(app, await jobs.plain.enqueue())
        await wait_until(lambda: not exists(first.result["pid"]))
        second = await finished(app, await jobs.plain.enqueue())

    assert second.state == "succeeded"
    assert second.result["pid"] != first.result["pid"]


@colours
async def test_an_isolated_step_gets_the_results_of_its_parents(app: Dibs, jobs: Any, colour: str) -> None:
    pipeline = app.pipeline("nightly")
    parents = [pipeline.add(NewJob(kind)) for kind in ("b", "a")]
    step = pipeline.add(getattr(jobs, f"results_of_parents{colour}").new(), after=parents)
    await pipeline.enqueue()
    for number, parent in enumerate(parents):
        claim = await app.claim_job(parent.id)
        assert claim is not None
        await claim.succeed({"rows": number})

    await drain(app)

    done = await app.get(step.id)
    assert done is not None
    pid, *results = done.result
    assert pid != os.getpid()
    assert results == [{"rows": 0}, {"rows": 1}]


# -- A process that ends by itself --------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("how", "ending"),
    [("exit", "exit code 3"), ("killed", "signal 9 (SIGKILL)"), ("segfault", "signal 11 (SIGSEGV)")],
    ids=["exit", "killed", "segfault"],
)
async def test_a_process_that_dies_is_a_failed_attempt(app: Dibs, jobs: Any, how: str, ending: str) -> None:
    dead, alive = await app.enqueue(jobs.die.new(how), jobs.plain.new(2))

    await drain(app, concurrency=1)

    dead, alive = await app.get(dead.id), await app.get(alive.id)
    assert (dead.state, dead.errors[0].message) == ("failed", f"the process running it ended: {ending}")
    assert dead.errors[0].type.endswith("ProcessEnded")
    assert alive.result["n"] == 2


async def test_the_death_of_a_process_does_not_touch_its_neighbours(
    app: Dibs, jobs: Any, folder: str
) -> None:
    neighbour, inside = await app.enqueue(jobs.together.new(folder, ["end"], "began"), jobs.inside.new())
    async with working(app):
        await wait_until(lambda: read(folder, "began") is not None)
        dead = await finished(app, await jobs.die.enqueue("killed"))
        assert (await app.get(neighbour.id)).state == "running"
        Path(folder, "end").touch()
        neighbour = await finished(app, neighbour)
        inside = await finished(app, inside)

    assert [job.state for job in (dead, neighbour, inside)] == ["failed", "succeeded", "succeeded"]


@on_sqlite
async def test_a_job_is_tried_again_after_its_process_died(app: Dibs, jobs: Any) -> None:
    job = await jobs.die_at_first.enqueue()

    await drain(app)
    done = await app.get(job.id)

    assert (done.state, done.result, len(done.errors)) == ("succeeded", 2, 1)


@on_sqlite
async def test_what_a_dead_process_left_behind_is_ended(app: Dibs, jobs: Any, folder: str) -> None:
    job = await jobs.leaves_another_behind.enqueue(folder)

    await drain(app)

    assert (await app.get(job.id)).errors[0].message.endswith("exit code 1")
    await wait_until(lambda: not exists(read(folder, "other")))  # killed, a moment ago


# -- Stopping it --------------------------------------------------------------------------------


@colours
async def test_a_job_that_takes_too_long_is_ended(app: Dibs, jobs: Any, folder: str, colour: str) -> None:
    job = await getattr(jobs, f"too_slow{colour}").enqueue(folder)

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.errors[0].type) == ("failed", "TimeoutError")
    assert "its timeout of 0.5 s" in done.errors[0].message
    assert read(folder, "cleaned up") is not None
    assert not exists(read(folder, "began"))


@on_sqlite
@pytest.mark.parametrize("kind", ["deaf", "too_slow_with_the_gil"])
async def test_a_process_that_ignores_sigterm_is_killed(app: Dibs, jobs: Any, folder: str, kind: str) -> None:
    job = await getattr(jobs, kind).enqueue(folder)

    await drain(app)

    done = await app.get(job.id)
    assert (done.state, done.errors[0].type) == ("failed", "TimeoutError")
    assert read(folder, "cleaned up") is None
    assert not exists(read(folder, "began"))


@on_sqlite
async def test_the_time_a_process_takes_to_start_is_not_the_jobs(
    app: Dibs, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import os, time\nfrom dibs import Dibs\napp = Dibs(os.environ['DIBS_URL'])\n"
        "@app.job(isolation='process', timeout=0.5, name='swift')\ndef swift(): return 1\n"
        "time.sleep(0.8)\n"
    )
    other = _module("slow_to_import", tmp_path, monkeypatch)
    job = await other.swift.enqueue()
    await drain(other.app)

    done = await app.get(job.id)
    await other.app.close()
    assert (done.state, done.errors) == ("succeeded", [])


@on_sqlite
async def test_what_a_handler_started_ends_with_it(app: Dibs, jobs: Any, folder: str) -> None:
    job = await jobs.starts_another.enqueue(folder)

    await drain(app)

    assert (await app.get(job.id)).errors[0].type == "TimeoutError"
    await wait_until(lambda: not exists(read(folder, "other")))  # killed, a moment ago


@colours
async def test_a_cancelled_job_is_ended(app: Dibs, jobs: Any, folder: str, colour: str) -> None:
    async with working(app):
        job = await getattr(jobs, f"sleeps{colour}").enqueue(folder)
        pid = await began(folder)
        await app.cancel(job.id, "enough")
        done = await finished(app, job)

        assert (done.state, done.message) == ("cancelled", "enough")
        assert not exists(pid)
        assert read(folder, "cleaned up") is not None


@pytest.mark.parametrize("kind", ["sleeps", "sleeps_awaited", "hold_the_gil"])
async def test_a_job_that_preempts_an_isolated_one_starts_when_its_process_has_ended(
    app: Dibs, jobs: Any, folder: str, kind: str
) -> None:
    async with working(app):
        old = await getattr(jobs, kind).using(slot="s").enqueue(folder)
        pid = await began(folder)
        new = await jobs.still_there.using(slot="s", slot_policy="preempt").enqueue(pid)
        done = await finished(app, new)

    assert (done.state, done.result) == ("succeeded", False)
    stopped = await finished(app, old)
    assert (stopped.state, stopped.message) == ("cancelled", f"pre-empted by {new.id}")
    assert stopped.finished_at <= done.claimed_at


async def test_a_lost_lease_ends_the_process(app: Dibs, jobs: Any, folder: str) -> None:
    async with working(app):
        job = await jobs.sleeps.enqueue(folder)
        pid = await began(folder)
        await asyncio.to_thread(take_back, app, job.id)
        await wait_until(lambda: not exists(pid))
        done = await finished(app, job)

    assert (done.result, done.attempts) == ("second", 2)
    assert [error.message for error in done.errors] == ["worker died"]


@on_sqlite
async def test_a_lost_lease_ends_the_process_though_the_event_loop_is_blocked(
    app: Dibs, jobs: Any, url: str, folder: str
) -> None:
    @app.job
    async def block(pid: int) -> bool:
        other = Dibs(url).sync
        store_of(other).run(_age)
        other.sweep()
        other.close()
        look(lambda: not exists(pid))
        return exists(pid)

    async with working(app):
        await jobs.sleeps.enqueue(folder)
        pid = await began(folder)
        done = await finished(app, await block.using(max_attempts=1).enqueue(pid))

    assert (done.result, done.errors) == (False, [])


def _age(_: Any) -> Any:
    from dibs.operations import upkeep

    return upkeep.age(5_000_000)


@colours
async def test_after_the_grace_an_isolated_job_is_ended_and_given_back(
    app: Dibs, jobs: Any, folder: str, colour: str
) -> None:
    worker = Worker(app, grace=0.2)
    running = asyncio.create_task(worker.run())
    job = await getattr(jobs, f"sleeps{colour}").enqueue(folder)
    pid = await began(folder)

    worker.stop()
    await running

    back = await app.get(job.id)
    assert (back.state, back.attempts, back.errors) == ("ready", 0, [])
    assert not exists(pid)
    assert read(folder, "cleaned up") is not None


@on_sqlite
async def test_within_the_grace_an_isolated_job_may_finish(app: Dibs, jobs: Any, folder: str) -> None:
    worker = Worker(app, grace=20)
    running = asyncio.create_task(worker.run())
    job = await jobs.together.enqueue(folder, ["go"], "began")
    await wait_until(lambda: read(folder, "began") is not None)

    worker.stop()
    Path(folder, "go").touch()
    await running

    assert (await app.get(job.id)).state == "succeeded"


@on_sqlite
@pytest.mark.parametrize("kind", ["sleeps", "hold_the_gil", "starts_another_for_long"])
def test_no_process_outlives_a_worker_that_was_killed(
    url: str, tmp_path: Path, folder: str, kind: str
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS_FILE.read_text())
    store = Dibs(url).sync
    with processes(tmp_path, url) as start:
        worker = start()
        store.enqueue(NewJob(kind, {"folder": folder}))
        pid = int(look(lambda: read(folder, "began")))
        worker.kill()

        look(lambda: not exists(pid))
        other = read(folder, "other")
        look(lambda: other is None or not exists(other))
    store.close()


@on_sqlite
def test_control_c_is_left_to_the_worker(url: str, tmp_path: Path, folder: str) -> None:
    (tmp_path / "jobs.py").write_text(JOBS_FILE.read_text())
    store = Dibs(url).sync
    with processes(tmp_path, url) as start:
        worker = start(group=True)
        [job] = store.enqueue(NewJob("together", {"folder": folder, "others": ["go"], "name": "began"}))
        look(lambda: read(folder, "began") is not None)
        os.killpg(worker.pid, signal.SIGINT)
        look(lambda: store.workers() and True)
        Path(folder, "go").touch()

        assert worker.ended(8) == 0
        assert store.get(job.id).state == "succeeded"
    store.close()


# -- What a handler says ------------------------------------------------------------------------


async def test_an_isolated_handler_knows_its_job(app: Dibs, jobs: Any) -> None:
    job = await jobs.knows.enqueue()

    await drain(app)

    done = await app.get(job.id)
    assert done.result == {"id": str(job.id), "token": done.token, "lost": False, "args": {}}


async def test_the_progress_of_an_isolated_job_can_be_seen(app: Dibs, jobs: Any, folder: str) -> None:
    async with working(app):
        job = await jobs.notes.enqueue(folder)
        seen = await wait_until(lambda: _with_progress(app, job.id))
        Path(folder, "seen").touch()
        done = await finished(app, job)

    assert (seen.progress, seen.message, seen.state) == (0.25, "a quarter", "running")
    assert done.state == "succeeded"


async def test_a_plain_isolated_job_reports_its_progress_too(app: Dibs, jobs: Any, folder: str) -> None:
    job = await jobs.tells_plainly.enqueue(folder)

    async with working(app):
        seen = await wait_until(lambda: _with_progress(app, job.id))
        Path(folder, "seen").touch()
        await finished(app, job)

    assert (seen.progress, seen.message, seen.state) == (0.25, "a quarter", "running")


@colours
async def test_an_isolated_job_has_the_state_of_a_lifespan_of_its_process(
    app: Dibs, jobs: Any, colour: str
) -> None:
    job = await getattr(jobs, f"with_state{colour}").enqueue()

    await drain(app)

    assert (await app.get(job.id)).result == {"own process": True, "own loop": True}


async def _with_progress(app: Dibs, id: Any) -> Any:
    job = await app.get(id)
    return job if job.progress else None


@on_sqlite
async def test_a_progress_that_is_none_is_refused(app: Dibs, jobs: Any) -> None:
    job = await jobs.notes_nonsense.enqueue()

    await drain(app)

    assert (await app.get(job.id)).errors[0].type == "dibs.errors.BadRequest"


async def test_children_of_an_isolated_job_appear_with_its_success(app: Dibs, jobs: Any) -> None:
    job = await jobs.chains.enqueue("success")

    await drain(app)

    children = await app.find(kind="inside")
    assert sorted((child.args["n"], child.priority, child.tags) for child in children) == [
        (5, 3, ["child"]),
        (6, 0, []),
    ]
    assert {child.parent_id for child in children} == {job.id}


@on_sqlite
@pytest.mark.parametrize("ending", ["raise", "unstorable"])
async def test_without_success_an_isolated_job_has_no_children(app: Dibs, jobs: Any, ending: str) -> None:
    job = await jobs.chains.enqueue(ending)

    await drain(app)

    assert (await app.get(job.id)).state == "failed"
    assert await app.find(kind="inside") == []


@pytest.mark.parametrize("way", ["", "raise "], ids=["returned", "raised"])
async def test_an_isolated_handler_may_snooze_cancel_or_fail(app: Dibs, jobs: Any, way: str) -> None:
    ways = [way + how for how in ("snooze", "cancel", "fail")]
    snooze, cancel, fail = await app.enqueue(*map(jobs.ends.new, ways))

    await drain(app)

    snoozed, cancelled, failed = [await app.get(job.id) for job in (snooze, cancel, fail)]
    assert (snoozed.state, snoozed.attempts) == ("scheduled", 0)
    assert (cancelled.state, cancelled.message) == ("cancelled", "not needed")
    assert (failed.state, failed.errors[0].message) == ("failed", "can't be done")


async def test_an_isolated_handler_is_tried_again_after_what_its_kind_names(app: Dibs, jobs: Any) -> None:
    again, never = await app.enqueue(jobs.tries_again.new("reset"), jobs.tries_again.new("key"))

    await drain(app)

    assert (await app.get(again.id)).state == "scheduled"
    assert (await app.get(never.id)).state == "failed"


@colours
async def test_what_goes_around_an_isolated_handler_does_so_in_its_process(
    app: Dibs, jobs: Any, colour: str
) -> None:
    job = await getattr(jobs, f"around{colour}").enqueue()

    await drain(app)

    entered, ran = (await app.get(job.id)).result
    assert entered == ran != os.getpid()


async def test_the_exception_of_an_isolated_handler_is_recorded(app: Dibs, jobs: Any) -> None:
    job = await jobs.ends.enqueue("raise")

    await drain(app)

    [error] = (await app.get(job.id)).errors
    assert (error.type, error.message, error.attempt) == ("ValueError", "went wrong", 1)
    assert "isolated_jobs.py" in error.traceback.splitlines()[0]


@on_sqlite
@pytest.mark.parametrize("how", ["exit", "unstorable", "hostile", "huge", "surrogate"])
async def test_a_hostile_ending_does_not_hurt_the_process(app: Dibs, jobs: Any, how: str) -> None:
    hostile, other = await app.enqueue(jobs.ends.new(how), jobs.plain.new(2))

    await drain(app, concurrency=1)

    hostile, other = await app.get(hostile.id), await app.get(other.id)
    assert hostile.state == "failed"
    assert len(hostile.errors[0].message) < 5_000
    assert other.result["n"] == 2


@on_sqlite
async def test_a_handler_may_print_log_and_return_a_lot(
    app: Dibs, jobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = await jobs.chatters.enqueue()
    with caplog.at_level(logging.WARNING):
        await drain(app)

    assert (await app.get(job.id)).result == "y" * 900_000
    assert ("mine", logging.WARNING, "something is odd") in caplog.record_tuples


@on_sqlite
@pytest.mark.parametrize("what", ["close", "write"])
async def test_a_handler_that_spoils_its_socket_fails_alone(app: Dibs, jobs: Any, what: str) -> None:
    spoilt, other = await app.enqueue(jobs.speaks_into_the_socket.new(what), jobs.plain.new(2))

    await drain(app, concurrency=1)

    spoilt = await app.get(spoilt.id)
    assert spoilt.state == "failed"
    assert spoilt.errors[0].message.startswith("the process running it ended: ")
    assert (await app.get(other.id)).result["n"] == 2


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
async def test_an_isolated_job_is_completed_in_its_own_transaction(
    app: Dibs, jobs: Any, url: str, commit: bool
) -> None:
    job = await jobs.completes.enqueue(url, commit)

    await drain(app)

    done = await app.get(job.id)
    if commit:
        assert (done.state, done.result, done.errors) == ("succeeded", "by hand", [])
    else:
        assert (done.state, done.result) == ("failed", None)
        assert "not committed" in done.errors[0].message


@pytest.mark.parametrize("within", [None, "nonsense"], ids=["none", "nonsense"])
async def test_a_completion_within_nothing_is_refused(app: Dibs, jobs: Any, within: str | None) -> None:
    job = await jobs.completes_nowhere.enqueue(within)

    await drain(app)

    [error] = (await app.get(job.id)).errors
    assert error.type in ("dibs.errors.BadRequest", "dibs.errors.UnsupportedConnection")


# -- What can't be imported ---------------------------------------------------------------------


def _module(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


async def test_an_app_that_is_no_global_of_a_module_is_refused_at_the_start(apps: Apps) -> None:
    app = apps()
    app.job(lambda: None, name="local", isolation="process")

    with pytest.raises(BadRequest, match="not a global name of any module"):
        await Worker(app).run()


@on_sqlite
@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("if os.getppid() == {pid}: raise ValueError('not here')", "ValueError: not here"),
        ("if os.getppid() == {pid}: del app", "no attribute 'app'"),
        ("if os.getppid() == {pid}: os._exit(7)", "ended while it imported .*exit code 7"),
        (
            "def make():\n    app.job(isolation='process', name='late')(print_nothing)\n"
            "if os.getpid() == {pid}: make()",
            "registers no late",
        ),
    ],
    ids=["raises", "without the app", "dies", "registered late"],
)
async def test_a_module_that_can_not_be_imported_again_is_an_error_at_the_start(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, complaint: str
) -> None:
    monkeypatch.setenv("DIBS_URL", url)
    (tmp_path / "broken.py").write_text(
        "import os\nfrom dibs import Dibs\napp = Dibs()\ndef print_nothing(): ...\n"
        "app.job(isolation='process', name='early')(print_nothing)\n" + lines.format(pid=os.getpid()) + "\n"
    )
    app = _module("broken", tmp_path, monkeypatch).app
    [job] = await app.enqueue(NewJob("early"))

    with pytest.raises(BadRequest, match=f"(?s)isolation='process'.*{complaint}|{complaint}"):
        await Worker(app).run()

    assert (await app.get(job.id)).state == "ready"
    await app.close()


SCRIPT = """
import asyncio
from dibs import Dibs, Worker

app = Dibs()

@app.job(isolation="process")
def work(n: int) -> int:
    return 2 * n

async def main():
    job = await work.enqueue(21)
    await Worker(app).run(until_idle=True)
    print("result", (await app.get(job.id)).result)
    await app.close()

"""


def _run_script(folder: Path, url: str, *words: str) -> Any:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "DIBS_URL": url},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@on_sqlite
@pytest.mark.parametrize("words", [["script.py"], ["-m", "script"]], ids=["script", "module"])
def test_a_script_may_run_its_own_isolated_jobs(url: str, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + 'if __name__ == "__main__":\n    asyncio.run(main())\n')

    ran = _run_script(tmp_path, url, *words)

    assert (ran.returncode, ran.stdout) == (0, "result 42\n"), ran.stderr


@on_sqlite
def test_a_script_without_a_guard_is_refused_with_the_remedy(url: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + "asyncio.run(main())\n")

    ran = _run_script(tmp_path, url, "script.py")

    assert ran.returncode == 1
    assert 'put what runs the worker under `if __name__ == "__main__":`' in ran.stderr.splitlines()[-1]


@on_sqlite
def test_jobs_of_an_interactive_session_are_refused(url: str, tmp_path: Path) -> None:
    ran = _run_script(tmp_path, url, "-c", textwrap.dedent(SCRIPT) + "asyncio.run(main())")

    assert ran.returncode == 1
    assert "put them into a file" in ran.stderr.splitlines()[-1]


# -- By hand ------------------------------------------------------------------------------------


async def test_run_job_runs_an_isolated_kind_here(app: Dibs, jobs: Any) -> None:
    job = await jobs.plain.enqueue()

    done = await app.run_job(job.id)

    assert done.result["pid"] == os.getpid()
