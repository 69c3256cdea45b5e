"""Jobs as functions: what `@app.job` makes of one, and the arguments that it takes."""

import inspect
import re
import string
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from dibs.app.annotations import TEXT_LIKE, body_of, is_context, resolve, result_reader
from dibs.errors import BadRequest, JobCancelled, JobFailed
from dibs.faces import AsyncFace, Call, Calls, SyncFace, make, run, run_async, verb
from dibs.jobs import payload
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import Options, Using
from dibs.jobs.states import JobState
from dibs.settings import Duration, seconds
from dibs.text import meant

if TYPE_CHECKING:
    from dibs.app.dibs import Dibs

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Within = Any  # a connection of the caller's; `engines.sql.within` says which

# What msgspec says of the arguments as a whole, in words for a call.
MISFITS = (
    (r"^Object missing required field `([^`]+)`$", r"its argument '\1' is missing"),
    (r"^Object contains unknown field `([^`]+)`$", r"it takes no argument '\1'"),
    (r"^(.*) - at `\$\.(\w+)(.*)`$", r"its argument '\2'\3: \1"),
)

_USING = tuple(Using.__annotations__)


class TaskVerbs(Generic[P, R_co]):
    """The verb of a task, declared once for both faces."""

    @property
    def _task(self) -> "Task[P, R_co]":
        raise NotImplementedError

    @verb
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Calls[Job]:
        """Store a job with these arguments; if its unique key is taken, return the job that has it."""
        task = self._task
        [job] = yield from task._app._enqueue([task.new(*args, **kwargs)], task._within)
        return job

    def _result(self, job: Job | UUID | str, timeout: Duration | None) -> Calls[Any]:
        task, app = self._task, self._task._app
        id = task.own(job).id if isinstance(job, Job) else job
        waiting = Call(lambda: app.sync.wait(id, timeout=timeout), lambda: app.wait(id, timeout=timeout))
        done = task.own((yield from make(waiting)))
        if done.state == JobState.succeeded:
            return task.signature.result(done.result)
        raise JobFailed(done) if done.state == JobState.failed else JobCancelled(done)


class Task(TaskVerbs[P, R_co], AsyncFace):
    """A function to enqueue; calling it runs it. Example: `await send_receipt.enqueue(order_id=42)`"""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        options: Options,
        app: "Dibs",
    ) -> None:
        if inspect.isroutine(function):
            update_wrapper(self, function)
        else:  # an object's attributes are its own
            update_wrapper(self, function, updated=())
        self.function = function
        self.kind = payload.check_name(kind, "kind")
        self.options = options
        self.has_gate = options.train is not None or options.slot is not None
        self.signature = Signature(function, kind)
        self.is_async = any(map(inspect.iscoroutinefunction, (function, body_of(function))))
        self.timeout = seconds(options.timeout, "timeout")
        self._app = app
        self._using: Mapping[str, Any] = {}
        self._within: Within = None
        for option in ("unique", "train", "slot"):
            for template in _texts(getattr(options, option)):
                self._check_template(option, template)

    @overload
    async def wait(
        self: "Task[P, Coroutine[Any, Any, T]]", job: Job | UUID | str, *, timeout: Duration | None = None
    ) -> T: ...
    @overload
    async def wait(self, job: Job | UUID | str, *, timeout: Duration | None = None) -> R_co: ...
    async def wait(self, job: Job | UUID | str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of this kind has finished, and return its result as the handler returned it.

        `JobFailed` and `JobCancelled` have the job; `TimeoutError` when it takes too long.
        """
        return await run_async(self._result(job, timeout))

    def own(self, job: Job) -> Job:
        """Return the job if it is of this kind; its result would be of another type."""
        if job.kind != self.kind:
            raise BadRequest(
                f"job {job.id} is a {job.kind!r}, not a {self.kind!r}: wait for it with app.wait"
            )
        return job

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        value: R_co = self.function(*args, **kwargs)
        return value

    def __repr__(self) -> str:
        using = ", ".join(f"{name}={value!r}" for name, value in self._using.items())
        return f"<Task {self.kind!r}{using and ' using '}{using}>"

    def using(self, *, within: Within = None, **options: Unpack[Using]) -> "Task[P, R_co]":
        """Return the same task with other options for what is enqueued through it."""
        for name, value in options.items():
            if name not in _USING:
                raise BadRequest(f"using({name}={value!r}) is unknown: {meant(name, (*_USING, 'within'))}")
        twin: Task[P, R_co] = object.__new__(Task)
        vars(twin).update(vars(self))
        twin.__dict__.pop("sync", None)
        twin._using = {**self._using, **options}
        twin._within = self._within if within is None else within
        return twin

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job with these arguments, to be enqueued with others by `app.enqueue`."""
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
        """Refuse another gate than the kind's unless the caller says so: the job might overtake its train."""
        for gate, other in (("train", "slot"), ("slot", "train")):
            template = getattr(self.options, gate)
            if template is not None and said.get(other) is not None and gate not in said:
                raise BadRequest(
                    f"{self.kind!r} has {gate}={template!r}, and a job has a train or a slot, not both: "
                    f"say using({other}=…, {gate}=None) if this one is to leave it"
                )

    @property
    def _task(self) -> "Task[P, R_co]":
        return self

    @cached_property
    def sync(self) -> "SyncTask[P, R_co]":
        """The same task on the sync face."""
        return SyncTask(self)

    @property
    def _has_templates(self) -> bool:
        return (self.options.unique, self.options.train, self.options.slot) != (None, None, None)

    def gate(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return the train or slot that the kind's template makes of these arguments."""
        if not self.has_gate:
            return {}
        option = "slot" if self.options.train is None else "train"
        return {option: self._filled(option, getattr(self.options, option), self._values(bound))}

    def unique(self, bound: Mapping[str, Any]) -> str | None:
        """Return the unique key that the kind's template makes of these arguments."""
        template = self.options.unique
        return None if template is None else str(self._filled("unique", template, self._values(bound)))

    def _values(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the handler gets them: a time and its text in JSON are the same train."""
        values = self.signature.with_defaults(bound)
        text = payload.encode(bound, f"args of {self.kind!r}", sys.maxsize)  # how much may be said later
        return {**values, **self.signature.read(text)}

    def _filled(self, option: str, template: Any, values: Mapping[str, Any]) -> Any:
        """Fill a template. A part that is one argument and nothing else keeps its type: 7 is not "7"."""
        if isinstance(template, tuple | list):
            return tuple(self._filled_part(option, part, values) for part in template)
        try:
            return str.format(template, **values)
        except Exception as error:  # an argument's own `__format__` takes part, and may raise anything
            raise BadRequest(f"{option}={template!r} of {self.kind!r} can't be filled: {error}") from None

    def _filled_part(self, option: str, part: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(part, str) and part == f"{{{part[1:-1]}}}" and part[1:-1] in values:
            return values[part[1:-1]]
        return self._filled(option, part, values) if isinstance(part, str | tuple | list) else part

    def _check_template(self, option: str, template: str) -> None:
        what = f"{option}={template!r} of {self.kind!r}"
        try:
            fields = [field for field in string.Formatter().parse(template) if field[1] is not None]
        except ValueError as error:
            raise BadRequest(f"{what}: {error}") from None
        for _, name, spec, conversion in fields:
            if name not in self.signature.names:
                raise BadRequest(f"{what}: {name!r} is not an argument")
            if conversion not in (None, "a", "r", "s"):
                raise BadRequest(f"{what}: '!{conversion}' is unknown: use !s, !r or !a")
            self._check_template(option, spec or "")


class SyncTask(TaskVerbs[P, R_co], SyncFace):
    """The sync face of a task. Example: `send_receipt.sync.enqueue(42)`"""

    def __init__(self, task: Task[P, R_co]) -> None:
        self._task_ = task

    def __repr__(self) -> str:
        return f"<Sync{repr(self._task_)[1:]}"

    @overload
    def wait(
        self: "SyncTask[P, Coroutine[Any, Any, T]]", job: Job | UUID | str, *, timeout: Duration | None = None
    ) -> T: ...
    @overload
    def wait(self, job: Job | UUID | str, *, timeout: Duration | None = None) -> R_co: ...
    def wait(self, job: Job | UUID | str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of this kind has finished, and return its result as the handler returned it.

        `JobFailed` and `JobCancelled` have the job; `TimeoutError` when it takes too long.
        """
        return run(self._result(job, timeout))

    @property
    def _task(self) -> Task[P, R_co]:
        return self._task_


class Signature:
    """The arguments a kind takes: by name, as JSON, checked against the annotations."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        body = body_of(function)
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise BadRequest(f"{kind!r} yields, so calling it runs nothing: a job's handler returns")
        self._kind = kind
        self._defaults: dict[str, Any] = {}
        self.context: str | None = None
        self._open_ended = False
        fields: list[tuple[str, Any, Any]] = []
        hints, self._texts = resolve(function, kind)
        for parameter in inspect.signature(function).parameters.values():
            self._take(parameter, hints[parameter.name], fields)
        self.names = tuple(name for name, *_ in fields)
        shape = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=not self._open_ended
        )
        self._read = payload.decoder(shape)
        self._function = function
        self._read_result = result_reader(function)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name; missing and unknown ones are found by `check`."""
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

    def check(self, text: str, given: Mapping[str, Any] | None = None) -> Any:
        """Check that these arguments would fit a call, also as given; `BadRequest` says what does not."""
        if given is not None and self._texts:
            self._check_texts(given)
        try:
            return self._read(text)
        except (msgspec.MsgspecError, ValueError, NotImplementedError, TypeError) as error:
            raise BadRequest(f"the arguments of {self._kind!r} don't fit: {_misfit(error)}") from None

    def _check_texts(self, given: Mapping[str, Any]) -> None:
        """Refuse what the handler would get as another value: JSON makes text of a time, an id or bytes."""
        for name, kinds in self._texts.items():
            value = given.get(name)
            if type(value) is not str and isinstance(value, TEXT_LIKE) and not isinstance(value, kinds):
                raise BadRequest(
                    f"argument {name!r} of {self._kind!r} is a str and would get the text of a "
                    f"{type(value).__name__}: pass a str, or annotate it `str | {type(value).__name__}`"
                )

    def read(self, text: str) -> dict[str, Any]:
        """Return the arguments for a call, each of its annotated type."""
        arguments = msgspec.structs.asdict(self.check(text))
        if self._open_ended:
            arguments = {**payload.decode(text), **arguments}
        if not self._defaults:
            return arguments
        return {name: value for name, value in arguments.items() if value is not msgspec.UNSET}

    def result(self, value: Any) -> Any:
        """Return a job's result as the type that the handler's annotation names, or as it is."""
        read = self._read_result or result_reader(self._function)
        if value is None or read is None:
            return value
        try:
            return read(payload.json_text(value))
        except (msgspec.MsgspecError, ValueError, NotImplementedError, TypeError):
            return value

    def _take(self, parameter: inspect.Parameter, hint: Any, fields: list[Any]) -> None:
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                raise BadRequest(
                    f"{self._kind!r}: argument {parameter.name!r} has no name to store it under; "
                    "jobs take arguments that can be given by name"
                )
            case _ if is_context(hint) and self.context is not None:
                raise BadRequest(f"{self._kind!r} asks for its Context twice: one of them will do")
            case _ if is_context(hint):
                self.context = parameter.name
            case inspect.Parameter.VAR_KEYWORD:
                self._open_ended = True
            case _ if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, hint, msgspec.NODEFAULT))
            case _:
                self._defaults[parameter.name] = parameter.default
                fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))


def _misfit(error: Exception) -> str:
    """Return what msgspec found, with the name of the argument first."""
    text = str(error)
    for pattern, words in MISFITS:
        text = re.sub(pattern, words, text)
    return text


def _texts(template: Any) -> Iterator[str]:
    """Yield the texts that a template is made of."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, tuple | list):
        for part in template:
            yield from _texts(part)
