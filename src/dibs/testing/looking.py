"""See everything that is in a store, however much that is."""

from typing import Any
from uuid import UUID

from dibs.app.verbs import MOST_FOUND, Core
from dibs.engines.trouble import Tries
from dibs.jobs.job import Job
from dibs.operations.scripts import Script


def all_jobs(core: Core, **filter: Any) -> Script[list[Job]]:
    """All jobs that match, with the filters of `find`, oldest first."""
    jobs: list[Job] = []
    after: UUID | None = None
    while page := (yield from core.find(MOST_FOUND, after, **filter)(Tries())):
        jobs += page
        after = page[-1].id
    return jobs[::-1]
