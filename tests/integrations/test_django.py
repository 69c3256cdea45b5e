"""Django: jobs and tasks in its database, in its transactions, made and unmade by its migrations."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from django_tasks import TaskResultStatus, default_task_backend, task_backends
from django_tasks.exceptions import (
    InvalidTaskError,
    TaskResultDoesNotExist,
    TaskResultMismatch,
)
from django_tasks.signals import task_enqueued, task_finished, task_started

from dibs import BadRequest, Context, Dibs, NewJob, UnsupportedConnection, Worker
from dibs.engines.sql.blocks import schema_version
from dibs.integrations.django import app, store
from dibs.integrations.django.backend import DibsBackend, dibs_backends
from dibs.integrations.django.management.commands import dibs as command
from dibs.integrations.django.store import server_url
from dibs.settings import read_settings
from dibs.testing.sync import run_pending
from tests.support import django_project, django_shop, pythons
from tests.support.guides import write_project
from tests.support.internals import core_of
from tests.support.raw_sql import bare_store
from tests.support.servers import MissingServer

NEWEST = schema_version("postgresql")


@contextmanager
def _django_at(url: str) -> Iterator[None]:
    django_shop.ran.clear()
    with django_project.pointed_at(url):
        yield


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Point Django's database at one that is not migrated yet."""
    url = bare_store(request.param, request, tmp_path)
    with _django_at(url):
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def project(url: str) -> Iterator[str]:
    """Point Django's database at one with the tables of dibs and no jobs."""
    with _django_at(url):
        yield url


def work() -> None:
    async def drain() -> None:
        await Worker(app).run(until_idle=True)
        await app.close()

    dibs_backends()
    asyncio.run(drain())


# -- Transactions -------------------------------------------------------------------------------


def test_a_job_enqueued_in_atomic_appears_with_its_commit(project: str) -> None:
    with transaction.atomic():
        [job] = app.sync.enqueue(NewJob("work"), within=connection)
        assert app.sync.get(job.id) is None

    assert app.sync.get(job.id).state == "ready"


def test_a_job_enqueued_in_an_atomic_that_is_rolled_back_leaves_nothing(project: str) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        app.sync.enqueue(NewJob("work"), within=connection)
        1 / 0  # noqa: B018

    assert sum(app.sync.counts().values()) == 0


def test_the_projects_app_enqueues_in_the_atomic_that_is_open(project: str) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        app.sync.enqueue(NewJob("never"))
        1 / 0  # noqa: B018
    with transaction.atomic():
        [job] = app.sync.enqueue(NewJob("work"))
        assert app.sync.get(job.id) is None
    [at_once] = app.sync.enqueue(NewJob("work"))

    assert {one.id for one in app.sync.find()} == {job.id, at_once.id}


def test_so_does_a_pipeline_of_the_projects_app(project: str) -> None:
    pipeline = app.pipeline("nightly")
    pipeline.add(NewJob("work"))

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        pipeline.sync.enqueue()
        1 / 0  # noqa: B018

    assert app.sync.find() == []


def test_another_app_is_refused_because_of_djangos_open_transaction(url: str, project: str) -> None:
    if not url.startswith("sqlite"):
        pytest.skip("elsewhere nobody waits for whole transactions")
    with Dibs(url).sync as own:
        own.open()
        began = time.monotonic()
        with transaction.atomic():
            app.sync.enqueue(NewJob("work"))
            with pytest.raises(UnsupportedConnection, match=r"within=connection"):
                own.enqueue(NewJob("work"))

        assert time.monotonic() - began < 5
        [job] = own.enqueue(NewJob("work"))
        assert len(own.find()) == 2
        with transaction.atomic():  # it has written nothing yet, and so blocks nothing
            own.cancel(job.id)


def test_a_savepoint_that_is_rolled_back_takes_its_job_along(project: str) -> None:
    with transaction.atomic():
        [kept] = app.sync.enqueue(NewJob("work"), within=connections["default"])
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            app.sync.enqueue(NewJob("work"), within=connections["default"])
            1 / 0  # noqa: B018

    assert [job.id for job in app.sync.find()] == [kept.id]


def test_a_connection_outside_of_atomic_is_refused(project: str) -> None:
    with pytest.raises(UnsupportedConnection, match="no transaction is open on this Django connection"):
        app.sync.enqueue(NewJob("work"), within=connection)


def test_django_sees_the_statements_that_go_through_its_connection(project: str) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        app.sync.enqueue(NewJob("work"), within=connection)

    assert any("dibs_jobs" in query["sql"] for query in captured.captured_queries)


def test_a_broken_atomic_block_is_refused_by_django(project: str) -> None:
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        transaction.set_rollback(True)
        app.sync.enqueue(NewJob("work"), within=connection)


def test_the_awaited_app_says_where_a_django_connection_belongs(project: str) -> None:
    async def enqueue() -> None:
        async with app:
            await app.enqueue(NewJob("work"), within=given)

    given = connections["default"]
    with pytest.raises(UnsupportedConnection, match=r"belongs to app\.sync"):
        asyncio.run(enqueue())


@pytest.mark.parametrize("committed", [True, False])
def test_a_handler_finishes_its_job_in_atomic_or_not_at_all(project: str, committed: bool) -> None:
    own = Dibs(project)

    @own.job(max_attempts=1)
    def pay(ctx: Context) -> None:
        with transaction.atomic():
            ctx.sync.complete("paid", within=connection)
            transaction.set_rollback(not committed)

    job = own.sync.run_job(pay.sync.enqueue().id)

    assert (job.state, job.result) == (("succeeded", "paid") if committed else ("failed", None))
    own.sync.close()


def test_times_are_right_in_a_project_without_time_zones(project: str) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        django_project.point_django_at(project)
        with transaction.atomic():
            [job] = app.sync.enqueue(NewJob("work", delay=60), within=connection)
        result = django_shop.note.using(run_after=datetime.now() + timedelta(hours=10)).enqueue()

        found = app.sync.get(job.id)
        assert (found.enqueued_at, found.run_at) == (job.enqueued_at, job.run_at)
        assert app.sync.get(result.id).state == "scheduled"


# -- Tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "mysql"])
def test_a_task_enqueued_in_a_rolled_back_atomic_leaves_nothing_and_a_committed_one_runs(
    project: str,
) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        django_shop.note.enqueue("never")
        1 / 0  # noqa: B018
    with transaction.atomic():
        result = django_shop.note.enqueue("once", word=2)
        assert sum(app.sync.counts().values()) == 0

    work()

    assert django_shop.ran == [(("once",), {"word": 2})]
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [["once"], {"word": 2}])
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("019a0000-0000-7000-8000-000000000000")


def test_a_new_task_is_described_as_the_interface_wants(project: str) -> None:
    assert isinstance(task_backends["default"], DibsBackend)
    for one in (django_shop.note, django_shop.note_later):
        result = one.enqueue("a") if one is django_shop.note_later else one.enqueue(1, two=3)

        assert result.status == TaskResultStatus.READY
        assert not result.is_finished
        assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
        assert (result.task, result.attempts, result.errors, result.worker_ids) == (one, 0, [], [])
        with pytest.raises(ValueError, match="Task has not finished yet"):
            result.return_value  # noqa: B018
        assert one.get_result(result.id) == result
    assert (result.args, result.kwargs, result.backend) == (["a"], {}, "default")


def test_tasks_are_enqueued_and_read_from_async_code(project: str) -> None:
    async def there_and_back() -> Any:
        async with ThreadSensitiveContext():
            result = await django_shop.note_later.aenqueue(word="async")
            found = await default_task_backend.aget_result(result.id)
            await found.arefresh()
            await sync_to_async(connections.close_all)()
            return result, found

    result, found = asyncio.run(there_and_back())

    assert result == found


def test_a_task_waits_for_the_commit_where_autocommit_is_off(project: str) -> None:
    transaction.set_autocommit(False)
    result = django_shop.note.enqueue()
    assert sum(app.sync.counts().values()) == 0

    transaction.commit()
    transaction.set_autocommit(True)

    assert default_task_backend.get_result(result.id) == result


def test_a_result_is_read_by_the_transaction_that_wrote_it(project: str) -> None:
    with transaction.atomic():
        result = django_shop.note.enqueue()

        assert default_task_backend.get_result(result.id) == result


def test_a_task_that_raises_has_failed_for_good(project: str) -> None:
    result = django_shop.broken.enqueue()

    work()

    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    [error] = result.errors
    assert error.exception_class is ValueError
    assert "this does not work" in error.traceback
    assert error.traceback.startswith("Traceback (most recent call last):")
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


def test_a_task_whose_worker_died_comes_back(project: str) -> None:
    result = django_shop.attempt.enqueue()
    app.sync.claim_job(result.id, worker="gone", lease=0.1)
    _let_pass(1)

    work()

    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 2)
    assert result.worker_ids[0] == "gone"
    assert result.errors[0].exception_class.__name__ == "LeaseLost"


def test_priority_queue_and_time_come_from_the_task(project: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)

    result = django_shop.note_later.using(run_after=later).enqueue()

    job = app.sync.get(result.id)
    assert (job.queue, job.priority, job.state) == ("slow", 7, "scheduled")
    assert abs(job.run_at - later) < timedelta(seconds=1)
    assert job.tags == ["tests.support.django_shop.note_later"]
    assert result.task.get_result(result.id).task.run_after == later


def test_the_kind_of_a_task_is_the_path_of_its_function(project: str) -> None:
    result = django_shop.note.enqueue()
    again = django_shop.note.using(backend="again").enqueue()

    assert app.sync.get(result.id).kind == "tests.support.django_shop.note"
    assert app.sync.get(again.id).kind == "tests.support.django_shop.note@again"
    work()
    assert [task_backends["again"].get_result(again.id).status, len(django_shop.ran)] == ["SUCCESSFUL", 2]


def test_a_worker_imports_a_task_that_it_has_not_heard_of(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from django_tasks import task\n@task()\ndef late():\n    return 'found'\n"
    (tmp_path / "elsewhere_shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    args = {"task": "elsewhere_shop.late", "args": [], "kwargs": {}}
    [job] = app.sync.enqueue(NewJob("elsewhere_shop.late", args))
    [other] = app.sync.enqueue(NewJob("no_such_module.task"))

    work()

    assert (app.sync.get(job.id).result, app.sync.get(other.id).state) == ("found", "ready")


def test_a_task_stored_by_an_earlier_version_runs(project: str) -> None:
    args = {"task": "tests.support.django_shop.note", "args": [1], "kwargs": {}}
    [job] = app.sync.enqueue(NewJob("django_task", args))

    work()

    assert default_task_backend.get_result(str(job.id)).return_value == [[1], {}]


def test_results_of_others_are_not_found(project: str) -> None:
    [job] = app.sync.enqueue(NewJob("something else"))
    result = django_shop.note.enqueue()

    for id in (str(job.id), "not an id", "123"):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["again"].get_result(result.id)
    with pytest.raises(TaskResultMismatch):
        django_shop.broken.get_result(result.id)


def test_what_is_no_json_and_what_is_no_task_is_refused(project: str) -> None:
    for bad in (object(), {1, 2}, datetime.now(UTC)):
        with pytest.raises((TypeError, BadRequest)):
            django_shop.note.enqueue(bad)
    with pytest.raises(InvalidTaskError, match="not valid for backend"):
        django_shop.note.using(queue_name="unheard of")
    with pytest.raises(InvalidTaskError, match="priority"):
        django_shop.note.using(priority=101)

    assert sum(app.sync.counts().values()) == 0


def test_a_task_uses_the_database_and_leaves_no_connection(project: str) -> None:
    result = django_shop.ask_the_database.enqueue()

    work()

    assert django_shop.ask_the_database.get_result(result.id).return_value == 7


def test_tests_run_what_is_pending(project: str) -> None:
    from dibs.integrations.django.worker import app as same

    result = django_shop.note.enqueue("pending")

    ran = run_pending(same)

    assert (same, [str(job.id) for job in ran]) == (app, [result.id])
    assert django_shop.ran == [(("pending",), {})]


def test_signals_tell_of_a_task(project: str) -> None:
    heard: list[str] = []
    hears = {
        name: lambda name=name, task_result=None, **_: heard.append(
            f"{name} {task_result.status} {len(task_result.errors)}"
        )
        for name in ("enqueued", "started", "finished")
    }
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    for name, signal in signals.items():
        signal.connect(hears[name])

    django_shop.note.enqueue()
    work()
    django_shop.broken.enqueue()
    work()

    assert heard == [
        *("enqueued READY 0", "started RUNNING 0", "finished SUCCESSFUL 0"),
        *("enqueued READY 0", "started RUNNING 0", "finished FAILED 1"),
    ]
    for name, signal in signals.items():
        signal.disconnect(hears[name])


def test_a_store_of_its_own_gets_the_task_after_the_commit(project: str, tmp_path: Path) -> None:
    with override_settings(DIBS={"URL": f"sqlite:///{tmp_path}/elsewhere.db"}):
        store.follow()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            django_shop.note.enqueue("never")
            1 / 0  # noqa: B018
        with transaction.atomic():
            result = django_shop.note.enqueue("once")
            assert sum(app.sync.counts().values()) == 0

        assert [str(job.id) for job in app.sync.find()] == [result.id]
        app.sync.close()
    store.follow()


def test_a_setting_that_does_not_exist_is_named() -> None:
    with (
        override_settings(DIBS={"FOO": 1}),
        pytest.raises(ImproperlyConfigured, match=r"DIBS\['FOO'\].*DATABASE, URL, .*STALE_AFTER"),
    ):
        store._make()


def _url(vendor: str, **options: Any) -> str:
    about = {"NAME": "shop", "HOST": "db.example", "USER": "u", "PASSWORD": "p", "OPTIONS": options}
    return server_url(vendor, about)


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ({"ssl": {"ca": "/a.pem"}}, "ssl_ca=%2Fa.pem"),
        (
            {"ssl": {"ca": "/a", "cert": "/b", "key": "/c", "check_hostname": True}},
            "ssl_ca=%2Fa&ssl_cert=%2Fb&ssl_key=%2Fc",
        ),
        ({"ssl_mode": "VERIFY_IDENTITY", "ssl": {"ca": "/a.pem"}}, "ssl_ca=%2Fa.pem"),
        ({"ssl_mode": "VERIFY_IDENTITY"}, "ssl=verify"),
        ({"ssl_ca": "/a.pem", "ssl_verify_cert": True}, "ssl_ca=%2Fa.pem"),
        ({"ssl_verify_identity": True}, "ssl=verify"),
        ({"ssl_disabled": True}, ""),
        ({"ssl_mode": "PREFERRED", "charset": "utf8mb4", "init_command": "set @a = 1"}, ""),
        ({"unix_socket": "/run/mysqld.sock"}, "unix_socket=%2Frun%2Fmysqld.sock"),
    ],
)
def test_tls_to_mysql_is_the_same_for_django_and_the_worker(options: dict[str, Any], query: str) -> None:
    url = _url("mysql", **options)

    assert url == "mysql://u:p@db.example/shop" + (f"?{query}" if query else "")


def test_tls_to_postgresql_is_the_same_for_django_and_the_worker() -> None:
    tls = {"sslmode": "verify-full", "sslrootcert": "/a", "sslcrl": "/b", "passfile": "/c"}
    tls |= {"ssl_min_protocol_version": "TLSv1.3", "sslpassword": "x"}

    url = _url("postgresql", **tls, isolation_level=3, pool=True, connect_timeout=2)

    assert dict(parse_qsl(urlsplit(url).query)) == tls


@pytest.mark.parametrize(
    ("vendor", "option", "value"),
    [
        ("mysql", "ssl_mode", "REQUIRED"),
        ("mysql", "ssl", {"ca": "/a.pem", "capath": "/certs"}),
        ("mysql", "ssl", True),
        ("mysql", "ssl_cipher", "AES"),
        ("mysql", "tls_version", "TLSv1.3"),
        ("mysql", "read_default_file", "/etc/my.cnf"),
        ("mysql", "auth_plugin", "x"),
        ("postgresql", "channel_binding", "require"),
        ("postgresql", "service", "shop"),
        ("postgresql", "gssencmode", "require"),
        ("postgresql", "require_auth", "scram-sha-256"),
        ("postgresql", "sslcompression", "0"),
    ],
)
def test_an_option_for_security_that_the_worker_would_lack_is_refused(
    vendor: str, option: str, value: Any
) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"OPTIONS\['{option}.*DIBS\['URL'\]"):
        _url(vendor, **{option: value})


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"no 'speed'; there are max_attempts"):
        DibsBackend("default", {"OPTIONS": {"speed": 1}})


def test_jobs_in_memory_are_warned_of() -> None:
    django_project.point_django_at("sqlite:///:memory:")

    [warning] = [one for one in task_backends["default"].check() if isinstance(one, checks.CheckMessage)]

    assert warning.id == "dibs.W001"


# -- Migrations ---------------------------------------------------------------------------------


def test_migrate_makes_the_tables_and_takes_them_away(bare: str) -> None:
    for _ in range(2):
        call_command("migrate", "dibs", verbosity=0)
        assert (app.sync.schema_version(), app.sync.check_schema()) == (NEWEST, [])
        call_command("migrate", "dibs", "0001", verbosity=0)
        assert app.sync.schema_version() == 1
        call_command("migrate", "dibs", "zero", verbosity=0)
        assert app.sync.schema_version() == 0


def test_migrate_leaves_alone_what_dibs_has_migrated(bare: str) -> None:
    other = Dibs(bare).sync
    other.migrate()
    [job] = other.enqueue(NewJob("work"))
    other.close()

    call_command("migrate", verbosity=0)

    assert app.sync.get(job.id) is not None


def test_jobs_follow_django_to_the_database_of_a_test_run(bare: str, tmp_path: Path) -> None:
    django_project.point_django_at(f"sqlite:///{tmp_path}/test_run.db")

    call_command("migrate", verbosity=0)

    with transaction.atomic():
        [job] = app.sync.enqueue(NewJob("work"), within=connection)
    assert app.sync.get(job.id).state == "ready"
    assert (tmp_path / "test_run.db").exists()


def test_every_version_of_the_tables_has_a_migration() -> None:
    folder = Path(store.__file__).parent / "migrations"

    files = sorted(file.name for file in folder.glob("0*.py"))

    assert files == [f"{version:04}_version.py" for version in range(1, NEWEST + 1)]


def test_the_sql_of_a_migration_can_be_printed(bare: str) -> None:
    printed = io.StringIO()

    call_command("sqlmigrate", "dibs", "0003", stdout=printed)

    assert "dibs_schedules" in printed.getvalue()
    assert "dibs_workers" not in printed.getvalue()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_there_is_nothing_for_makemigrations_to_do(project: str) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def _let_pass(seconds: int) -> None:
    from tests.support.internals import age

    age(app, seconds)


# -- The guide ----------------------------------------------------------------------------------

MANAGE = "import sys; from django.core.management import execute_from_command_line as run; run(sys.argv)"
ORDERS = """
import django; django.setup()
from django.core.management import CommandError, call_command
from shop.orders import place_order
from shop.stock import take_from_stock

call_command("migrate", verbosity=0)
place_order(1)
try:
    place_order(-1)
except ValueError as error:
    print(error)
take_from_stock("pens")
take_from_stock("pens")
from dibs.integrations.django.backend import TASKS_MODULE
print(TASKS_MODULE)
"""
ADMIN = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client

client = Client(headers={"host": "localhost"})
client.force_login(User.objects.create_superuser("ann"))
page = client.get("/admin/dibs/job/")
print(page.status_code, b"count_stock" in page.content, b"shop.tasks.send_receipt" in page.content)
"""
SOURCE = Path(store.__file__).parents[3]


@pytest.fixture(params=["django-tasks", "django-6.0"])
def python(request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with the tasks of the package, or with those of Django itself."""
    if request.param == "django-tasks":
        return Path(sys.executable)
    try:
        return pythons.django_six()
    except MissingServer as error:
        pytest.skip(str(error))


def test_the_guide_does_what_it_says(
    python: Path, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    names = write_project("django.md", tmp_path)
    own_tasks = python != Path(sys.executable)
    if own_tasks:
        tasks, settings = tmp_path / "shop/tasks.py", tmp_path / "settings.py"
        tasks.write_text(tasks.read_text().replace("from django_tasks", "from django.tasks"))
        settings.write_text(settings.read_text().replace('"django_tasks",', ""))
        about = Path(str(distribution("dibs")._path))  # type: ignore[attr-defined]
        shutil.copytree(about, tmp_path / about.name)  # what an installed dibs says of itself
    url = bare_store(engine, request, tmp_path)
    (tmp_path / "manage.py").write_text(MANAGE)
    databases = {"default": django_project.database(url)}
    (tmp_path / "here.py").write_text(f"from settings import *\nDATABASES = {databases!r}\n")

    def run(*words: str) -> str:
        path = os.pathsep.join(filter(None, [str(tmp_path), str(SOURCE), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "here", "PYTHONPATH": path}
        done = subprocess.run(
            [str(python), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run("-c", ORDERS)
    processes = ["--processes", "2"] if engine == "sqlite" else []
    run("manage.py", "dibs", "work", "--until-idle", "--settings=here", *processes)
    page = run("-c", ADMIN)

    assert "settings.py" in names
    assert said == f"no such order\n{'django.tasks' if own_tasks else 'django_tasks'}\n"
    assert page == "200 True True\n"
    with Dibs(url).sync as store:
        assert sorted((job.kind, job.result) for job in store.find()) == [
            ("count_stock", "counted pens"),
            ("shop.tasks.send_receipt", "receipt for order 1"),
        ]


def test_the_command_line_is_that_of_dibs_on_the_projects_store(project: str) -> None:
    django_shop.note.enqueue()
    printed = io.StringIO()

    call_command("dibs", "jobs", "list", stdout=printed)

    assert "tests.support.django_shop.note" in printed.getvalue()
    with pytest.raises(CommandError, match="UUID"):
        call_command("dibs", "why", "nonsense")


def test_options_of_the_command_line_pass_through_call_command(project: str) -> None:
    django_shop.note.enqueue()
    django_shop.note.enqueue()
    printed = io.StringIO()

    call_command("dibs", "jobs", "list", "--limit", "1", "--json", stdout=printed)

    assert len(json.loads(printed.getvalue())) == 1


def test_the_command_line_has_every_setting_of_the_project(project: str) -> None:
    with override_settings(DIBS={"STALE_AFTER": 77, "KEEP_FOR": timedelta(hours=1), "PREFIX": "shop"}):
        told = command._environment(core_of(store._make()).settings)

    assert (told["DIBS_STALE_AFTER"], told["DIBS_KEEP_FOR"], told["DIBS_PREFIX"]) == (
        "77.0",
        "3600.0",
        "shop",
    )
    assert read_settings({}, told).stale_after == 77
    assert read_settings({}, told).keep_for == timedelta(hours=1)


def test_options_that_are_djangos_are_not_passed_on() -> None:
    words = ["--settings", "here", "jobs", "list", "--pythonpath=src", "--settings=here", "--limit", "1"]

    assert command._for_dibs(words) == ["jobs", "list", "--limit", "1"]
