"""PostgreSQL, PgBouncer and MariaDB."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pymysql
from psycopg import sql

from tests.support.servers.processes import (
    HOST,
    children,
    find_binary,
    guarded,
    kill_all,
    new_folder,
    run_command,
)
from tests.support.servers.server import Server


class PostgreSQL(Server):
    """A PostgreSQL that keeps its promises (fsync on) and hands out fresh databases."""

    name = "PostgreSQL"
    account = "postgres"
    binary = "postgres"
    package = "postgresql"
    stop_signal = signal.SIGINT
    death_signal = "QUIT"

    def __init__(self, settings: Mapping[str, str | int] | None = None) -> None:
        self._settings = dict(settings or {})
        self._templates: set[str] = set()
        self._numbers = itertools.count(1)
        super().__init__()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        self._do(f"create database {{}} template {{}} {self._strategy}", name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database and end whoever is still connected to it."""
        self._do("drop database if exists {} with (force)", name)

    def prepare_template(self, name: str, prepare: Callable[[str], object]) -> str:
        """Create the database and let `prepare(url)` fill it, once per server; answers its name."""
        if name not in self._templates:
            prepare(self.create_database(name))
            self._templates.add(name)
        return name

    def fresh_database(self, template: str = "template1") -> str:
        """The address of a new database that is a copy of the template."""
        return self.create_database(f"fresh_{next(self._numbers)}", template=template)

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit; the caller closes it."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=2)

    def kill(self) -> None:
        """SIGKILL the server and all its backends, and wait until none of them is left."""
        if self._process is not None and self.running:
            # Stopped first: a postmaster that sees one child killed would start new ones.
            self._process.send_signal(signal.SIGSTOP)
            family = children(self.pid)
            super().kill()
            kill_all(family)

    def remove(self) -> None:
        self.stop()
        self._free_shared_memory()
        super().remove()

    def _prepare(self) -> None:
        self._data = self.folder / "data"
        subprocess.run(["cp", "-a", "--reflink=auto", _pristine_cluster(), self._data], check=True)
        with (self._data / "postgresql.conf").open("a") as config:
            config.writelines(f"{key} = '{value}'\n" for key, value in self._configuration().items())

    def _configuration(self) -> dict[str, str | int]:
        return {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": str(self.folder),
            "fsync": "on",
            "synchronous_commit": "on",
            "shared_buffers": "128MB",
            "max_connections": 200,
            "autovacuum": "on",
            # In the data folder, where a killed server's leftovers go with it, not in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }

    def _command(self) -> list[str]:
        return [self._find("postgres"), "-D", str(self._data)]

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _do(self, statement: LiteralString, *names: str) -> None:
        query = sql.SQL(statement).format(*map(sql.Identifier, names))
        with self.connect() as connection:
            connection.execute(query)

    @functools.cached_property
    def _strategy(self) -> LiteralString:
        return "strategy wal_log" if int(self.version.split(".")[0]) >= 15 else ""

    def _free_shared_memory(self) -> None:
        # A postmaster that was killed and never started again leaves a small System V segment,
        # and a machine has only 4096 of them; the seventh line of postmaster.pid says which.
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            segment = (self._data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], check=False, capture_output=True)


class PgBouncer(Server):
    """A PgBouncer in transaction mode: a client has a session of the server only while it needs one.

    As Debian configures it, but for the size of the pool: few server sessions, so that clients really
    share them. `settings` go into its file as they are.
    """

    name = "PgBouncer"
    account = "postgres"
    binary = "pgbouncer"
    package = "pgbouncer"
    stop_signal = signal.SIGINT

    def __init__(self, behind: PostgreSQL, **settings: str | int) -> None:
        self._behind = behind
        self._settings = settings
        super().__init__()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def _prepare(self) -> None:
        self._users, self._file = self.folder / "users", self.folder / "pgbouncer.ini"
        self._users.write_text('"postgres" ""\n')
        lines = [f"{key} = {value}" for key, value in self._configuration().items()]
        databases = f"[databases]\n* = host={HOST} port={self._behind.port}\n"
        self._file.write_text(databases + "\n".join(["[pgbouncer]", *lines, ""]))
        self._file.chmod(0o644)
        self._users.chmod(0o644)

    def _configuration(self) -> dict[str, str | int]:
        return {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._users),
            "pool_mode": "transaction",
            "default_pool_size": 5,
            "max_client_conn": 1000,
            **self._settings,
        }

    def _command(self) -> list[str]:
        return [self._find("pgbouncer"), str(self._file)]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class MariaDB(Server):
    """A MariaDB that keeps its promises, whose root needs no password, and that hands out databases."""

    name = "MariaDB"
    account = "mysql"
    binary = "mariadbd"
    package = "mariadb-server"
    greeting = b"MariaDB"

    def __init__(self, settings: Mapping[str, str | int] | None = None) -> None:
        self.settings = dict(settings or {})
        self._numbers = itertools.count(1)
        super().__init__()

    def url(self, database: str = "mysql") -> str:
        return f"mysql://root@{HOST}:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """In the server's own character set, which is not ours: dibs must not depend on it."""
        self._do(f"create database `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self._do(f"drop database if exists `{name}`")

    def fresh_database(self) -> str:
        """The address of a new, empty database."""
        return self.create_database(f"fresh_{next(self._numbers)}")

    def connect(self, database: str = "mysql") -> pymysql.Connection[Any]:
        """A connection in autocommit; the caller closes it."""
        return mysql_connection(self.url(database))

    def make_user(self, name: str, password: str) -> None:
        """Somebody who may do everything and needs a password; nothing to do when there is one."""
        self._do(f"create user if not exists `{name}`@`%` identified by '{password}'")
        self._do(f"grant all on *.* to `{name}`@`%`")

    def _do(self, statement: str) -> None:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _prepare(self) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", self._pristine(), self.folder / "data"], check=True)

    def _pristine(self) -> Path:
        return _pristine_mariadb()

    def _command(self) -> list[str]:
        return [self._find("mariadbd"), "--no-defaults", *self._options(), *self._own_settings()]

    def _options(self) -> list[str]:
        return [
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            # Not the one that all share: a server that starts sweeps other servers' tables out of it.
            f"--tmpdir={self.folder}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            "--skip-name-resolve",
            "--max-connections=500",
            # Connections that tests cut would otherwise get this host blocked after a hundred.
            "--max-connect-errors=1000000000",
        ]

    def _own_settings(self) -> list[str]:
        return [f"--{key}={value}" for key, value in self.settings.items()]


def mysql_connection(url: str, cls: Any = pymysql.Connection, **options: Any) -> Any:
    """A connection of PyMySQL in autocommit to one of these servers; the caller closes it."""
    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "database": parts.path.lstrip("/")}
    usual = {"user": "root", "autocommit": True, "connect_timeout": 2, "binary_prefix": True}
    usual["ssl_disabled"] = True  # these servers have no TLS, and to prepare for it takes 20 ms
    return cls(**{**usual, **place, **options})


@functools.cache
def _pristine_cluster() -> Path:
    """The data folder of a PostgreSQL that never ran, to be copied: initdb takes a second."""
    folder = new_folder("pristine", PostgreSQL.account)
    initdb = find_binary("initdb", PostgreSQL.package)
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    guard = guarded(PostgreSQL.account, "KILL")
    run_command([*guard, initdb, "-D", str(folder / "data"), *options], folder=folder)
    return folder / "data"


@functools.cache
def _pristine_mariadb() -> Path:
    """The data folder of a MariaDB that never ran, to be copied: making one takes seconds."""
    folder = new_folder("pristine-mariadb", MariaDB.account)
    install = find_binary("mariadb-install-db", MariaDB.package)
    places = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}"]
    options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    guard = guarded(MariaDB.account, "KILL")
    run_command([*guard, install, "--no-defaults", *places, *options], folder=folder)
    return folder / "data"
