"""The kinds that a process knows, and the way from a new job to its row."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from dibs.app.tasks import Task
from dibs.errors import BadRequest
from dibs.jobs import payload
from dibs.jobs.ids import is_version_7, parse_id
from dibs.jobs.job import Job, NewJob, not_a_new_job
from dibs.jobs.options import (
    DEFAULT_LEASE,
    DEFAULTS,
    NO_GATE,
    Options,
    check_attempts,
    check_policy,
    check_priority,
    gate_columns,
    unique_columns,
)
from dibs.operations.enqueue import NewRow
from dibs.settings import Settings, lease_micros


@dataclass(frozen=True, slots=True)
class Registry:
    """The kinds that this process knows."""

    settings: Settings
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    """The leases of kinds that don't have the usual one, in microseconds."""
    finders: list[Callable[[str], None]] = field(default_factory=list)
    """Of a framework: each is asked once for a kind that is not known, and may register it."""
    asked: set[str] = field(default_factory=set)

    def add(self, task: Task[..., Any]) -> None:
        if task.kind in self.tasks:
            raise BadRequest(f"the kind {task.kind!r} is already registered; give one of them a name=")
        self.tasks[task.kind] = task
        if (lease := lease_micros(task.options.lease)) != lease_micros(DEFAULT_LEASE):
            self.leases[task.kind] = lease

    def remove(self, task: Task[..., Any]) -> None:
        del self.tasks[task.kind]
        self.leases.pop(task.kind, None)

    def knows(self, kind: str) -> bool:
        """Return whether the kind is registered, also if a finder does that now."""
        if kind not in self.tasks and self.finders and kind not in self.asked:
            self.asked.add(kind)
            for find in self.finders:
                find(kind)
        return kind in self.tasks

    def options(self, kind: str) -> Options:
        task = self.tasks.get(kind)
        return DEFAULTS if task is None else task.options

    def prepare(self, new: NewJob, parent: Job | None = None) -> NewRow:
        """Check a new job whole, and resolve what it leaves open. Nothing has been written yet."""
        if not isinstance(new, NewJob):
            raise not_a_new_job(new)
        task = self.tasks.get(new.kind) if isinstance(new.kind, str) else None
        options = DEFAULTS if task is None else task.options
        delay = run_at = None
        if new.delay is not None or new.run_at is not None:
            delay, run_at = payload.check_due(new.run_at, new.delay)
        gate, key = self._gate(new, task, options), _key(new, task)
        args = {} if new.args is None else _check_mapping(new.args, f"args of {new.kind!r}")
        kind = payload.check_name(new.kind, "kind") if task is None else task.kind
        text = payload.encode(args, f"args of {new.kind!r}", self.settings.max_payload)
        if task is not None:
            task.signature.check(text, args)
        return (
            new.id if new._fresh else _checked_id(new.id),
            kind,
            options.queue if new.queue is None else payload.check_name(new.queue, "queue"),
            text,
            options.priority if new.priority is None else check_priority(new.priority),
            run_at,
            delay,
            options.max_attempts if new.max_attempts is None else check_attempts(new.max_attempts),
            key,
            options.on_cancelled if new.on_cancelled is None else check_policy(new.on_cancelled),
            options.on_failed if new.on_failed is None else check_policy(new.on_failed),
            _pipeline(new, parent),
            None if parent is None else parent.id,
            _tags(new.tags),
            self._meta(new.meta),
            *gate,
            *_unique(key, new, options),
        )

    def _gate(self, new: NewJob, task: Task[..., Any] | None, options: Options) -> tuple[Any, ...]:
        """Return its train, or its slot with policy and limit: as the job says, else as its kind does."""
        train, slot, policy, limit = new.train, new.slot, new.slot_policy, new.slot_limit
        if task is not None and not new._own_gate:
            if train is None and slot is None and task.has_gate:
                given = task.gate(_check_mapping(new.args or {}, f"args of {new.kind!r}"))
                train, slot = given.get("train"), given.get("slot")
            elif (train is None) != (slot is None):
                task.refuse_silent_change({"slot": slot} if train is None else {"train": train})
        if slot is not None:
            policy = options.slot_policy if policy is None else policy
            limit = options.slot_limit if limit is None else limit
        columns = (train, slot, policy, limit)
        return NO_GATE if columns == NO_GATE else gate_columns(*columns)

    def _meta(self, meta: Mapping[str, Any] | None) -> str:
        if meta is None:
            return "{}"
        return payload.encode(_check_mapping(meta, "meta"), "meta", self.settings.max_payload)


def _checked_id(given: UUID | str) -> UUID:
    id = parse_id(given)
    if not is_version_7(id):
        raise BadRequest(f"id={id} is not a UUIDv7; leave it out and dibs makes one")
    return id


def _key(new: NewJob, task: Task[..., Any] | None) -> str | None:
    """Return its unique key: as the job says, else as its kind does."""
    key = new.unique
    if key is None and task is not None and task.options.unique is not None and not new._own_unique:
        key = task.unique(_check_mapping(new.args or {}, f"args of {new.kind!r}"))
    return None if key is None else payload.check_name(key, "unique")


def _unique(key: str | None, new: NewJob, options: Options) -> tuple[int | None, bool]:
    """Return the columns unique_for, replaces."""
    lasts = options.unique_for if new.unique_for is None else new.unique_for
    conflict = options.on_conflict if new.on_conflict is None else new.on_conflict
    if key is None:
        if (new.unique_for, new.on_conflict) != (None, None):
            raise BadRequest("unique_for= and on_conflict= need a unique= key")
        return None, False
    return unique_columns(lasts, conflict)


def _pipeline(new: NewJob, parent: Job | None) -> UUID | None:
    own = None if new.pipeline_id is None else parse_id(new.pipeline_id)
    if parent is None:
        return own
    shared = parent.pipeline_id or parent.id
    if own not in (None, shared):
        raise BadRequest(
            f"pipeline_id={own}: what follows job {parent.id} is of its pipeline, {shared}; leave it out, or "
            "enqueue that job by itself"
        )
    return shared


def _check_mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict | Mapping) or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"{what} must be a mapping of names to values, not {value!r}")
    return value


def _tags(tags: Sequence[str]) -> str:
    if tags in ((), []):
        return "[]"
    if isinstance(tags, str) or not isinstance(tags, Collection) or len(tags) > payload.MOST_TAGS:
        raise BadRequest(f"tags must be a list of at most {payload.MOST_TAGS} strings, not {tags!r}")
    return msgspec.json.encode([payload.check_name(tag, "tag") for tag in tags]).decode()
