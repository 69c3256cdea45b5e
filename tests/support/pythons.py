"""Environments of another Python than the one that runs the tests, made once per machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.support.servers import not_tested
from tests.support.servers.processes import MissingServer, run_command
from tests.support.servers.suites import cache, locked

ROOT = Path(__file__).parents[2]
AT_LEAST = (3, 12)


def django_six() -> Path:
    """Return the Python of an environment with Django 6.0 and what dibs needs, but without dibs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = ["django>=6.0,<6.1", *project["dependencies"], *project["optional-dependencies"]["postgres"]]
    try:
        return environment("django-6.0", wanted)
    except MissingServer as error:
        not_tested["Django 6.0"] = str(error)
        raise


def environment(name: str, packages: list[str]) -> Path:
    """Return the Python of an environment with these packages; make it the first time."""
    python = newer_python()
    key = hashlib.sha256(" ".join([str(python), *packages]).encode()).hexdigest()[:8]
    folder = cache() / f"{name}-{key}"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            run_command([str(python), "-m", "venv", str(folder)], folder=folder.parent)
            run_command([str(folder / "bin/pip"), "install", "--quiet", *packages], folder=folder.parent)
            (folder / "ready").touch()
    return folder / "bin/python"


def newer_python() -> Path:
    """Return a Python of 3.12 or later: of the path, of pyenv, or of uv."""
    found = [shutil.which(f"python3.{minor}") for minor in range(12, 16)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places = [*filter(None, found), *(str(one) for one in sorted(pyenv.glob("3.*/bin/python")))]
    if uv := shutil.which("uv"):
        done = subprocess.run([uv, "python", "find", ">=3.12"], capture_output=True, text=True, check=False)
        places += done.stdout.split()
    for place in places:  # a shim of pyenv may stand for a version that is not chosen
        told = subprocess.run([place, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"Python 3\.(\d+)", told)
        if version is not None and (3, int(version[1])) >= AT_LEAST:
            return Path(place)
    raise MissingServer("it needs Python 3.12 or later, and there is none on the path, of pyenv, or of uv")
