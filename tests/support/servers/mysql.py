"""MySQL proper, which Debian's stable releases lack: the machine's own, or the one of `sid`."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from tests.support.servers.processes import output_of, run_command, version_in
from tests.support.servers.sql import MariaDB
from tests.support.servers.suites import cache, locked, run_in, unpacked

SUITE, PACKAGE = "sid", "mysql-server-core"
SMALL = "--innodb-redo-log-capacity=8388608"  # the usual 100 MB would be copied for each server


class MySQLServer(MariaDB):
    """A MySQL that keeps its promises, used as a MariaDB; it has no binary log unless the test wants one."""

    name = "MySQL"
    account = None
    greeting = b"caching_sha2_password"

    @functools.cached_property
    def version(self) -> str:
        return _version()

    def _pristine(self) -> Path:
        return _pristine_mysql()

    def _command(self) -> list[str]:
        return [
            *mysqld(),
            *self._options(),
            SMALL,
            "--mysqlx=OFF",
            *(() if "ssl-ca" in self.settings else ("--tls-version=",)),  # faults are found in plain text
            "--innodb-buffer-pool-size=64M",
            *(() if "log-bin" in self.settings else ("--disable-log-bin",)),
            *self._own_settings(),
        ]


@functools.cache
def mysqld() -> list[str]:
    """Return the start of the command line of a server."""
    own = shutil.which("mysqld", path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin")
    if own and "MariaDB" not in output_of([own, "--no-defaults", "--version"]):
        return [own, "--no-defaults", *_as_ourselves()]
    root = unpacked(SUITE, PACKAGE)
    share = root / "usr/share/mysql"
    places = [f"--basedir={root / 'usr'}", f"--lc-messages-dir={share}"]
    places += [f"--character-sets-dir={share / 'charsets'}", f"--plugin-dir={root / 'usr/lib/mysql/plugin'}"]
    return [*run_in(root, "usr/sbin/mysqld"), "--no-defaults", *places, *_as_ourselves()]


def _as_ourselves() -> list[str]:
    return ["--secure-file-priv=NULL", *(["--user=root"] if os.geteuid() == 0 else [])]


@functools.cache
def _version() -> str:
    return version_in(output_of([*mysqld(), "--version"]).rpartition("Ver ")[2])


def _pristine_mysql() -> Path:
    """Return the data folder of a MySQL that never ran, made once per machine: it takes seconds."""
    folder = cache() / f"mysql-data-{_version()}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            scratch = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(scratch, ignore_errors=True)
            anywhere = folder.with_name(f"{folder.name}.sql")  # at first root may come by the socket only
            anywhere.write_text("create user root@`%`;\ngrant all on *.* to root@`%` with grant option;\n")
            options = ["--initialize-insecure", f"--datadir={scratch}", f"--init-file={anywhere}", SMALL]
            run_command([*mysqld(), *options], folder=folder.parent)
            scratch.rename(folder)
    return folder
