"""Assert what was enqueued; a failure shows what was enqueued instead, the nearest first."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dibs.app.dibs import Dibs, SyncDibs
from dibs.app.state import AppState
from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs import payload
from dibs.jobs.job import Job
from dibs.testing.pending import all_jobs

MOST_SHOWN = 5
PARTIAL = ("args", "meta", "tags")  # may have more than was asked for

Kind = Task[..., Any] | str


def assert_enqueued(
    app: Dibs | SyncDibs,
    kind: Kind,
    *,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
    **fields: Any,
) -> list[Job]:
    """Assert that jobs like this are in the store, in any state: `count` of them, or at least one.

    `args` has the arguments that matter; so do `meta` and `tags`. Further fields are fields of a Job, like
    `state="scheduled"`. Return the jobs, oldest first.
    Example: `assert_enqueued(app, send_receipt, args={"order_id": 42}, count=1)`"""
    __tracebackhide__ = True
    wanted = _Wanted(_name(kind), _given(args, queue, fields))
    jobs = _stored(app._core)
    found = [job for job in jobs if not wanted.differences(job)]
    if len(found) == count or (count is None and found):
        return found
    if count is None:
        raise AssertionError(f"{wanted} was not enqueued.\n{_instead(app._core, wanted, jobs)}")
    was = "was not enqueued" if not found else f"was enqueued {_times(len(found))}"
    raise AssertionError(f"{wanted} {was}, expected {_times(count)}.\n{_instead(app._core, wanted, jobs)}")


def assert_not_enqueued(
    app: Dibs | SyncDibs,
    kind: Kind,
    *,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    **fields: Any,
) -> None:
    """Assert that the store has no job like it, in any state. Example: `assert_not_enqueued(app, "post")`"""
    __tracebackhide__ = True
    wanted = _Wanted(_name(kind), _given(args, queue, fields))
    found = [job for job in _stored(app._core) if not wanted.differences(job)]
    if found:
        raise AssertionError(f"{wanted} was enqueued {_times(len(found))}:\n{_listed(wanted, found)}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The job that a test asks for."""

    kind: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        with_fields = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.kind} with {with_fields}" if with_fields else self.kind

    def differences(self, job: Job) -> list[str]:
        """Return a line for each difference between this job and what was asked for."""
        kind = [] if job.kind == self.kind else [f"kind is {job.kind!r}"]
        return [*kind, *(line for name in self.fields for line in self._differences_in(name, job))]

    def _differences_in(self, name: str, job: Job) -> list[str]:
        expected, actual = self.fields[name], getattr(job, name)
        if name == "tags":
            return [f"tags lack {tag!r}" for tag in expected if tag not in actual]
        if name in PARTIAL:
            return [line for key in expected for line in _difference(f"{name}.{key}", expected, actual, key)]
        return [] if expected == actual else [f"{name} is {actual!r}, not {expected!r}"]


def _difference(what: str, expected: Mapping[str, Any], actual: Mapping[str, Any], key: str) -> list[str]:
    if key not in actual:
        return [f"{what} is missing, expected {expected[key]!r}"]
    return [] if expected[key] == actual[key] else [f"{what} is {actual[key]!r}, not {expected[key]!r}"]


def _instead(core: AppState, wanted: _Wanted, jobs: list[Job]) -> str:
    """Return what is in the store, and the nearest known kind if this one is unknown."""
    known = {*core.registry.tasks, *(job.kind for job in jobs)}
    like = [] if wanted.kind in known else difflib.get_close_matches(wanted.kind, sorted(known), n=1)
    hint = f"There is no kind {wanted.kind!r} here; did you mean {like[0]!r}?\n" if like else ""
    if not jobs:
        return f"{hint}Nothing was enqueued at all."
    near = sorted(jobs, key=lambda job: (job.kind != wanted.kind, len(wanted.differences(job))))
    return f"{hint}What was enqueued, the nearest first:\n{_listed(wanted, near)}"


def _listed(wanted: _Wanted, jobs: list[Job]) -> str:
    shown = [line for job in jobs[:MOST_SHOWN] for line in _lines(wanted, job)]
    more = len(jobs) - MOST_SHOWN
    return "\n".join([*shown, f"  … and {more} more"] if more > 0 else shown)


def _lines(wanted: _Wanted, job: Job) -> list[str]:
    differences = wanted.differences(job)
    return [
        f"  {job.kind} {job.args}  queue={job.queue!r} state={str(job.state)!r}",
        *(f"      {line}" for line in differences if not line.startswith("kind is")),
    ]


def _stored(core: AppState) -> list[Job]:
    return core.store.run(lambda _: all_jobs())


def _name(kind: Kind) -> str:
    if isinstance(kind, Task):
        return kind.kind
    if not isinstance(kind, str):
        raise BadRequest(f"{kind!r} is not a kind of job: give a function with @app.job, or a kind's name")
    return kind


def _given(args: Mapping[str, Any] | None, queue: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that matter, as the store would return them."""
    named = {name: value for name, value in (("args", args), ("queue", queue)) if value is not None}
    given = {**named, **fields}
    for name, value in given.items():
        if name not in Job.__struct_fields__:
            raise BadRequest(f"a job has no {name!r}; there are {', '.join(Job.__struct_fields__)}")
        if name in ("args", "meta"):
            given[name] = {key: _as_stored(one) for key, one in _by_name(value, name).items()}
        if name == "tags":
            given[name] = [value] if isinstance(value, str) else list(value)
    return given


def _by_name(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{what} are asked for by name, like {what}={{'order_id': 42}}, not {value!r}")
    return value


def _as_stored(value: Any) -> Any:
    """Return a value as JSON would give it back; what JSON can't hold, like `mock.ANY`, as it is."""
    try:
        return payload.decode(payload.encode(value, "args", 2**31))
    except BadRequest:
        return value


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
