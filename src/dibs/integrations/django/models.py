"""What Django's admin and permissions know of jobs. Nothing is kept in a table of this.

Django also sends `post_migrate` only to an app that has this module.
"""

from typing import Any

from django.db import models
from django.db.migrations.operations import CreateModel

OPTIONS = {
    "managed": False,
    "default_permissions": ("view", "change"),
    "verbose_name": "job",
    "verbose_name_plural": "jobs",
}


def _id() -> Any:
    return models.UUIDField(primary_key=True, serialize=False)


# Named after it: the permissions `dibs.view_job` and `dibs.change_job`, and the pages at admin/dibs/job/.
Job = type(
    "Job",
    (models.Model,),
    {"__module__": __name__, "id": _id(), "Meta": type("Meta", (), {**OPTIONS, "app_label": "dibs"})},
)


def described() -> Any:
    """Return the model as the first migration describes it, so that `makemigrations` finds nothing to do."""
    return CreateModel("Job", [("id", _id())], options=OPTIONS)
