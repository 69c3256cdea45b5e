"""The harness itself: servers come back, the proxy breaks what it says, leaks are seen."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.support import servers
from tests.support.leaks import Leaked, check_leaks
from tests.support.proxy import FaultProxy
from tests.support.servers import MissingServer, PostgreSQL, find_binary


@pytest.fixture
def notes(postgresql: PostgreSQL) -> str:
    """The address of a fresh database with a table of notes."""
    return postgresql.fresh_database(postgresql.prepare_template("notes_template", _make_notes))


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[FaultProxy]:
    with FaultProxy(postgresql.port) as proxy:
        yield proxy


def _make_notes(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table notes (text text)")


def _through(proxy: FaultProxy, url: str) -> str:
    return url.replace(f":{proxy.target}/", f":{proxy.port}/")


def _connect(proxy: FaultProxy, url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(_through(proxy, url), autocommit=True, connect_timeout=2)


def _add_note(connection: psycopg.Connection[tuple[object, ...]], text: str) -> None:
    connection.execute("insert into notes values (%s)", [text])


def _notes_in(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [text for (text,) in connection.execute("select text from notes order by text")]


def _wait_until_active(server: PostgreSQL, backend: int) -> None:
    active = "select state = 'active' from pg_stat_activity where pid = %s"
    with server.connect() as connection:
        while connection.execute(active, [backend]).fetchone() != (True,):
            time.sleep(0.01)


def test_a_leaked_thread_is_reported() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-over")

    with pytest.raises(Leaked, match="left-over"), check_leaks(patience=0.05):
        thread.start()

    release.set()
    thread.join()


def test_a_leaked_socket_is_reported() -> None:
    ends: list[socket.socket] = []

    with pytest.raises(Leaked, match="open socket"), check_leaks(patience=0.05):
        ends.extend(socket.socketpair())

    for end in ends:
        end.close()


def test_a_leaked_task_is_reported() -> None:
    loop = asyncio.new_event_loop()

    with pytest.raises(Leaked, match="pending task"), check_leaks(patience=0.05):
        task = loop.create_task(asyncio.sleep(3600), name="left-over")

    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_a_thread_that_is_just_ending_is_no_leak() -> None:
    with check_leaks():
        threading.Thread(target=time.sleep, args=(0.1,)).start()


def test_a_fresh_database_is_a_copy_of_its_template_and_of_no_other(
    postgresql: PostgreSQL, notes: str
) -> None:
    with psycopg.connect(notes) as connection:
        _add_note(connection, "only here")

    other = postgresql.fresh_database("notes_template")

    assert _notes_in(notes) == ["only here"]
    assert _notes_in(other) == []


def test_a_cut_after_the_reply_leaves_the_work_done_and_the_client_unaware(
    proxy: FaultProxy, notes: str
) -> None:
    with _connect(proxy, notes) as connection:
        proxy.cut_after_next()

        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, "done")

    assert _notes_in(notes) == ["done"]
    assert proxy.fired == 1


def test_a_cut_before_the_pattern_leaves_the_work_undone(proxy: FaultProxy, notes: str) -> None:
    with _connect(proxy, notes) as connection:
        proxy.cut_before(b"insert into notes")

        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, "never arrives")

    assert _notes_in(notes) == []
    assert proxy.fired == 1


def test_a_cut_after_the_pattern_spares_what_comes_before_it(proxy: FaultProxy, notes: str) -> None:
    with _connect(proxy, notes) as connection:
        proxy.cut_after(b"the second")
        _add_note(connection, "the first")

        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, "the second")

    assert _notes_in(notes) == ["the first", "the second"]
    assert proxy.fired == 1


def test_a_statement_that_asyncpg_prepared_earlier_is_cut_after_its_commit(
    proxy: FaultProxy, notes: str
) -> None:
    async def add_two() -> None:
        connection = await asyncpg.connect(_through(proxy, notes))
        insert = await connection.prepare("insert into notes values ($1)")
        await insert.fetch("the first")
        proxy.cut_after_next()
        with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
            await insert.fetch("the second")
        connection.terminate()

    asyncio.run(add_two())

    assert _notes_in(notes) == ["the first", "the second"]
    assert proxy.fired == 1


def test_a_large_statement_in_many_pieces_is_cut_only_after_all_of_it(proxy: FaultProxy, notes: str) -> None:
    large = "x" * 3_000_000
    with _connect(proxy, notes) as connection:
        proxy.cut_after_next()

        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, large)

    assert _notes_in(notes) == [large]


def test_a_new_connection_does_not_use_up_the_fault_of_an_established_one(
    proxy: FaultProxy, notes: str
) -> None:
    proxy.cut_after_next()

    _connect(proxy, notes).close()

    assert proxy.fired == 0


def test_a_proxy_that_cut_and_refused_serves_again_once_healed(proxy: FaultProxy, notes: str) -> None:
    with _connect(proxy, notes) as connection:
        proxy.refuse()
        _add_note(connection, "refusing spares who is connected")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, "cut")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        _connect(proxy, notes)

    proxy.heal()

    with _connect(proxy, notes) as connection:
        _add_note(connection, "healed")
    assert _notes_in(notes) == ["healed", "refusing spares who is connected"]


def test_a_blackholed_connection_hears_nothing_and_ends_when_healed(proxy: FaultProxy, notes: str) -> None:
    errors: list[psycopg.Error] = []

    def add_note() -> None:
        try:
            _add_note(connection, "swallowed")
        except psycopg.Error as error:
            errors.append(error)

    with _connect(proxy, notes) as connection:
        proxy.blackhole()
        writer = threading.Thread(target=add_note)
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            _connect(proxy, notes)

        proxy.heal()
        writer.join()

    assert [type(error) for error in errors] == [psycopg.OperationalError]
    assert _notes_in(notes) == []


def test_delayed_replies_come_late(proxy: FaultProxy, notes: str) -> None:
    with _connect(proxy, notes) as connection:
        proxy.delay(0.2)
        began = time.monotonic()

        _add_note(connection, "late")

        assert time.monotonic() - began >= 0.2


def test_a_killed_postgresql_comes_back_with_its_data(own_postgresql: PostgreSQL) -> None:
    url = own_postgresql.create_database("kept")
    _make_notes(url)
    with psycopg.connect(url, autocommit=True) as connection:
        _add_note(connection, "durable")

        own_postgresql.kill()
        with pytest.raises(psycopg.OperationalError):
            _add_note(connection, "nobody there")
        own_postgresql.start()

    assert _notes_in(url) == ["durable"]


def test_killing_postgresql_ends_a_backend_in_the_middle_of_its_work(
    own_postgresql: PostgreSQL,
) -> None:
    def count_for_hours() -> None:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select count(*) from generate_series(1, 1e12)")

    with own_postgresql.connect() as connection:
        backend = connection.info.backend_pid
        busy = threading.Thread(target=count_for_hours, daemon=True)
        busy.start()
        _wait_until_active(own_postgresql, backend)

        own_postgresql.kill()
        busy.join(10)

    assert servers.wait_until_gone([backend], seconds=0)


def test_a_server_started_from_a_thread_outlives_the_thread(own_postgresql: PostgreSQL) -> None:
    thread = threading.Thread(target=own_postgresql.restart)

    thread.start()
    thread.join()
    time.sleep(0.2)

    assert own_postgresql.running


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "from tests.support.servers import Redis; s = Redis(); s.start(); print(s.pid, flush=True); input()"
    )
    places = {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | places,
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())

        owner.send_signal(signal.SIGKILL)

    assert servers.wait_until_gone([pid])


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(MissingServer, match=r"no-such-server.*no-such-package"):
        find_binary("no-such-server", "no-such-package")


FUSSY_INSTALLER = """#!/bin/sh
cd "$(dirname "$0")"
mkdir locked || { echo "somebody else installs" >&2; exit 100; }
sleep 0.2
echo "#!/bin/sh" > odd-server
chmod +x odd-server
rmdir locked
"""


def test_a_program_that_several_miss_at_once_is_installed_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installer = tmp_path / "apt-get"
    installer.write_text(FUSSY_INSTALLER)
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: find_binary("odd-server", "odd-package"), range(4)))

    assert found == {str(tmp_path / "odd-server")}


def test_who_can_not_install_a_program_hears_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installer = tmp_path / "apt-get"
    installer.write_text("#!/bin/sh\necho no disk left >&2\nexit 100\n")
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with pytest.raises(MissingServer, match="no disk left"):
        find_binary("no-such-server", "another-package")


def test_a_run_without_mysql_goes_on_and_ends_by_saying_so(tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'there is no network' >&2; exit 100\n")
    apt.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    chosen = ["tests/conformance/test_find.py", "-k", "(mysql or memory) and found_by_state"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=Path(__file__).parents[2],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )

    if "MySQL " in run.stdout.partition("servers: ")[2].partition("\n")[0]:
        pytest.skip("this machine has a MySQL of its own")
    assert run.returncode == 0
    assert "passed" in run.stdout
    last = run.stdout.strip().splitlines()[-1]
    assert last.startswith("not tested: MySQL (")
    assert "there is no network" in last
