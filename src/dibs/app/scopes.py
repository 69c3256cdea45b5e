"""The jobs, and the parts of them, that one user of the web interface may see: routes and pages ask here."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dibs.app.dibs import Dibs
from dibs.errors import BadRequest, DibsError
from dibs.jobs.job import NEW_JOB_COLUMNS, Job, JobError
from dibs.jobs.options import slot_name
from dibs.operations.enqueue import NewRow
from dibs.operations.why import Why

SCOPES = ("queue", "kind", "tags", "train", "slot", "pipeline_id")
SHARED_KEYS = {"train": "train", "slot": "slot", "unique": "unique_key", "pipeline_id": "pipeline_id"}
"""Options by which jobs affect each other across tags and queues, and their columns."""
HARMLESS = ("wait", "drop")
"""Policies of a shared slot that end no other job."""

FIELDS = ("args", "result", "errors", "traceback", "meta")
"""What may be secret, or only of use to the developers."""
USUAL_FIELDS = ("args", "result", "errors", "meta")

_OTHERS = tuple(name for name in Job.__struct_fields__ if name not in FIELDS)
_ERROR = tuple(name for name in JobError.__struct_fields__ if name != "traceback")


class OutOfScope(DibsError):
    """The request names something outside of its scope."""


def check_shared(shared: Collection[str]) -> frozenset[str]:
    if isinstance(shared, str) or not set(shared) <= set(SHARED_KEYS):
        raise BadRequest(f"shared={shared!r} must be a list of some of {', '.join(SHARED_KEYS)}")
    return frozenset(shared)


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that a request may see and change; without filters, all."""

    filter: Mapping[str, Any]
    shared: frozenset[str] = frozenset()
    """Keys that a request may name although jobs outside of its scope may have the same."""

    @classmethod
    def of(cls, filter: Any, shared: frozenset[str]) -> "Scope":
        """Return the scope of what a `scope=` returned; anything but filters of `find` is an error."""
        if not isinstance(filter, Mapping) or not set(filter) <= set(SCOPES):
            raise TypeError(f"scope= must give a mapping of some of {', '.join(SCOPES)}, not {filter!r}")
        return cls({name: _value(name, value) for name, value in filter.items()}, shared)

    def allows(self, job: Job) -> bool:
        return all(self._matches(job, name, wanted) for name, wanted in self.filter.items())

    @staticmethod
    def _matches(job: Job, name: str, wanted: Any) -> bool:
        if name == "tags":
            return set(wanted) <= set(job.tags)
        value = getattr(job, name)
        return value is not None and _plain(name, value) == _plain(name, wanted)

    def narrowed(self, **asked: Any) -> dict[str, Any]:
        """Return the requested filters within the scope; refuse filters outside of it."""
        given = {name: value for name, value in asked.items() if value not in (None, [])}
        for name, wanted in self.filter.items():
            if name == "tags":
                given["tags"] = [*given.get("tags", []), *wanted]
            elif _plain(name, given.setdefault(name, wanted)) != _plain(name, wanted):
                raise OutOfScope(f"your scope is the {name} {_plain(name, wanted)!r}")
        return given

    def may_enqueue(self, row: NewRow) -> None:
        """Refuse a job that could affect jobs outside of the scope: supersede them or make them wait.

        Refused without a check whether there are any: one may come later, and the response would reveal it.
        """
        if not self.filter:
            return
        about = dict(zip(NEW_JOB_COLUMNS, row, strict=True))
        for name, column in SHARED_KEYS.items():
            if about[column] is not None and not (name in self.filter or name in self.shared):
                raise OutOfScope(
                    f"jobs outside of your scope may have the same {name}, so it can't be "
                    f"{str(about[column])!r}: enqueue a job without {name}",
                )
        if about["slot"] is not None and "slot" not in self.filter and about["slot_policy"] not in HARMLESS:
            raise OutOfScope(
                f"slot_policy {about['slot_policy']!r} could end jobs outside of your scope: use "
                f"{' or '.join(map(repr, HARMLESS))}"
            )

    def only_all(self) -> None:
        """Refuse unless the scope is the whole store."""
        if self.filter:
            raise OutOfScope("this is about the whole store, and your scope is a part of it")

    def only_queue(self, name: str) -> None:
        """Refuse unless the scope has the whole queue."""
        if set(self.filter) - {"queue"} or self.filter.get("queue", name) != name:
            raise OutOfScope(f"the queue {name!r} is outside of your scope")


def _plain(name: str, value: Any) -> str:
    """Return the same text for equal values; for a slot the store's name of it."""
    return slot_name(value) if name == "slot" and isinstance(value, tuple) else str(value)


def _value(name: str, value: Any) -> Any:
    """Return the value of a filter; refuse one that names nothing, which would allow everything."""
    if name == "tags":
        value = [value] if isinstance(value, str) else list(value or ())
    elif name == "slot" and isinstance(value, list):
        value = tuple(value)
    elif name == "pipeline_id":
        with suppress(ValueError):
            value = UUID(str(value))
    texts = value if name == "tags" else [value]
    allowed = {"slot": (str, tuple), "pipeline_id": (UUID,)}.get(name, (str,))
    if not texts or not all(isinstance(text, allowed) and text for text in texts):
        raise TypeError(f"scope= gave {name}={value!r}, which names nothing: leave it out to allow all")
    return value


# -- Parts of a job ---------------------------------------------------------------------------


def check_fields(names: Any) -> frozenset[str]:
    """Return the names of parts; refuse what is none of them."""
    known = not isinstance(names, str) and isinstance(names, Collection) and set(names) <= set(FIELDS)
    if not known:
        raise BadRequest(f"fields={names!r} must be a list of some of {', '.join(FIELDS)}")
    return frozenset(names)


def shown(job: Job, fields: Collection[str]) -> dict[str, Any]:
    """Return a job with these of its parts; its errors have a traceback only if that is one of them."""
    names = *_OTHERS, *(name for name in USUAL_FIELDS if name in fields)
    parts = {name: getattr(job, name) for name in names}
    if "errors" in fields and "traceback" not in fields:
        parts["errors"] = [{name: getattr(error, name) for name in _ERROR} for error in job.errors]
    return parts


async def why_shown(app: Dibs, why: Why, scope: Scope, fields: Collection[str]) -> str:
    """Return the sentence without other jobs outside of the scope, and without errors that are not shown."""
    if scope.filter:
        counted = why.code == "limit" and not set(scope.filter) <= {"queue"}
        others = [await app.get(id) for id in why.others]  # a deleted job may have been outside of the scope
        if counted or not all(job is not None and scope.allows(job) for job in others):
            return why.discreet
    return why.sentence if "errors" in fields else why.without_errors
