"""Frameworks are extras: importing dibs imports none of them."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("alembic", "django", "django_tasks", "opentelemetry", "sqlalchemy", "dibs.integrations")


def test_importing_dibs_and_its_command_line_imports_no_framework() -> None:
    program = f"import sys, dibs, dibs.cli; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("dibs.integrations.fastapi", "fastapi", "fastapi"),
        ("dibs.integrations.alembic", "alembic", "alembic"),
        ("dibs.integrations.opentelemetry", "opentelemetry", "otel"),
        ("dibs.integrations.sqlalchemy", "sqlalchemy", "sqlalchemy"),
        ("dibs.tables", "sqlalchemy", "sqlalchemy"),
    ],
)
def test_a_missing_package_names_the_extra_to_install(module: str, package: str, extra: str) -> None:
    program = f"""
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more)
try:
    import {module}
except ModuleNotFoundError as error:
    print(error)
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"{module} needs ")
    assert done.stdout.endswith(f"pip install 'dibs[{extra}]'\n")
