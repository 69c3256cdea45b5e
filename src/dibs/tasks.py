"""Jobs as functions: `@app.job`, the registry of kinds, and the way from arguments to a new row."""

import inspect
import string
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

import msgspec

from dibs import annotations, payload
from dibs.errors import BadRequest
from dibs.ids import is_version_7, parse_id
from dibs.jobs import Job, NewJob
from dibs.operations import NewRow
from dibs.settings import MIB, Duration, Settings, lease_micros, micros, seconds
from dibs.states import SLOT_POLICIES, Retry

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_LEASE = 60
MOST_IN_SLOT = 1000

Within = Any  # a connection of the caller's; `engines.connections` says which
EnqueueOne = Callable[[NewJob, Within], Awaitable[Job]]
EnqueueOneSync = Callable[[NewJob, Within], Job]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How jobs of a kind are enqueued and run, unless a call says otherwise."""

    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    retry: Retry = field(default_factory=Retry.exponential)
    timeout: Duration | None = None
    lease: Duration = DEFAULT_LEASE
    train: str | None = None
    slot: str | tuple[Any, ...] | None = None
    slot_policy: str | None = None
    slot_limit: int | None = None
    unique: str | None = None
    unique_for: Duration | None = None
    on_conflict: str | None = None
    on_cancelled: str = "advance"
    on_failed: str = "advance"
    isolation: str | None = None

    def __post_init__(self) -> None:
        self._set("queue", payload.check_name(self.queue, "queue"))
        self._set("priority", _check_priority(self.priority))
        self._set("max_attempts", _check_attempts(self.max_attempts))
        lease_micros(self.lease)
        if not isinstance(self.retry, Retry):
            raise BadRequest(f"retry={self.retry!r}: use Retry.exponential(), Retry.fixed() or Retry.never()")
        if self.timeout is not None and micros(self.timeout, what="timeout") <= 0:
            raise BadRequest(f"timeout={self.timeout!r} must be more than 0")
        self._set("on_cancelled", _check_policy(self.on_cancelled))
        self._set("on_failed", _check_policy(self.on_failed))
        gate = (self.train, self.slot, self.slot_policy, self.slot_limit)
        _gate(*gate, checked=False)
        if self.isolation not in (None, "process"):
            raise BadRequest(f"isolation={self.isolation!r} is unknown: use 'process' or leave it out")

    def _set(self, name: str, checked: Any) -> None:
        object.__setattr__(self, name, checked)


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it just runs it."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        options: Options,
        enqueue_one: EnqueueOne,
        enqueue_one_sync: EnqueueOneSync,
    ) -> None:
        if inspect.isroutine(function):
            update_wrapper(self, function)
        else:  # an object's attributes are its own
            update_wrapper(self, function, updated=())
        self.function = function
        self.kind = payload.check_name(kind, "kind")
        self.options = options
        self.signature = Signature(function, kind)
        self.is_async = any(map(inspect.iscoroutinefunction, (function, annotations.body_of(function))))
        self.timeout = seconds(options.timeout, "timeout")
        self._enqueue_one = enqueue_one
        self._enqueue_one_sync = enqueue_one_sync
        self._using: Mapping[str, Any] = {}
        self._within: Within = None
        self._check_template("unique", options.unique)
        self._check_template("train", options.train)
        for part in options.slot if isinstance(options.slot, tuple) else (options.slot,):
            self._check_template("slot", part if isinstance(part, str) else None)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        value: R = self.function(*args, **kwargs)
        return value

    def using(self, *, within: Within = None, **options: Any) -> "Task[P, R]":
        """The same task with other options for what is enqueued through the answer."""
        for name in options:
            if name not in _USING:
                raise BadRequest(f"using({name}=…) is unknown; there are {', '.join(_USING)}, within")
        twin: Task[P, R] = object.__new__(Task)
        vars(twin).update(vars(self))
        twin.__dict__.pop("sync", None)
        twin._using = {**self._using, **options}
        twin._within = self._within if within is None else within
        return twin

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job with these arguments, to be enqueued with others by `app.enqueue`."""
        bound = self.signature.bind(args, kwargs)
        if not self._has_templates:
            return NewJob(self.kind, bound, **self._using)
        own_gate = "train" in self._using or "slot" in self._using
        self.refuse_silent_change(self._using)
        own_unique = "unique" in self._using
        keys = {} if own_gate else self.gate(bound)
        if self.options.unique is not None and not own_unique:
            keys["unique"] = self.unique(bound)
        return NewJob(self.kind, bound, **self._using, **keys, _own_gate=own_gate, _own_unique=own_unique)

    def refuse_silent_change(self, said: Mapping[str, Any]) -> None:
        """One gate in place of another is a thing to say: who leaves a train may overtake it."""
        for gate, other in (("train", "slot"), ("slot", "train")):
            template = getattr(self.options, gate)
            if template is not None and said.get(other) is not None and gate not in said:
                raise BadRequest(
                    f"{self.kind!r} has {gate}={template!r}, and a job has a train or a slot, not both: "
                    f"say using({other}=…, {gate}=None) if this one is to leave it"
                )

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return await self._enqueue_one(self.new(*args, **kwargs), self._within)

    @cached_property
    def sync(self) -> "SyncTask[P, R]":
        return SyncTask(self)

    @property
    def _has_templates(self) -> bool:
        return (self.options.unique, self.options.train, self.options.slot) != (None, None, None)

    @property
    def has_gate(self) -> bool:
        return self.options.train is not None or self.options.slot is not None

    def gate(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """The train or slot that the kind's template makes of these arguments."""
        if not self.has_gate:
            return {}
        train, slot = self.options.train, self.options.slot
        values = self.signature.with_defaults(bound)
        if train is not None:
            return {"train": train.format(**values)}
        if isinstance(slot, tuple):
            return {"slot": tuple(_filled(part, values) for part in slot)}
        return {"slot": str.format(slot or "", **values)}

    def unique(self, bound: Mapping[str, Any]) -> str | None:
        """The key that the kind's template makes of these arguments."""
        template = self.options.unique
        return None if template is None else template.format(**self.signature.with_defaults(bound))

    def _check_template(self, option: str, template: str | None) -> None:
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(template or "") if name is not None]
        except ValueError as error:
            raise BadRequest(f"{option}={template!r} of {self.kind!r}: {error}") from None
        for name in names:
            if name not in self.signature.names:
                raise BadRequest(f"{option}={template!r} of {self.kind!r}: {name!r} is not an argument")


class SyncTask(Generic[P, R]):
    """The blocking face of a task."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return self._task._enqueue_one_sync(self._task.new(*args, **kwargs), self._task._within)


class Signature:
    """The arguments a kind takes: by name, as JSON, checked against the annotations."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        body = annotations.body_of(function)
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise BadRequest(f"{kind!r} yields, so calling it runs nothing: a job's handler returns")
        self._kind = kind
        self._defaults: dict[str, Any] = {}
        self.context: str | None = None
        self._open_ended = False
        fields: list[tuple[str, Any, Any]] = []
        hints = annotations.resolve(function, kind)
        for parameter in inspect.signature(function).parameters.values():
            self._take(parameter, hints[parameter.name], fields)
        self.names = tuple(name for name, *_ in fields)
        shape = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=not self._open_ended
        )
        self._read = payload.decoder(shape)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; missing and unknown ones are found by `check`."""
        if len(args) > len(self.names):
            raise BadRequest(f"{self._kind!r} takes {len(self.names)} arguments, not {len(args)}")
        bound = dict(zip(self.names, args, strict=False))
        if not kwargs:
            return bound
        if twice := bound.keys() & kwargs.keys():
            raise BadRequest(f"{self._kind!r} got its argument {min(twice)!r} twice")
        return {**bound, **kwargs}

    def with_defaults(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self.names if name not in bound and name not in self._defaults]
        if missing:
            raise BadRequest(f"{self._kind!r} misses its argument {missing[0]!r}")
        return {**self._defaults, **bound}

    def check(self, text: str) -> Any:
        """These arguments would fit a call; `BadRequest` says what does not."""
        try:
            return self._read(text)
        except (msgspec.MsgspecError, ValueError, NotImplementedError, TypeError) as error:
            raise BadRequest(f"the arguments of {self._kind!r} don't fit: {error}") from None

    def read(self, text: str) -> dict[str, Any]:
        """The arguments for a call, each of its annotated type."""
        arguments = msgspec.structs.asdict(self.check(text))
        if self._open_ended:
            arguments = {**payload.decode(text), **arguments}
        if not self._defaults:
            return arguments
        return {name: value for name, value in arguments.items() if value is not msgspec.UNSET}

    def _take(self, parameter: inspect.Parameter, hint: Any, fields: list[Any]) -> None:
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                raise BadRequest(
                    f"{self._kind!r}: argument {parameter.name!r} has no name to store it under; "
                    "jobs take arguments that can be given by name"
                )
            case _ if annotations.is_context(hint) and self.context is not None:
                raise BadRequest(f"{self._kind!r} asks for its Context twice: one of them will do")
            case _ if annotations.is_context(hint):
                self.context = parameter.name
            case inspect.Parameter.VAR_KEYWORD:
                self._open_ended = True
            case _ if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, hint, msgspec.NODEFAULT))
            case _:
                self._defaults[parameter.name] = parameter.default
                fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))


@dataclass(frozen=True, slots=True)
class Registry:
    """The kinds that this process knows."""

    settings: Settings
    tasks: dict[str, Task[..., Any]] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    """Those of the kinds whose lease is not the usual one, in microseconds."""

    def add(self, task: Task[..., Any]) -> None:
        if task.kind in self.tasks:
            raise BadRequest(f"the kind {task.kind!r} is already registered; give one of them a name=")
        self.tasks[task.kind] = task
        if (lease := lease_micros(task.options.lease)) != lease_micros(DEFAULT_LEASE):
            self.leases[task.kind] = lease

    def remove(self, task: Task[..., Any]) -> None:
        del self.tasks[task.kind]
        self.leases.pop(task.kind, None)

    def options(self, kind: str) -> Options:
        task = self.tasks.get(kind)
        return DEFAULTS if task is None else task.options

    def prepare(self, new: NewJob, parent: Job | None = None) -> NewRow:
        """Check a new job whole, and resolve what it leaves open. Nothing has been written yet."""
        if not isinstance(new, NewJob):
            raise BadRequest(f"can't enqueue {new!r}: pass NewJob(…) or task.new(…)")
        task = self.tasks.get(new.kind) if isinstance(new.kind, str) else None
        kind = payload.check_name(new.kind, "kind") if task is None else task.kind
        options = DEFAULTS if task is None else task.options
        delay, run_at = _due(new)
        gate, key = self._gate(new, task, options), _key(new, task)
        id = parse_id(new.id)
        if not is_version_7(id):
            raise BadRequest(f"id={id} is not a UUIDv7; leave it out and dibs makes one")
        return (
            id,
            kind,
            options.queue if new.queue is None else payload.check_name(new.queue, "queue"),
            self._args(new, task),
            options.priority if new.priority is None else _check_priority(new.priority),
            run_at,
            delay,
            options.max_attempts if new.max_attempts is None else _check_attempts(new.max_attempts),
            key,
            options.on_cancelled if new.on_cancelled is None else _check_policy(new.on_cancelled),
            options.on_failed if new.on_failed is None else _check_policy(new.on_failed),
            _pipeline(new, parent),
            None if parent is None else parent.id,
            _tags(new.tags),
            self._meta(new.meta),
            *gate,
            *_unique(key, new, options),
        )

    def _gate(self, new: NewJob, task: Task[..., Any] | None, options: Options) -> tuple[Any, ...]:
        """Its train, or its slot with policy and limit: as the job says, else as its kind does."""
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
        return _gate(train, slot, policy, limit)

    def _args(self, new: NewJob, task: Task[..., Any] | None) -> str:
        args = {} if new.args is None else _check_mapping(new.args, f"args of {new.kind!r}")
        text = payload.encode(args, f"args of {new.kind!r}", self.settings.max_payload)
        if task is not None:
            task.signature.check(text)
        return text

    def _meta(self, meta: Mapping[str, Any] | None) -> str:
        if meta is None:
            return "{}"
        return payload.encode(_check_mapping(meta, "meta"), "meta", self.settings.max_payload)


_USING = (
    *("queue", "priority", "run_at", "delay", "max_attempts", "train", "slot", "slot_policy"),
    *("slot_limit", "unique", "unique_for", "on_conflict", "pipeline_id", "tags", "meta"),
    *("on_cancelled", "on_failed"),
)


def _due(new: NewJob) -> tuple[int | None, Any]:
    if new.delay is not None and new.run_at is not None:
        raise BadRequest("give delay= or run_at=, not both")
    delay = None if new.delay is None else micros(new.delay, what="delay")
    if delay is not None and delay < 0:
        raise BadRequest(f"delay={new.delay!r} lies in the past; leave it out to run now")
    return delay, None if new.run_at is None else payload.check_moment(new.run_at, "run_at")


_NO_GATE = (None, None, None, None)


def _gate(train: Any, slot: Any, policy: Any, limit: Any, *, checked: bool = True) -> tuple[Any, ...]:
    """The columns train, slot, slot_policy, slot_limit; `checked` is False for the templates of a kind."""
    if train is not None and slot is not None:
        raise BadRequest("a job has a train or a slot, not both: each decides alone who may go")
    if slot is None and (policy, limit) != (None, None):
        raise BadRequest("slot_policy= and slot_limit= need a slot=; without one there is nothing to share")
    if policy is not None and policy not in SLOT_POLICIES:
        raise BadRequest(f"slot_policy={policy!r} is unknown: use {', '.join(map(repr, SLOT_POLICIES))}")
    if slot is None:
        return _NO_GATE if train is None else (payload.check_name(train, "train"), None, None, None)
    places = 1 if limit is None else payload.check_whole(limit, "slot_limit", 1, MOST_IN_SLOT)
    return (
        None,
        slot_name(slot) if checked else None,
        "wait" if policy is None else str.__str__(policy),
        places,
    )


def slot_name(slot: object) -> str:
    """A slot's key as text: a string is its own, a tuple is written as JSON (so None equals None)."""
    if not isinstance(slot, str | tuple):
        raise BadRequest(f"slot must be a string or a tuple, not {type(slot).__name__}")
    if isinstance(slot, str):
        return payload.check_name(slot, "slot")
    if not slot:
        raise BadRequest("slot=() has no parts; name at least one, or leave slot= out")
    text = payload.encode(list(slot), "slot", MIB)
    if len(text) > payload.LONGEST_NAME:
        raise BadRequest(f"slot must have at most {payload.LONGEST_NAME} characters as JSON, not {len(text)}")
    return text


def slot_from_text(text: str) -> str | tuple[Any, ...]:
    """A slot's key as people write it: a name, or its parts as a JSON array."""
    if not text.startswith("["):
        return text
    try:
        return tuple(msgspec.json.decode(text, type=list[Any]))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"{text!r} can't be read as a JSON array: {error}") from None


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """A part that is one argument and nothing else stays what it is: None equals None, 7 is not "7"."""
    if not isinstance(part, str):
        return part
    name = part[1:-1]
    return values[name] if part == f"{{{name}}}" and name in values else part.format(**values)


def _key(new: NewJob, task: Task[..., Any] | None) -> str | None:
    """Its unique key: as the job says, else as its kind does."""
    key = new.unique
    if key is None and task is not None and task.options.unique is not None and not new._own_unique:
        key = task.unique(_check_mapping(new.args or {}, f"args of {new.kind!r}"))
    return None if key is None else payload.check_name(key, "unique")


def _unique(key: str | None, new: NewJob, options: Options) -> tuple[int | None, bool]:
    """The columns unique_for, replaces."""
    lasts = options.unique_for if new.unique_for is None else new.unique_for
    conflict = options.on_conflict if new.on_conflict is None else new.on_conflict
    if key is None:
        if (new.unique_for, new.on_conflict) != (None, None):
            raise BadRequest("unique_for= and on_conflict= need a unique= key")
        return None, False
    if conflict not in (None, "keep", "replace"):
        raise BadRequest(f"on_conflict={conflict!r} is unknown: use 'keep' or 'replace'")
    period = None if lasts is None else micros(lasts, what="unique_for")
    if period is not None and period <= 0:
        raise BadRequest(f"unique_for={lasts!r} must be more than 0")
    return period, conflict == "replace"


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


def _check_priority(priority: object) -> int:
    return payload.check_whole(priority, "priority", payload.LOWEST_PRIORITY, payload.HIGHEST_PRIORITY)


def _check_attempts(attempts: object) -> int:
    return payload.check_whole(attempts, "max_attempts", 1, payload.MOST_ATTEMPTS)


def _check_policy(policy: str) -> str:
    if policy not in ("advance", "hold"):
        raise BadRequest(f"{policy!r} is not a policy for on_cancelled or on_failed: use 'advance' or 'hold'")
    return "hold" if policy == "hold" else "advance"


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


def with_options(options: Options, **changes: Any) -> Options:
    """The options with those changed that were really given."""
    return replace(options, **{name: value for name, value in changes.items() if value is not None})


DEFAULTS = Options()
