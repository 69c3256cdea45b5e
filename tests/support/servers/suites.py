"""Servers that are not installed: unpacked into a cache, with their own libraries."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.servers.processes import INSTALL_SECONDS, MissingServer

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCES = Path("/etc/apt")
REMEMBER_SECONDS = 600
"""For so long a failure counts: the processes of one run would otherwise all wait for the same timeout."""


def cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dibs-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def common_cache() -> Path:
    """A cache that the account of a server may read, too, when we are root."""
    if os.geteuid() != 0:
        return cache()
    folder = Path("/var/cache/dibs-tests")
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


@functools.cache
def unpacked(suite: str, package: str, *, common: bool = False) -> Path:
    """Return the folder with this package and its libraries; download them the first time."""
    place = common_cache() if common else cache()
    return made_once(place / f"{suite}-{package}", lambda scratch: _download(suite, package, scratch))


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder; the first time `make` leaves what belongs into it in `root` of a scratch folder."""
    failure = folder.with_name(f"{folder.name}.failed")
    with locked(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():
            return folder
        if failure.exists() and time.time() - failure.stat().st_mtime < REMEMBER_SECONDS:
            raise MissingServer(failure.read_text())
        try:
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                for part in ("root", "debs"):
                    (Path(scratch) / part).mkdir(mode=0o755)
                make(Path(scratch))
                (Path(scratch) / "root").rename(folder)
        except MissingServer as error:
            failure.write_text(str(error))
            raise
    return folder


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run_in(root: Path, program: str) -> list[str]:
    """Return the start of a command line that runs the program with the libraries it came with."""
    folders = [str(folder) for folder in (*root.glob("usr/lib/*-linux-gnu*"), root / "usr/lib/mysql/private")]
    [loader] = [file for file in root.glob("usr/lib/*/ld-linux-*.so*") if file.name.count(".so") == 1]
    return [str(loader), "--library-path", ":".join(folders), str(root / program)]


def _download(suite: str, package: str, folder: Path) -> None:
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "list").write_text(f"deb [signed-by={KEYS}] {_mirror()} {suite} main\n")
    (folder / "conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/list"; Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{folder}/lists";\n'
        f'Dir::Cache "{folder}/cache"; Dir::State::status "{folder}/status"; APT::Sandbox::User "";\n'
        'Acquire::Languages "none"; Acquire::Retries "1"; Acquire::http::Timeout "30";\n'
    )
    _apt(folder, "update")
    plan = _apt(folder, "--simulate", "--no-install-recommends", "install", package)
    _apt(folder, "download", *_wanted(plan, package))
    for file in (folder / "debs").glob("*.deb"):
        run(["dpkg-deb", "-x", str(file), str(folder / "root")], folder)


def _wanted(plan: str, package: str) -> list[str]:
    """Choose the server's packages and libraries from all that apt would install."""
    family = package.split("-")[0]
    found = re.findall(r"^Inst (\S+) \((\S+)", plan, re.MULTILINE)
    return [f"{name}={version}" for name, version in found if re.match(rf"lib|zlib1g|{family}-", name)]


def _mirror() -> str:
    """Return the address this machine's own packages come from."""
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    texts = [file.read_text() for file in files if file.suffix in (".list", ".sources") and file.exists()]
    lines = re.findall(r"^(?:URIs:|deb )[^#\n]*?(https?://\S+)", "\n".join(texts), re.MULTILINE)
    if not (mirrors := [url for url in lines if "debian" in url and "security" not in url]):
        raise MissingServer("this machine has no mirror of Debian to fetch it from")
    return mirrors[0]


def _apt(folder: Path, *words: str) -> str:
    return run(["apt-get", "--quiet", *words], folder)


def run(command: list[str], folder: Path) -> str:
    """What the command printed; MissingServer if it failed, for it was to bring a server."""
    if shutil.which(command[0]) is None:
        raise MissingServer(f"{command[0]} is not on this machine")
    environment = os.environ | {"APT_CONFIG": str(folder / "conf")}
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=folder / "debs",
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise MissingServer(f"`{' '.join(command[:3])}` took more than {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-400:]
        raise MissingServer(f"`{' '.join(command[:3])}` failed: {said}")
    return done.stdout
