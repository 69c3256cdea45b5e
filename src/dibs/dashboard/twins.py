"""Each act as it is on the command line, over HTTP and in Python: to copy, for runbooks and scripts."""

import shlex
from dataclasses import dataclass

from dibs.jobs.job import Job

API = "$DIBS_API"  # where the routes are: only their owner knows


@dataclass(frozen=True, slots=True)
class ActTwin:
    """One act in three languages."""

    act: str
    cli: str
    curl: str
    python: str


def twins_of(job: Job) -> list[ActTwin]:
    return [_look(job), *(_twin(act, job) for act in ("retry", "cancel", "recover"))]


def _look(job: Job) -> ActTwin:
    return ActTwin("show", f"dibs jobs show {job.id}", _curl(f"/jobs/{job.id}"), f'await app.get("{job.id}")')


def _twin(act: str, job: Job) -> ActTwin:
    curl = _curl(f"/jobs/{job.id}/{act}", post=True)
    return ActTwin(act, f"dibs jobs {act} {job.id}", curl, f'await app.{act}("{job.id}")')


def _curl(path: str, *, post: bool = False) -> str:
    return f'curl {"-X POST " if post else ""}-H "Authorization: Bearer $DIBS_TOKEN" "{API}{path}"'


def list_twin(q: str) -> ActTwin:
    """Return the twin of a search."""
    words = ["dibs", "jobs", "list", *(["--search", q] if q else [])]
    curl = f'curl -G -H "Authorization: Bearer $DIBS_TOKEN" "{API}/jobs"'
    if q:
        curl += f" --data-urlencode {shlex.quote(f'q={q}')}"
    return ActTwin("list", shlex.join(words), curl, f"await app.find({f'q={q!r}' if q else ''})")
