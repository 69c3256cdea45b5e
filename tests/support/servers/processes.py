"""How servers are found, installed, started, and ended by pid, each with a folder of its own."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from random import SystemRandom

HOST = "127.0.0.1"
START_SECONDS = 30
STOP_SECONDS = 15
POLL_SECONDS = 0.02
INSTALL_SECONDS = 600


class MissingServer(Exception):
    """A program the tests need is not on this machine and could not be installed."""


class ServerFailed(Exception):
    """A server did not come up in time; the message ends with its log."""


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


preferred: list[str] = []
"""Folders with the programs of another version: looked into first."""


def _look_for(binary: str) -> str | None:
    postgresql = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number_of, reverse=True)
    places = [*preferred, *map(str, postgresql), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]
    return shutil.which(binary, path=os.pathsep.join(places))


def _number_of(folder: Path) -> float:
    number = folder.parent.name
    return float(number) if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0


def beside(binary: str, folder: str) -> str:
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
def root_folder() -> Path:
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


def new_folder(name: str, account: str | None) -> Path:
    folder = root_folder() / f"{name}-{next(_folder_numbers)}"
    folder.mkdir(mode=0o700)
    if account and _is_root():
        find_binary(*_ACCOUNT_COMES_WITH[account])
        shutil.chown(folder, account, pwd.getpwnam(account).pw_gid)
    return folder


# The program whose package makes the account.
_ACCOUNT_COMES_WITH = {"postgres": ("postgres", "postgresql"), "mysql": ("mariadbd", "mariadb-server")}


def guarded(account: str | None, death_signal: str) -> list[str]:
    """The start of a command line: another account when root, and a signal when we die."""
    # Not preexec_fn: with threads around Python 3.12 warns about it, and our warnings are errors.
    guard = [find_binary("setpriv", "util-linux"), "--pdeathsig", death_signal]
    if account and _is_root():
        group = str(pwd.getpwnam(account).pw_gid)
        guard += ["--reuid", account, "--regid", group, "--init-groups"]
    return [*guard, "--"]


def spawn(
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


def run_command(command: list[str], *, folder: Path) -> None:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}"
        raise ServerFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")


def output_of(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version_in(text: str) -> str:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else text.strip()


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def kill_all(pids: list[int]) -> None:
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


def children(parent: int) -> list[int]:
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
