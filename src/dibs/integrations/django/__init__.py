"""Django: jobs in Django's own database, stored with its transactions, run by `manage.py dibs work`.

Add `"dibs.integrations.django"` to INSTALLED_APPS. `app` is the `Dibs` of the project; `DibsBackend` is for
TASKS, if you use Django's tasks.
"""

from typing import Any

__all__ = ["DibsBackend", "app"]


def __getattr__(name: str) -> Any:
    """Import both late: they need the settings, which Django reads after it has imported this package."""
    match name:
        case "app":
            from dibs.integrations.django.store import app

            return app
        case "DibsBackend":
            from dibs.integrations.django.backend import DibsBackend

            return DibsBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
