"""What a handler may say instead of a result, and which exceptions are worth another attempt."""

from collections.abc import Iterable, Iterator
from typing import Any

from dibs.errors import BadRequest, UnfitArguments
from dibs.settings import Duration

ErrorClasses = tuple[type[BaseException], ...]


class HandlerOutcome(Exception):
    """An outcome that a handler raises or returns, as it likes; equal to another that says the same."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def __hash__(self) -> int:
        return hash((type(self), self.args))


class Snooze(HandlerOutcome):
    """Not now: run the job again after this long. It costs no attempt."""

    __match_args__ = ("seconds",)

    def __init__(self, seconds: Duration) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Cancel(HandlerOutcome):
    """This job should not be done after all: it ends as cancelled."""

    __match_args__ = ("reason",)

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(HandlerOutcome):
    """This can't succeed: the job ends as failed, whatever attempts it has left."""

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
