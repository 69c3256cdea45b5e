"""What is kept of an exception: its type, message and traceback as capped, harmless text.

An exception may be hostile: `__str__` that raises, a message of a hundred megabytes, lone
surrogates, a cycle of causes. Recording it must never fail and never hurt the worker.
"""

import traceback
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import msgspec

from dibs.jobs.job import Job, JobError

LONGEST_NAME = 200
LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 16_000
MOST_FRAMES = 50
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
        return "[]" if not earlier else msgspec.json.encode(earlier).decode()
    return msgspec.json.encode([*earlier, entry][-MOST_ERRORS:]).decode()


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
    """Return the traceback from the handler on, without the frames of dibs that called it."""
    try:
        frames = traceback.format_tb(_from_handler(error.__traceback__), limit=-MOST_FRAMES)
        return safe_text("".join(frames), LONGEST_TRACEBACK) or None
    except BaseException:
        return None


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_above_handlers(trace.tb_frame.f_globals.get("__name__", "")):
        trace = trace.tb_next
    return trace


def _is_above_handlers(module: str) -> bool:
    """Return whether it runs handlers, or stands between dibs and them."""
    return module.partition(".")[0] in ("dibs", "asyncio", "contextlib")
