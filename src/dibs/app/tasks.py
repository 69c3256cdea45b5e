"""Jobs as functions: what `@app.job` makes of one, and the arguments that it takes."""

import inspect
import string
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from dibs.app.context import Context
from dibs.errors import BadRequest
from dibs.faces import AsyncFace, Call, Calls, SyncFace, make, verb
from dibs.jobs import payload
from dibs.jobs.job import Job, NewJob
from dibs.jobs.options import Options, Using
from dibs.settings import seconds

if TYPE_CHECKING:
    from dibs.app.dibs import Dibs

P = ParamSpec("P")
R = TypeVar("R")

Within = Any  # a connection of the caller's; `engines.sql.within` says which

_USING = tuple(Using.__annotations__)


class TaskVerbs(Generic[P, R]):
    """The verb of a task, declared once for both faces."""

    @property
    def _task(self) -> "Task[P, R]":
        raise NotImplementedError

    @verb
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Calls[Job]:
        """Store a job with these arguments; if its unique key is taken, return the job that has it."""
        task = self._task
        app, new, within = task._app, task.new(*args, **kwargs), task._within
        [job] = yield from make(
            Call(lambda: app.sync.enqueue(new, within=within), lambda: app.enqueue(new, within=within))
        )
        return job


class Task(TaskVerbs[P, R], AsyncFace):
    """A function that can be enqueued. Calling it just runs it."""

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
        self.signature = Signature(function, kind)
        self.is_async = any(map(inspect.iscoroutinefunction, (function, body_of(function))))
        self.timeout = seconds(options.timeout, "timeout")
        self._app = app
        self._using: Mapping[str, Any] = {}
        self._within: Within = None
        for option in ("unique", "train", "slot"):
            for template in _texts(getattr(options, option)):
                self._check_template(option, template)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        value: R = self.function(*args, **kwargs)
        return value

    def using(self, *, within: Within = None, **options: Unpack[Using]) -> "Task[P, R]":
        """Return the same task with other options for what is enqueued through it."""
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
    def _task(self) -> "Task[P, R]":
        return self

    @cached_property
    def sync(self) -> "SyncTask[P, R]":
        """The same task on the sync face."""
        return SyncTask(self)

    @property
    def _has_templates(self) -> bool:
        return (self.options.unique, self.options.train, self.options.slot) != (None, None, None)

    @property
    def has_gate(self) -> bool:
        return self.options.train is not None or self.options.slot is not None

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


class SyncTask(TaskVerbs[P, R], SyncFace):
    """The sync face of a task."""

    def __init__(self, task: Task[P, R]) -> None:
        self._task_ = task

    @property
    def _task(self) -> Task[P, R]:
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
        hints = resolve(function, kind)
        for parameter in inspect.signature(function).parameters.values():
            self._take(parameter, hints[parameter.name], fields)
        self.names = tuple(name for name, *_ in fields)
        shape = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=not self._open_ended
        )
        self._read = payload.decoder(shape)

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

    def check(self, text: str) -> Any:
        """Check that these arguments would fit a call; `BadRequest` says what does not."""
        try:
            return self._read(text)
        except (msgspec.MsgspecError, ValueError, NotImplementedError, TypeError) as error:
            raise BadRequest(f"the arguments of {self._kind!r} don't fit: {error}") from None

    def read(self, text: str) -> dict[str, Any]:
        """Return the arguments for a call, each of its annotated type."""
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


def _texts(template: Any) -> Iterator[str]:
    """Yield the texts that a template is made of."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, tuple | list):
        for part in template:
            yield from _texts(part)


def resolve(function: Callable[..., Any], kind: str) -> dict[str, Any]:
    """Return the type of each argument; one that can't be resolved is `Any`, with a warning that names it."""
    body = body_of(function)
    module = getattr(inspect.unwrap(body), "__globals__", {})
    around = _around(body, module)
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            hints[name] = Any
            continue
        try:
            hints[name] = _known_to_msgspec(_evaluated(parameter.annotation, module, around))
        except Exception as error:  # an annotation is code of its author, and may raise anything
            hints[name] = Any
            _warn(body, f"argument {name!r} of {kind!r}", parameter.annotation, error)
    return hints


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a call runs in the end: behind a `partial`, and of a callable object its `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def is_context(hint: Any) -> bool:
    """Return whether an argument is the context: also one that may be None, or is `Annotated`."""
    if typing.get_origin(hint) is typing.Annotated:
        return is_context(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(one is types.NoneType or is_context(one) for one in typing.get_args(hint))
    return hint is Context


def _evaluated(annotation: Any, module: Mapping[str, Any], around: Mapping[str, Any]) -> Any:
    """Evaluate an annotation; `Context` is always known, as many import it only for their type checker."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, {"Context": Context, **module}, dict(around), include_extras=True)[
        "it"
    ]


def _around(function: Callable[..., Any], module: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in the functions that this one is written in, while they run."""
    names: dict[str, Any] = {}
    place = getattr(function, "__qualname__", "")
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module and place.startswith(f"{frame.f_code.co_qualname}."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _known_to_msgspec(hint: Any) -> Any:
    """Return the annotation, or Any where it can't be checked (a union of types that look alike in JSON)."""
    if is_context(hint):
        return hint
    try:
        payload.decoder(hint)
    except TypeError:
        return Any
    return hint


def _warn(function: Callable[..., Any], argument: str, annotation: Any, error: Exception) -> None:
    """Warn at the line of the function itself, for that is what has to change."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    warnings.warn_explicit(
        f"{argument} is not checked: its annotation {words!r} can't be resolved ({error}); "
        "import what it names where it runs, not only under TYPE_CHECKING",
        UserWarning,
        filename=getattr(code, "co_filename", "<unknown>"),
        lineno=getattr(code, "co_firstlineno", 1),
        module=getattr(function, "__module__", None),
    )
