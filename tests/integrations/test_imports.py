"""Frameworks are extras: whoever imports dibs pays for none of them."""

import subprocess
import sys

FRAMEWORKS = ("alembic", "django", "django_tasks", "opentelemetry", "sqlalchemy", "dibs.integrations")


def test_importing_dibs_and_its_command_line_imports_no_framework() -> None:
    program = f"import sys, dibs, dibs.cli; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
