"""What a handler says instead of a result, which exceptions are worth a retry, and what is kept of them.

An exception may be hostile: `__str__` that raises, a message of a hundred megabytes, lone
surrogates, a cycle of causes. Recording it must never fail and never hurt the worker.
"""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any

from dibs.errors import BadRequest, UnfitArguments
from dibs.jobs.job import Job, JobError
from dibs.jobs.payload import json_text
from dibs.settings import Duration

ErrorClasses = tuple[type[BaseException], ...]


class HandlerOutcome(Exception):
    """An outcome that a handler raises or returns, as it likes; equal to another that says the same."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class Snooze(HandlerOutcome):
    """Not now: run the job again after this long. It costs no attempt. Example: `raise Snooze(30)`"""

    __match_args__ = ("seconds",)

    def __init__(self, seconds: Duration) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Cancel(HandlerOutcome):
    """This job should not be done after all: it ends as cancelled. Example: `raise Cancel("order gone")`"""

    __match_args__ = ("reason",)

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(HandlerOutcome):
    """This can't succeed: it ends as failed, whatever attempts are left. Example: `raise Fail("unknown")`"""

    __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def said_by(error: BaseException) -> BaseException:
    """Return what an exception says: of a group with nothing but outcomes the most final one, else itself."""
    leaves = list(_leaves(error))
    if (len(leaves) == 1 and leaves[0] is error) or not all(
        isinstance(leaf, HandlerOutcome) for leaf in leaves
    ):
        return error
    return next(
        leaf for kind in (Fail, Cancel, Snooze, HandlerOutcome) for leaf in leaves if isinstance(leaf, kind)
    )


def is_worth_retrying(error: BaseException, retry_on: ErrorClasses | None, give_up_on: ErrorClasses) -> bool:
    """Return whether another attempt may do better, as the kind's `retry_on` and `give_up_on` say."""
    leaves = list(_leaves(error))
    if any(isinstance(one, (Fail, UnfitArguments, *give_up_on)) for one in (error, *leaves)):
        return False
    return retry_on is None or isinstance(error, retry_on) or all(isinstance(one, retry_on) for one in leaves)


def check_error_classes(given: Any, option: str) -> ErrorClasses:
    """Return the exception classes that an option names; a single one is a tuple of one."""
    several = (given,) if isinstance(given, type) else given
    classes = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise BadRequest(
            f"{option}={given!r} must name exception classes, like (ConnectionError, TimeoutError)"
        )
    return classes


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, or the only one."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


# -- What is kept of an exception: type, message and traceback as capped, harmless text -----------

LONGEST_NAME = 200
LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 16_000
MOST_FRAMES = 50
MOST_CAUSES = 10
MOST_ERRORS = 50


def describe(error: BaseException) -> tuple[str, str, str | None]:
    """Return (type, message, traceback), whatever the exception is like."""
    return (
        safe_text(_kind(error), LONGEST_NAME),
        safe_text(_message(error), LONGEST_MESSAGE),
        frames_of(error),
    )


def error_entry(
    job: Job, at: datetime, *, type: str, message: str, traceback: str | None = None
) -> dict[str, Any]:
    """Return the failed attempt of a claimed job as it is stored."""
    return {
        "attempt": job.attempts,
        "token": job.token,
        "at": at,
        "worker": job.worker,
        "type": type,
        "message": safe_text(message, LONGEST_MESSAGE),
        "traceback": traceback,
    }


def errors_text(earlier: Sequence[JobError], entry: dict[str, Any] | None) -> str:
    """Return the job's errors with this one added; of very many the newest are kept."""
    if entry is None:
        return "[]" if not earlier else json_text(earlier)
    return json_text([*earlier, entry][-MOST_ERRORS:])


def safe_text(text: str, longest: int) -> str:
    """Return text that every store can keep: no NUL, no lone surrogates, not too long."""
    if len(text) > longest:
        text = f"{text[:longest]}… ({len(text):,} characters)"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _kind(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as worse:
        return f"<its message could not be read: {type(worse).__name__}>"


def frames_of(error: BaseException) -> str | None:
    """Return the traceback from the handler on, without the frames of dibs, then those of its causes."""
    try:
        lines = _frames(error)
        for cause in islice(_causes(error, {id(error)}), MOST_CAUSES):
            lines += [f"because of {_kind(cause)}: {_message(cause)}\n", *_frames(cause)]
        return safe_text("".join(lines), LONGEST_TRACEBACK) or None
    except BaseException:
        return None


def _frames(error: BaseException) -> list[str]:
    return traceback.format_tb(_from_handler(error.__traceback__), limit=-MOST_FRAMES)


def _causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """Yield the errors of a group, and what each error was raised from or while it was handled."""
    context = None if error.__suppress_context__ else error.__context__
    several = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in (*several, error.__cause__ or context):
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            yield from _causes(cause, seen)


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_above_handlers(trace.tb_frame.f_globals.get("__name__", "")):
        trace = trace.tb_next
    return trace


def _is_above_handlers(module: str) -> bool:
    """Return whether it runs handlers, or stands between dibs and them."""
    return module.partition(".")[0] in ("dibs", "asyncio", "contextlib")
