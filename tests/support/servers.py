"""Private servers for tests: installed binaries, temporary folders, free ports, ended by pid."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import itertools
import os
import pwd
import queue
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Any, ClassVar, LiteralString, Self
from urllib.parse import urlsplit

import psycopg
import pymysql
from psycopg import sql

HOST = "127.0.0.1"
START_SECONDS = 30
STOP_SECONDS = 15
POLL_SECONDS = 0.02
INSTALL_SECONDS = 600

used: dict[str, str] = {}
"""The version of every kind of server this process has really started."""


class MissingServer(Exception):
    """A program the tests need is not on this machine and could not be installed."""


class ServerFailed(Exception):
    """A server did not come up in time; the message ends with its log."""


class Server:
    """One private server: it keeps its port and data over stop, kill and start, until removed."""

    name: ClassVar[str]
    account: ClassVar[str | None] = None
    binary: ClassVar[str]
    package: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    death_signal: ClassVar[str] = "KILL"
    hello: ClassVar[bytes] = b""
    greeting: ClassVar[bytes] = b""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = _new_folder(self.name.lower(), self.account)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare()
        _living.append(self)

    def start(self) -> None:
        """Bring the server up, on the data and port it had before; nothing to do when it is up."""
        deadline = time.monotonic() + START_SECONDS
        while not self.running:
            self._process = self._spawn(self._command(), self._environment())
            if not self._comes_up(deadline):
                self._give_up_after(deadline)
        used[self.name] = self.version

    def stop(self) -> None:
        """End the server politely, and by force when that takes too long; the data stays."""
        if self._process is not None and self.running:
            self._process.send_signal(self.stop_signal)
            self._process.send_signal(signal.SIGCONT)
            self._wait_or_kill()

    def kill(self) -> None:
        """End the server as a power cut would: SIGKILL, no goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(ValueError):
            _living.remove(self)

    def url(self) -> str:
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} was never started; call start() first")
        return self._process.pid

    @functools.cached_property
    def version(self) -> str:
        return _version_in(_output_of([self._find(self.binary), "--version"]))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _prepare(self) -> None:
        """Make what the server needs before its first start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}

    def _find(self, binary: str) -> str:
        return find_binary(binary, self.package)

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return _spawn(
            [*_guarded(self.account, self.death_signal), *command],
            log=self.log,
            folder=self.folder,
            environment=environment,
        )

    def _comes_up(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as talk:
                talk.sendall(self.hello)
                return self.greeting in talk.recv(4096)
        except OSError:
            return False

    def _give_up_after(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            self.kill()
            raise ServerFailed(
                f"{self.name} on port {self.port} did not come up within {START_SECONDS} s; "
                f"its log ends:\n{_tail(self.log)}"
            )
        time.sleep(0.1)

    def _wait_or_kill(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


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
            family = _children(self.pid)
            super().kill()
            _kill_all(family)

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
        self._settings = dict(settings or {})
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
        subprocess.run(["cp", "-a", "--reflink=auto", _pristine_mariadb(), self.folder / "data"], check=True)

    def _command(self) -> list[str]:
        return [
            self._find("mariadbd"),
            "--no-defaults",
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
            *(f"--{key}={value}" for key, value in self._settings.items()),
        ]


class Redis(Server):
    """A Redis that writes every change to its append-only file."""

    name = "Redis"
    binary = "redis-server"
    package = "redis-server"
    hello = b"PING\r\n"
    greeting = b"+PONG"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = settings or {}
        super().__init__()

    def url(self, database: int = 0) -> str:
        return f"redis://{HOST}:{self.port}/{database}"

    def say(self, *commands: str) -> str:
        """These commands, on a connection of their own; the replies as they come."""
        reply = ""
        with socket.create_connection((HOST, self.port), timeout=5) as talk:
            for words in commands:
                talk.sendall(f"{words}\r\n".encode())
                reply += talk.recv(65536).decode()
        return reply

    def _command(self) -> list[str]:
        options = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "enable-debug-command": "yes",
            **self.settings,
        }
        flags = ([f"--{key}", value] for key, value in options.items())
        return [self._find("redis-server"), *itertools.chain.from_iterable(flags)]


class RedisCluster:
    """Three masters that share the slots; each may be stopped and killed on its own."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        cluster = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "save": ""}
        # The usual port for talk between nodes, 10000 above the other, may be somebody's.
        self.nodes = [
            Redis({**cluster, "cluster-port": str(free_port()), **(settings or {})}) for _ in range(3)
        ]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        used["Redis Cluster"] = f"{self.nodes[0].version}, 3 masters"
        if not self._is_whole():
            self._share_slots()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_whole():
            if time.monotonic() > deadline:
                raise ServerFailed(f"the cluster did not come together:\n{_tail(self.nodes[0].log)}")
            time.sleep(POLL_SECONDS)

    def url(self) -> str:
        """The address of the last node, where the slot of the prefix `dibs` is."""
        return self.nodes[-1].url()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.remove()

    def _share_slots(self) -> None:
        first, *others = self.nodes
        for place, node in enumerate(self.nodes):
            slots = range(place * 5462, min((place + 1) * 5462, 16384))
            node.say(f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")
        for node in others:
            node.say(f"CLUSTER MEET {HOST} {first.port} {first.settings['cluster-port']}")

    def _is_whole(self) -> bool:
        return all("cluster_state:ok" in node.say("CLUSTER INFO") for node in self.nodes)


class RabbitMQ(Server):
    """A RabbitMQ node with a name, a cookie and an Erlang port mapper of its own."""

    name = "RabbitMQ"
    binary = "rabbitmq-server"
    package = "rabbitmq-server"
    hello = b"AMQP\x00\x00\x09\x01"
    greeting = b"RabbitMQ"

    def __init__(self) -> None:
        self._mapper: subprocess.Popen[bytes] | None = None
        self._mapper_port, self._distribution_port = free_port(), free_port()
        super().__init__()

    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    @functools.cached_property
    def version(self) -> str:
        found = re.search(r"RabbitMQ (\d[\d.]*)", self.log.read_text(errors="replace"))
        return found[1] if found else "unknown"

    def start(self) -> None:
        if self._mapper is None:
            command = [self._find("epmd"), "-port", str(self._mapper_port), "-address", HOST]
            self._mapper = self._spawn(command, self._environment())
        super().start()

    def remove(self) -> None:
        super().remove()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()

    def _command(self) -> list[str]:
        return [_beside(self._find("rabbitmq-server"), "/usr/lib/rabbitmq/bin"), "-noinput"]

    def _environment(self) -> dict[str, str]:
        files = {
            f"RABBITMQ_{key}": str(self.folder / key.lower())
            for key in (
                "MNESIA_BASE",
                "LOG_BASE",
                "CONFIG_FILE",
                "ADVANCED_CONFIG_FILE",
                "CONF_ENV_FILE",
                "ENABLED_PLUGINS_FILE",
            )
        }
        return files | {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"dibs{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_LOGS": "-",
            "ERL_EPMD_PORT": str(self._mapper_port),
            # Lets the script exec Erlang, so that the pid we signal is the server's.
            "RABBITMQ_ALLOW_INPUT": "yes",
        }


class Nats(Server):
    """A NATS server with JetStream on disk."""

    name = "NATS"
    binary = "nats-server"
    package = "nats-server"
    greeting = b"INFO"

    def __init__(self, password: str | None = None) -> None:
        self._password = password
        super().__init__()

    def url(self) -> str:
        who = "" if self._password is None else f"dibs:{self._password}@"
        return f"nats://{who}{HOST}:{self.port}"

    def _command(self) -> list[str]:
        place = ["-a", HOST, "-p", str(self.port)]
        doorman = [] if self._password is None else ["--user", "dibs", "--pass", self._password]
        return [self._find("nats-server"), "-js", "-sd", str(self.folder / "data"), *place, *doorman]


def mysql_connection(url: str, cls: Any = pymysql.Connection, **options: Any) -> Any:
    """A connection of PyMySQL in autocommit to one of these servers; the caller closes it."""
    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "database": parts.path.lstrip("/")}
    usual = {"user": "root", "autocommit": True, "connect_timeout": 2, "binary_prefix": True}
    usual["ssl_disabled"] = True  # these servers have no TLS, and to prepare for it takes 20 ms
    return cls(**{**usual, **place, **options})


def free_port() -> int:
    """A port that is free now and stays out of the way of outgoing connections."""
    # A client that retries a dead port in the ephemeral range can be given that very port as its
    # own and connect to itself; then the server cannot come back on it.
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def find_binary(binary: str, package: str) -> str:
    """Where the program is; installs its Debian package when it is missing and we are root."""
    found, said = _look_for(binary), ""
    if found is None and _is_root():
        with _one_at_a_time():
            found = _look_for(binary)  # another process of this run may have installed it just now
            if found is None:
                said = _install(package)
                found = _look_for(binary)
    if found is None:
        raise MissingServer(
            f"{binary} is not on this machine; install the package {package} "
            f"(`apt-get install {package}`) or run the tests as root to have it installed{said}"
        )
    return found


def _look_for(binary: str) -> str | None:
    postgresql = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number_of, reverse=True)
    places = [*map(str, postgresql), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]
    return shutil.which(binary, path=os.pathsep.join(places))


def _number_of(folder: Path) -> float:
    number = folder.parent.name
    return float(number) if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0


def _beside(binary: str, folder: str) -> str:
    """The program of that name in the folder, where Debian's wrapper insists on its own account."""
    behind = Path(folder) / Path(binary).name
    return str(behind) if behind.exists() else binary


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two installations at a time would refuse each other."""
    handle = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@functools.cache
def _install(package: str) -> str:
    """Nothing, or what there is to say if it did not work."""
    if shutil.which("apt-get") is None:
        return ""
    # RUNLEVEL=1 keeps the package from starting a server on the standard port.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    patient = ["-o", f"DPkg::Lock::Timeout={INSTALL_SECONDS // 2}"]  # somebody else may install something
    said = b""
    for words in (["update"], ["install", "-y", package]):
        done = subprocess.run(
            ["apt-get", *patient, *words],
            check=False,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=INSTALL_SECONDS,
        )
        said += done.stderr
    return f"; apt-get said:\n{said.decode(errors='replace').strip()}" if said else ""


def _is_root() -> bool:
    return os.geteuid() == 0


PREFIX = "dibs-servers-"


@functools.cache
def _root_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o711)
    _lock(folder)
    _sweep_beside(folder)
    return folder


def _lock(folder: Path) -> int:
    """Keep the folder locked for as long as this process lives; OSError when another does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _sweep_beside(folder: Path) -> None:
    """Delete the folders of test runs that were killed; nobody holds their locks any more."""
    for other in folder.parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # A younger one may belong to a run that has not come to locking it yet.
            if time.time() - other.stat().st_ctime > 60:
                handle = _lock(other)
                shutil.rmtree(other, ignore_errors=True)
                os.close(handle)


_folder_numbers = itertools.count(1)


def _new_folder(name: str, account: str | None) -> Path:
    folder = _root_folder() / f"{name}-{next(_folder_numbers)}"
    folder.mkdir(mode=0o700)
    if account and _is_root():
        find_binary(*_ACCOUNT_COMES_WITH[account])
        shutil.chown(folder, account, pwd.getpwnam(account).pw_gid)
    return folder


_ACCOUNT_COMES_WITH = {
    kind.account: (kind.binary, kind.package) for kind in (PostgreSQL, MariaDB) if kind.account
}


@functools.cache
def _pristine_cluster() -> Path:
    """The data folder of a PostgreSQL that never ran, to be copied: initdb takes a second."""
    folder = _new_folder("pristine", PostgreSQL.account)
    initdb = find_binary("initdb", PostgreSQL.package)
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    guard = _guarded(PostgreSQL.account, "KILL")
    _run([*guard, initdb, "-D", str(folder / "data"), *options], folder=folder)
    return folder / "data"


@functools.cache
def _pristine_mariadb() -> Path:
    """The data folder of a MariaDB that never ran, to be copied: making one takes seconds."""
    folder = _new_folder("pristine-mariadb", MariaDB.account)
    install = find_binary("mariadb-install-db", MariaDB.package)
    places = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}"]
    options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    guard = _guarded(MariaDB.account, "KILL")
    _run([*guard, install, "--no-defaults", *places, *options], folder=folder)
    return folder / "data"


def _guarded(account: str | None, death_signal: str) -> list[str]:
    """The start of a command line: another account when root, and a signal when we die."""
    # Not preexec_fn: with threads around Python 3.12 warns about it, and our warnings are errors.
    guard = [find_binary("setpriv", "util-linux"), "--pdeathsig", death_signal]
    if account and _is_root():
        group = str(pwd.getpwnam(account).pw_gid)
        guard += ["--reuid", account, "--regid", group, "--init-groups"]
    return [*guard, "--"]


def _spawn(
    command: list[str], *, log: Path, folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return _in_spawner(
            lambda: subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )


def _in_spawner(order: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Let the one thread that lives as long as the process do the spawning."""
    # A parent-death signal is sent when the parent *thread* ends (prctl(2)): a server that was
    # restarted from a test's thread would die with that thread.
    future: Future[subprocess.Popen[bytes]] = Future()
    _spawner().put((future, order))
    return future.result()


Order = tuple["Future[subprocess.Popen[bytes]]", Callable[[], "subprocess.Popen[bytes]"]]


@functools.cache
def _spawner() -> queue.SimpleQueue[Order]:
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_spawn_forever, args=(orders,), name="pytest-servers", daemon=True).start()
    return orders


def _spawn_forever(orders: queue.SimpleQueue[Order]) -> None:
    while True:
        future, order = orders.get()
        try:
            future.set_result(order())
        except BaseException as error:
            future.set_exception(error)


def _run(command: list[str], *, folder: Path) -> None:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}"
        raise ServerFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _version_in(text: str) -> str:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else text.strip()


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until_gone(pids)


def wait_until_gone(pids: list[int], seconds: float = STOP_SECONDS) -> bool:
    """Whether all these processes, our children or not, have ended in time."""
    deadline = time.monotonic() + seconds
    while (alive := any(map(_lives, pids))) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return not alive


def _children(parent: int) -> list[int]:
    return [pid for pid, _, above in _processes() if above == parent]


def _lives(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[1] != "Z"


def _processes() -> Iterator[tuple[int, str, int]]:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return (stat for stat in map(_stat, pids) if stat is not None)


def _stat(pid: int) -> tuple[int, str, int] | None:
    """The process's id, state letter and parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return pid, state, int(parent)


_living: list[Server] = []
_owner = os.getpid()


@atexit.register
def _remove_all() -> None:
    # A forked child that exits inherits this hook, but not the servers.
    if os.getpid() == _owner and _root_folder.cache_info().currsize:
        for server in list(_living):
            server.remove()
        shutil.rmtree(_root_folder(), ignore_errors=True)
