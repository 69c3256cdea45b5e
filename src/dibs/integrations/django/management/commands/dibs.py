"""`manage.py dibs …`: the command line of dibs, on the project's store."""

import os
import subprocess
import sys
from argparse import REMAINDER, ArgumentParser
from dataclasses import fields
from datetime import timedelta
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from dibs.integrations.django import store
from dibs.settings import Settings

DIBS = [sys.executable, "-m", "dibs.cli"]


class Command(BaseCommand):  # type: ignore[misc]
    """The command line of dibs: work, jobs, why, queues, migrate …; see `manage.py dibs --help`."""

    help = "dibs on this project's store: work, jobs, why, queues, migrate, doctor, top …"

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        """Replace this process by `dibs`, which gets all further arguments and signals."""
        sys.stdout.flush()
        environment = _environment(store.app._core.settings)
        os.execve(DIBS[0], [*DIBS, *_for_dibs(argv[2:])], environment)  # noqa: S606

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run `call_command("dibs", "jobs", "list")` in a process of its own."""
        command = [*DIBS, *options["words"]]
        environment = _environment(store.app._core.settings)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        self.stdout.write(done.stdout, ending="")
        if done.returncode != 0:
            raise CommandError(done.stderr.strip())


def _for_dibs(words: list[str]) -> list[str]:
    """Return the words without the options that Django has already applied."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(words)[1]


def _environment(settings: Settings) -> dict[str, str]:
    said = {f"DIBS_{field.name.upper()}": getattr(settings, field.name) for field in fields(settings)}
    texts = {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in said.items()
    }
    path = (*sys.path[:2], os.environ.get("PYTHONPATH"))  # --pythonpath comes before the project's own
    return {
        "DIBS_WORK_APP": "dibs.integrations.django.worker:app",
        **os.environ,
        **{name: str(value) for name, value in texts.items() if value is not None},
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
