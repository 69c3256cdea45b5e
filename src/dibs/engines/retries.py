"""Retry whole operations: which failures are worth another try, how often, and the error after the last."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dibs.clock import monotonic
from dibs.errors import NotPermitted, StoreBusy, StoreUnavailable
from dibs.text import spoken

T = TypeVar("T")

# Pauses between the tries of one operation, in seconds; about two seconds in all.
PAUSES = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)
LONG_ENOUGH = 20
LOCKED_LONG = 9.5  # seconds, mostly of waits for locks, after which a caller gets the error
MOST_NAMED = 3


@dataclass
class Tries:
    """The tries of one operation so far."""

    number: int = 0
    unsure: bool = False
    began: float = field(default_factory=monotonic)

    def pause(self, failure: "TryAgain") -> float:
        """Note a failure; return how long to wait before the next try, or give up."""
        waited = monotonic() - self.began
        slow = waited > LOCKED_LONG if failure.locked else self.number > 0 and waited > LONG_ENOUGH
        if self.number >= len(PAUSES) or slow:
            raise failure.final(waited) from failure.cause
        pause = PAUSES[self.number] * (0.5 + random.random())  # noqa: S311
        self.number += 1
        self.unsure = self.unsure or failure.unsure
        return pause


@dataclass
class TryAgain(Exception):
    """A failure after which the operation may be run again from its start.

    Either the store undid it (deadlock, serialization failure, a key taken at the same time) or the
    connection broke and the outcome is unknown. Every operation can be repeated without harm.
    """

    cause: BaseException
    store: str
    unsure: bool = False
    """The connection broke: the question may have been carried out."""
    read_only: bool = False
    """The store refuses changes: it is a replica, or became one by a failover."""
    locked: bool = False
    """Another transaction held a lock for longer than we wait."""
    limit: str | None = None
    """The server's own time limit by which it ended the statement."""
    question: str | None = None
    """The question that failed, where it is known."""
    about: Sequence[str] = ()
    """What it had to lock: trains, slots, unique keys, jobs."""

    def final(self, waited: float) -> StoreUnavailable:
        """Return the error for the caller after the last try."""
        if self.locked:
            return busy(self.store, self.question, waited, self.about)
        if self.limit is not None:
            what = f"`{self.question}`" if self.question else "what dibs asked"
            return StoreBusy(
                f"{self.store} is up, but ended {what} by a time limit of the server's own ({self.limit}); "
                f"raise {self.limit} for dibs' user, or look for what made it wait, then try again"
            )
        reason = (str(self.cause).strip() or type(self.cause).__name__).splitlines()[0]
        if self.read_only:
            return StoreUnavailable(
                f"{self.store} is read-only: {reason}; "
                "let the URL lead to the server that takes changes, or let this one take them"
            )
        return StoreUnavailable(
            f"{self.store} does not answer: {reason}; check that it is running and reachable, then try again"
        )


def busy(store: str, question: str | None, waited: float, about: Sequence[str] = ()) -> StoreBusy:
    """Return the error for a lock that another transaction has held for too long."""
    what = f"`{question}` has" if question else "dibs has"
    return StoreBusy(
        f"{store} is up, but {what} waited {spoken(waited)} for a lock that another transaction holds"
        f"{_on(about)}; {'nothing was stored; ' if question == 'enqueue' else ''}"
        "look for a transaction that is open too long (`dibs doctor` finds it), then try again"
    )


def _on(about: Sequence[str]) -> str:
    """Return which of these is locked, as far as that is known."""
    if len(about) <= 1:
        return "".join(f" on {one}" for one in about)
    more = f" and {len(about) - MOST_NAMED} more" if len(about) > MOST_NAMED else ""
    return f" on one of: {', '.join(about[:MOST_NAMED])}{more}"


def not_permitted(store: str, user: str | None, said: str, advice: str) -> NotPermitted:
    """Return the error for a user without the rights: user, store, and the store's own words."""
    return NotPermitted(f"{store}: {user or 'this user'} may not do this ({said}); {advice}, then try again")


def again(
    work: Callable[[Tries], T],
    *,
    even_if_locked: bool = True,
    tries: Tries | None = None,
    failure: TryAgain | None = None,
) -> T:
    """Run the whole of it again after a deadlock, a lost race or a lost connection.

    A caller that has made the first of its `tries` itself gives the `failure` that it ended with.
    """
    tries = tries or Tries()
    while True:
        if failure is not None:
            time.sleep(_pause(tries, failure, even_if_locked=even_if_locked))
        try:
            return work(tries)
        except TryAgain as error:
            failure = error


async def again_async(
    work: Callable[[Tries], Awaitable[T]],
    *,
    even_if_locked: bool = True,
    tries: Tries | None = None,
    failure: TryAgain | None = None,
) -> T:
    tries = tries or Tries()
    while True:
        if failure is not None:
            await asyncio.sleep(_pause(tries, failure, even_if_locked=even_if_locked))
        try:
            return await work(tries)
        except TryAgain as error:
            failure = error


def _pause(tries: Tries, failure: TryAgain, *, even_if_locked: bool) -> float:
    """Return how long to wait after this failure, or raise it."""
    if failure.locked and not even_if_locked:
        raise failure
    return tries.pause(failure)
