"""The app of `manage.py dibs work`: the project's `app`, with every job and task of its apps."""

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

if not apps.ready:
    django.setup()

from dibs.integrations.django.store import app

__all__ = ["app"]

autodiscover_modules("jobs", "tasks")

try:
    from dibs.integrations.django.backend import dibs_backends
except ImportError:  # neither Django 6 nor django-tasks: jobs only
    pass
else:
    dibs_backends()
