"""Django is set up before any test module imports what needs its settings."""

from __future__ import annotations

from tests.support import django_project

django_project.set_up()
