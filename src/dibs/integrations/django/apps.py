"""What Django has to know of dibs."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from dibs.engines.sqlite.file import OWN_TRANSACTIONS
from dibs.integrations.django.transactions import is_open_on


class DibsConfig(AppConfig):  # type: ignore[misc]
    """Its label is `dibs`: `manage.py migrate dibs`."""

    name = "dibs.integrations.django"
    label = "dibs"
    verbose_name = "dibs"

    def ready(self) -> None:
        post_migrate.connect(_follow, dispatch_uid="dibs")
        OWN_TRANSACTIONS.append(is_open_on)


def _follow(**_: Any) -> None:
    """A test run makes a database of its own and migrates it; from then on the jobs live there."""
    from dibs.integrations.django.store import follow

    follow()
