"""`manage.py dibs …`: the command line of dibs, on the project's store."""

import os
import subprocess
import sys
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from dibs.integrations.django import store

DIBS = [sys.executable, "-m", "dibs.cli"]


class Command(BaseCommand):  # type: ignore[misc]
    """All of `dibs`: work, jobs, why, queues, migrate, doctor, top …; `manage.py dibs --help`."""

    help = "dibs on this project's store: work, jobs, why, queues, migrate, doctor, top …"

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        """Become `dibs`: whatever follows is for it, its options and the signals included."""
        sys.stdout.flush()
        os.execve(DIBS[0], [*DIBS, *argv[2:]], _environment())  # noqa: S606

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """`call_command("dibs", "jobs", "list")`: the process that calls goes on."""
        command = [*DIBS, *options["words"]]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)  # noqa: S603
        self.stdout.write(done.stdout, ending="")
        if done.returncode != 0:
            raise CommandError(done.stderr.strip())


def _environment() -> dict[str, str]:
    path = (sys.path[0], os.environ.get("PYTHONPATH"))
    return {
        "DIBS_WORK_APP": "dibs.integrations.django.worker:app",
        **os.environ,
        "DIBS_URL": store.url(),
        "DIBS_PREFIX": store.app._core.settings.prefix,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
