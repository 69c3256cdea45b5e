"""Real `dibs work` processes: signals, kills, zombies, and a server that goes away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dibs import Dibs, NewJob
from dibs.app.dibs import SyncDibs
from tests.support.servers import MariaDB, PgBouncer, PostgreSQL, Server
from tests.support.workers import Process, boot_time, look, processes, read_record, write_jobs

LEASE = 1
LOAD_SLACK = 1.5  # seconds for a machine of two cores that does other things, too

Start = Callable[..., Process]

SHARED = ["sqlite", "postgresql", "mariadb", "mysql", "redis"]
shared_engines = pytest.mark.parametrize("engine", SHARED, indirect=True)
on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


@pytest.fixture
def store(url: str) -> Iterator[SyncDibs]:
    app = Dibs(url).sync
    yield app
    app.close()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    with processes(tmp_path, url) as start:
        yield start


# -- SIGTERM ------------------------------------------------------------------------------------


@shared_engines
def test_sigterm_ends_a_worker_with_nothing_lost(store: SyncDibs, start: Start, tmp_path: Path) -> None:
    file = write_jobs(tmp_path, lease=60)
    jobs = store.enqueue(*(NewJob("quick", {"seconds": 0.2}) for _ in range(60)))
    worker = start("--concurrency", "5")
    look(lambda: store.counts()["succeeded"] >= 10)

    worker.send(signal.SIGTERM)

    assert worker.ended() == 0
    counts = store.counts()
    assert counts["running"] == 0
    assert counts["succeeded"] + counts["ready"] == len(jobs)
    assert counts["ready"] > 0
    record = read_record(file)
    assert record.open() == []
    assert len(record.runs()) == counts["succeeded"]
    assert all(job.attempts == 0 for job in store.find(state="ready", limit=100))
    assert store.workers() == []


@on_sqlite
def test_a_thread_does_not_keep_the_process_after_its_grace(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path, lease=60)
    [job] = store.enqueue(NewJob("threaded", {"seconds": 15}))
    worker = start("--grace", "0.3s")
    look(lambda: read_record(file).runs())

    worker.send(signal.SIGTERM)

    assert worker.ended(10) == 0
    kept = store.get(job.id)
    assert (kept.state, kept.attempts) == ("running", 1)
    assert f"threaded {job.id} did not end in time" in worker.said()


@on_sqlite
def test_a_second_sigterm_ends_the_grace(store: SyncDibs, start: Start, tmp_path: Path) -> None:
    file = write_jobs(tmp_path, lease=60)
    [job] = store.enqueue(NewJob("quick", {"seconds": 15}))
    worker = start("--grace", "30s")
    look(lambda: read_record(file).runs())

    worker.send(signal.SIGTERM)
    time.sleep(0.3)
    assert worker.is_running
    worker.send(signal.SIGTERM)

    assert worker.ended(10) == 0
    back = store.get(job.id)
    assert (back.state, back.attempts) == ("ready", 0)


@on_sqlite
def test_the_last_lines_name_what_was_given_back_and_count_it_apart(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path, lease=60)
    short, long = store.enqueue(NewJob("quick"), NewJob("quick", {"seconds": 15}))
    worker = start("--grace", "0.3s")
    look(lambda: len(read_record(file).runs()) == 2 and store.get(short.id).state == "succeeded")

    worker.send(signal.SIGTERM)

    assert worker.ended(10) == 0
    given_back = [line for line in worker.said().splitlines() if line.endswith("released")]
    assert len(given_back) == 1
    assert str(long.id) in given_back[0]
    assert ": 1 settled, 1 released, 0 retried, 0 failed, 0 lost" in worker.said()


# -- SIGKILL ------------------------------------------------------------------------------------


@shared_engines
def test_workers_that_are_killed_again_and_again_lose_and_double_nothing(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    _kill_again_and_again(store, start, write_jobs(tmp_path, lease=LEASE), jobs=60, kills=3, every=0.3)


@pytest.mark.long
@shared_engines
def test_workers_that_are_killed_for_half_a_minute_lose_and_double_nothing(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    _kill_again_and_again(store, start, write_jobs(tmp_path, lease=LEASE), jobs=20_000, kills=30, every=0.5)


def _kill_again_and_again(
    store: SyncDibs, start: Start, file: Path, *, jobs: int, kills: int, every: float
) -> None:
    """Kill one of two workers after another, each when the one started in place of the last has begun.

    However long a process takes to start, there is work until the last kill: jobs are added as they get few.
    """
    places, each, few = ("3", 0.1, 30) if jobs < 1000 else ("40", 0.15, 300)
    enough = min(kills, 5)
    stocked = _stock(store, jobs, each)

    def at_work() -> bool:
        nonlocal stocked
        if store.counts()["ready"] < few:
            stocked += _stock(store, few, each)
        return _all_at_work(file, alive)

    alive, deaths = [start("--concurrency", places) for _ in range(2)], {}
    look(at_work, seconds=30)
    while len(deaths) < kills or (_cut_off(file, deaths) < enough and len(deaths) < 4 * kills):
        time.sleep(every)
        victim = alive.pop(0)
        deaths[victim.pid] = victim.kill()
        alive.append(start("--concurrency", places))
        look(at_work, seconds=30)
    look(lambda: store.counts()["succeeded"] == stocked, seconds=120)

    record = read_record(file)
    record.close(deaths)
    waits = record.recoveries(deaths)
    assert len(waits) >= enough
    assert len(record.by_job) == stocked
    assert record.overlaps() == []
    assert max(waits) <= LEASE + 1 + LOAD_SLACK, sorted(waits)[-10:]
    assert all("Traceback" not in worker.said() for worker in alive)


def _cut_off(file: Path, deaths: dict[int, float]) -> int:
    """Return how many runs a kill has ended; on a busy machine a victim may just be between two jobs."""
    return sum(run.pid in deaths for run in read_record(file).open())


def _stock(store: SyncDibs, jobs: int, seconds: float) -> int:
    for batch in range(0, jobs, 1000):
        size = min(1000, jobs - batch)
        store.enqueue(*(NewJob("quick", {"seconds": seconds}, max_attempts=50) for _ in range(size)))
    return jobs


def _all_at_work(file: Path, workers: list[Process]) -> bool:
    return {worker.pid for worker in workers} <= {run.pid for run in read_record(file).runs()}


# -- SIGSTOP ------------------------------------------------------------------------------------


@shared_engines
def test_a_zombie_changes_nothing_logs_it_once_and_continues_to_work(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path, lease=LEASE)
    [job] = store.enqueue(NewJob("first_time_long", {"seconds": 30}, max_attempts=5))
    zombie = start("--concurrency", "1", name="zombie")
    look(lambda: read_record(file).runs())
    zombie.freeze()
    other = start("--concurrency", "1", name="other")
    done = store.wait(job.id, timeout=30)
    other.send(signal.SIGTERM)
    assert other.ended() == 0

    zombie.send(signal.SIGCONT)
    [later] = store.enqueue(NewJob("quick"))
    later = store.wait(later.id, timeout=30)

    assert store.get(job.id) == done
    assert (done.state, done.attempts) == ("succeeded", 2)
    assert [error.message for error in done.errors] == ["worker died"]
    assert later.state == "succeeded"
    assert {run.pid for run in read_record(file).by_job[str(later.id)]} == {zombie.pid}
    lines = [line for line in zombie.said().splitlines() if str(job.id) in line]
    assert len(lines) == 1, zombie.said()
    assert "lost" in lines[0]
    assert "Traceback" not in zombie.said()


# -- A server that goes away --------------------------------------------------------------------


def test_workers_carry_on_when_a_killed_postgresql_is_back(
    own_postgresql: PostgreSQL, tmp_path: Path
) -> None:
    _kill_the_server(own_postgresql, tmp_path, jobs=300, away=1)


def test_workers_carry_on_when_a_killed_postgresql_is_back_behind_a_pooler(
    own_postgresql: PostgreSQL, tmp_path: Path
) -> None:
    # By default PgBouncer waits 15 s from one try to reach its server to the next.
    with PgBouncer(own_postgresql, server_login_retry=1) as pooler:
        _kill_the_server(own_postgresql, tmp_path, jobs=300, away=1, pooler=pooler)


def test_workers_carry_on_when_a_killed_pooler_is_back(own_postgresql: PostgreSQL, tmp_path: Path) -> None:
    with PgBouncer(own_postgresql) as pooler:
        _kill_the_server(own_postgresql, tmp_path, jobs=300, away=1, pooler=pooler, killed=pooler)


def test_workers_carry_on_when_a_killed_mariadb_is_back(own_mariadb: MariaDB, tmp_path: Path) -> None:
    _kill_the_server(own_mariadb, tmp_path, jobs=300, away=1)


@pytest.mark.long
def test_workers_carry_on_when_mariadb_was_away_for_long(own_mariadb: MariaDB, tmp_path: Path) -> None:
    _kill_the_server(own_mariadb, tmp_path, jobs=600, away=25)


@pytest.mark.long
def test_workers_carry_on_when_postgresql_was_away_for_long(
    own_postgresql: PostgreSQL, tmp_path: Path
) -> None:
    _kill_the_server(own_postgresql, tmp_path, jobs=600, away=25)


def _kill_the_server(
    server: PostgreSQL | MariaDB,
    folder: Path,
    *,
    jobs: int,
    away: float,
    pooler: PgBouncer | None = None,
    killed: Server | None = None,
) -> None:
    url = server.create_database("work")
    url = url if pooler is None else pooler.url("work")
    killed = killed or server
    store = Dibs(url).sync
    store.migrate()
    file = write_jobs(folder, lease=LEASE)
    ids = [job.id for job in store.enqueue(*(NewJob("quick", {"seconds": 0.1}) for _ in range(jobs)))]
    with processes(folder, url) as start:
        workers = [start("--concurrency", "4"), start("--concurrency", "4")]
        look(lambda: len(read_record(file).runs()) > jobs / 10)
        killed.kill()
        time.sleep(away)
        before = len(read_record(file).runs())
        killed.start()
        back = boot_time()
        look(lambda: len(read_record(file).runs()) > before + 20)
        look(lambda: store.counts()["succeeded"] == jobs, seconds=60)

        assert all(worker.is_running for worker in workers)
        record = read_record(file)
        assert before < jobs
        assert set(record.by_job) == {str(id) for id in ids}
        assert min(run.began for run in record.runs() if run.began > back) - back <= 5
        assert record.open() == []
        assert record.overlaps() == []
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.ended() for worker in workers] == [0, 0]
        assert all("Traceback" not in worker.said() for worker in workers), workers[0].said()[-3000:]
    store.close()


# -- Several processes --------------------------------------------------------------------------


@on_sqlite
def test_a_killed_child_is_replaced_and_sigterm_is_passed_on(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path, lease=LEASE)
    supervisor = start("--processes", "2")
    first = look(lambda: len(supervisor.children) == 2 and supervisor.children)
    look(lambda: len(store.workers()) == 2)

    os.kill(first[0], signal.SIGKILL)
    second = look(lambda: len(set(supervisor.children) - set(first)) == 1 and supervisor.children)
    look(lambda: len(store.workers()) == 3)  # the dead one is still on the list, its successor is up
    store.enqueue(*(NewJob("quick", {"seconds": 0.1}) for _ in range(100)))
    look(lambda: {run.pid for run in read_record(file).runs()} == set(second))
    supervisor.send(signal.SIGTERM)

    assert supervisor.ended(8) == 0
    assert first[1] in second
    assert all(not _exists(pid) for pid in [*first, *second])
    assert store.counts()["running"] == 0
    assert store.counts()["succeeded"] > 0


@on_sqlite
def test_sigterm_right_after_the_death_of_a_child_ends_all_processes(start: Start, tmp_path: Path) -> None:
    write_jobs(tmp_path)
    supervisor = start("--processes", "2")
    children = look(lambda: len(supervisor.children) == 2 and supervisor.children)
    look(lambda: all(_handles_sigterm(pid) for pid in children))

    os.kill(children[0], signal.SIGKILL)
    look(lambda: "starting another" in supervisor.said())
    supervisor.send(signal.SIGTERM)

    assert supervisor.ended(6) == 0
    assert not _exists(children[1])


INTERRUPTS = """
import asyncio
from dibs import Dibs

app = Dibs()

@app.job(max_attempts=1)
async def interrupted(within: bool) -> None:
    if within:
        await asyncio.create_task(raises())
    await raises()

async def raises() -> None:
    await asyncio.sleep(0.1)
    raise KeyboardInterrupt

@app.job
async def beside() -> None:
    await asyncio.sleep(1)
"""


@on_sqlite
def test_an_interrupt_that_a_handler_raises_is_no_control_c(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(INTERRUPTS)
    neighbour, *jobs = store.enqueue(
        NewJob("beside"), *(NewJob("interrupted", {"within": within}) for within in (False, True))
    )
    worker = start()
    ended = [store.wait(job.id, timeout=20) for job in jobs]
    unharmed = store.wait(neighbour.id, timeout=20)

    worker.send(signal.SIGINT)

    assert worker.ended() == 0
    assert [(job.state, job.errors[0].type) for job in ended] == [("failed", "KeyboardInterrupt")] * 2
    assert (unharmed.state, unharmed.attempts) == ("succeeded", 1)


@on_sqlite
def test_control_c_leaves_the_handlers_their_grace(store: SyncDibs, start: Start, tmp_path: Path) -> None:
    file = write_jobs(tmp_path, lease=60)
    jobs = store.enqueue(*(NewJob("quick", {"seconds": 1.5}) for _ in range(2)))
    supervisor = start("--processes", "2", "--concurrency", "1", group=True)
    look(lambda: len(read_record(file).runs()) == 2)

    os.killpg(supervisor.pid, signal.SIGINT)  # as a terminal does: to the whole group

    assert supervisor.ended(6) == 0
    assert [store.get(job.id).state for job in jobs] == ["succeeded", "succeeded"]


@on_sqlite
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_manager_that_signals_every_process_leaves_the_handlers_their_grace(
    store: SyncDibs, start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    file = write_jobs(tmp_path, lease=60)
    jobs = store.enqueue(*(NewJob("quick", {"seconds": 1.5}) for _ in range(2)))
    supervisor = start("--processes", "2", "--concurrency", "1")
    look(lambda: len(read_record(file).runs()) == 2)

    for pid in [*supervisor.children, supervisor.pid]:  # as systemd does, unless its KillMode says otherwise
        os.kill(pid, number)

    assert supervisor.ended(6) == 0
    assert [store.get(job.id).state for job in jobs] == ["succeeded", "succeeded"]


@on_sqlite
def test_processes_signalled_by_their_supervisor_first_keep_their_grace_too(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    """Signal one of them late, as a busy machine may."""
    file = write_jobs(tmp_path, lease=60)
    [job] = store.enqueue(NewJob("quick", {"seconds": 3}))
    supervisor = start("--processes", "2")
    look(lambda: len(read_record(file).runs()) == 1 and len(store.workers()) == 2)

    supervisor.send(signal.SIGINT)
    look(lambda: "stopped after" in supervisor.said())  # the one that had nothing to do
    os.kill(read_record(file).runs()[0].pid, signal.SIGINT)

    assert supervisor.ended(10) == 0
    assert store.get(job.id).state == "succeeded"


@on_sqlite
def test_a_supervisor_that_is_signalled_twice_ends_the_grace(
    store: SyncDibs, start: Start, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path, lease=60)
    [job] = store.enqueue(NewJob("quick", {"seconds": 60}))
    supervisor = start("--processes", "2", "--grace", "60s")
    look(lambda: len(read_record(file).runs()) == 1 and len(store.workers()) == 2)

    supervisor.send(signal.SIGTERM)
    look(lambda: "stopped after" in supervisor.said())  # the one that had nothing to do
    supervisor.send(signal.SIGTERM)

    assert supervisor.ended(6) == 0
    assert (store.get(job.id).state, store.get(job.id).attempts) == ("ready", 0)


BROKEN = {
    "a module that can't be imported": "raise RuntimeError('no such setting')\n",
    "resources that can't be had": (
        "from dibs import Dibs\nfrom contextlib import asynccontextmanager\n"
        "@asynccontextmanager\nasync def lifespan(app):\n    raise RuntimeError('no such setting')\n"
        "    yield\n"
        "app = Dibs(lifespan=lifespan)\n@app.job\nasync def quick(): ...\n"
    ),
}


@on_sqlite
@pytest.mark.parametrize("code", list(BROKEN.values()), ids=list(BROKEN))
def test_processes_that_never_come_up_are_given_up(start: Start, tmp_path: Path, code: str) -> None:
    (tmp_path / "jobs.py").write_text(code)

    supervisor = start("--processes", "2")

    assert supervisor.ended(60) == 1
    said = supervisor.said()
    assert "no worker process came up, 3 times in a row" in said
    assert "starting another" in said
    assert "Traceback" not in said


def test_processes_that_their_store_refuses_are_given_up(postgresql: PostgreSQL, tmp_path: Path) -> None:
    write_jobs(tmp_path, lease=60)

    with processes(tmp_path, postgresql.url("nowhere")) as start:
        supervisor = start("--processes", "2")

        assert supervisor.ended(60) == 1
        said = supervisor.said()
    assert 'database "nowhere" does not exist' in said
    assert "no worker process came up, 3 times in a row" in said


@on_sqlite
def test_a_drain_with_a_broken_app_ends_with_an_error(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(next(iter(BROKEN.values())))

    supervisor = start("--processes", "2", "--until-idle")

    assert supervisor.ended(60) == 1


# -- Idle ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_idle_worker_asks_next_to_nothing(postgresql: PostgreSQL, tmp_path: Path) -> None:
    url = postgresql.create_database("idle")
    store = Dibs(url).sync
    store.migrate()
    with postgresql.connect() as connection:
        connection.execute("alter database idle set log_min_duration_statement = 0")
    file = write_jobs(tmp_path, lease=60)  # the usual one; shorter ones are looked after as often as they end
    with processes(tmp_path, url) as start:
        worker = start()
        store.enqueue(*(NewJob("quick") for _ in range(100)))
        look(lambda: len(read_record(file).runs()) == 100)
        look(lambda: store.counts()["succeeded"] == 100)
        store.close()
        time.sleep(2)

        before = len(_statements(postgresql))
        time.sleep(30)
        asked = _statements(postgresql)[before:]

        assert worker.is_running
        assert before > 5
        assert 1 <= len(asked) <= 0.2 * 30, asked
        assert _resident_megabytes(worker.pid) < 60
    postgresql.drop_database("idle")


def _statements(server: PostgreSQL) -> list[str]:
    """Return what the server logged; transactions in pg_stat_database come up to ten seconds late."""
    lines = server.log.read_text().splitlines()
    return [line for line in lines if " ms  execute " in line or " ms  statement: " in line]


def _resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _handles_sigterm(pid: int) -> bool:
    """Return whether the process has set its own signal handler."""
    [line] = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in each]
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
