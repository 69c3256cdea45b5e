"""Each act as it is on the command line, over HTTP and in Python: to copy, for runbooks and scripts."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dibs.dashboard.rendering import LONGEST, as_json
from dibs.jobs.job import Job

API = "$DIBS_API"  # where the routes are: only their owner knows
NAME = "NAME"  # stands for the name of a queue, train or schedule


@dataclass(frozen=True, slots=True)
class ActTwin:
    """One act in three languages."""

    act: str
    cli: str
    curl: str | None
    """None where no route does this."""
    python: str


def _curl(path: str, method: str = "GET", body: object = None) -> str:
    words = ["curl", *([] if method == "GET" else [f"-X {method}"]), '-H "Authorization: Bearer $DIBS_TOKEN"']
    if body is not None:
        sent = body if isinstance(body, str) else as_json(body, 0)
        words += ["-H 'content-type: application/json'", f"-d {shlex.quote(sent)}"]
    return " ".join([*words, f'"{API}{path}"'])


# -- jobs ---------------------------------------------------------------------------------------


def twins_of(job: Job, *, with_args: bool = True) -> list[ActTwin]:
    """Return the twins of everything that can be done with a job; a command too long to show is left out."""
    found = [
        ActTwin("show", f"dibs jobs show {job.id}", _curl(f"/jobs/{job.id}"), f'await app.get("{job.id}")')
    ]
    for act in ("retry", "cancel", "recover", "delete"):
        path, method = (f"/jobs/{job.id}", "DELETE") if act == "delete" else (f"/jobs/{job.id}/{act}", "POST")
        cli, python = f"dibs jobs {act} {job.id}", f'await app.{act}("{job.id}")'
        found.append(ActTwin(act, cli, _curl(path, method), python))
    again = _enqueue(job) if with_args else None
    return found if again is None or len(again.cli) > LONGEST else [*found, again]


def _enqueue(job: Job) -> ActTwin:
    """Return the twin of running a job again: one with the same options, whose arguments can be edited."""
    options: dict[str, Any] = {"queue": job.queue}
    if job.priority:
        options["priority"] = job.priority
    options["max_attempts"] = job.max_attempts
    if job.train:
        options["train"] = job.train
    words = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items()]
    args = as_json(job.args, 0)
    cli = " ".join(["dibs enqueue", shlex.quote(job.kind), shlex.quote(args), *words])
    said = "".join(f", {name}={value!r}" for name, value in options.items())
    python = f"await app.enqueue(NewJob({job.kind!r}, args={job.args!r}{said}))"
    return ActTwin(
        "enqueue", cli, _curl("/jobs", "POST", {"kind": job.kind, "args": job.args, **options}), python
    )


def twins_of_search(q: str) -> list[ActTwin]:
    """Return the twins of a search, and of what can be done with all that it finds."""
    words = ["dibs", "jobs", "list", *(["--search", q] if q else [])]
    curl = f'curl -G -H "Authorization: Bearer $DIBS_TOKEN" "{API}/jobs"'
    if not q:
        return [ActTwin("list", shlex.join(words), curl, "await app.find()")]
    curl += f" --data-urlencode {shlex.quote(f'q={q}')}"
    found = [ActTwin("list", shlex.join(words), curl, f"await app.find(q={q!r})")]
    for act in ("retry", "cancel", "delete"):
        cli = shlex.join(["dibs", "jobs", act, "--all", "--search", q])
        first = _curl(f"/jobs/{act}", "POST", {"q": q, "preview": True})
        found.append(ActTwin(f"{act}-all", cli, first, f"await app.{act}_many(q={q!r})"))
    return found


# -- what has a name ----------------------------------------------------------------------------


def twins_of_queues() -> list[ActTwin]:
    limit = _curl(f"/queues/{NAME}/limit", "POST", {"limit": 5})
    return [
        *(_named(act, "queues", lambda act: f'await app.{act}("{NAME}")') for act in ("pause", "resume")),
        ActTwin("limit", f"dibs queues limit {NAME} 5", limit, f'await app.limit("{NAME}", 5)'),
    ]


def twins_of_trains() -> list[ActTwin]:
    return [_named("release", "trains", lambda act: f'await app.trains.{act}("{NAME}")')]


def twins_of_schedules() -> list[ActTwin]:
    found = [_named(act, "schedules", _of_schedule) for act in ("run", "pause", "resume")]
    return [*found, ActTwin("delete", f"dibs schedules delete {NAME}", None, _of_schedule("delete"))]


def _of_schedule(act: str) -> str:
    return f'await app.schedules.{"run_now" if act == "run" else act}("{NAME}")'


def _named(act: str, what: str, python: Callable[[str], str]) -> ActTwin:
    return ActTwin(act, f"dibs {what} {act} {NAME}", _curl(f"/{what}/{NAME}/{act}", "POST"), python(act))


def twins_of_pipeline(id: object) -> list[ActTwin]:
    """Return the twins of what is done with all jobs of a pipeline."""
    show = f'await app.pipelines.get("{id}")'
    found = [ActTwin("show", f"dibs pipelines show {id}", _curl(f"/pipelines/{id}"), show)]
    for act in ("retry", "cancel"):
        cli = f"dibs jobs {act} --all --pipeline-id {id}"
        curl = _curl(f"/jobs/{act}", "POST", {"q": f"pipeline:{id}", "preview": True})
        found.append(ActTwin(act, cli, curl, f'await app.pipelines.{act}("{id}")'))
    return found


def twins_of_outbox() -> list[ActTwin]:
    return [ActTwin("redrive", "dibs outbox redrive ID", None, 'await outbox.redrive("ID")')]
