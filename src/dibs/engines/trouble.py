"""What can go wrong between us and a store, sorted by what it means for the operation."""

import random
from dataclasses import dataclass, field

from dibs.clock import monotonic
from dibs.errors import NotPermitted, StoreUnavailable

# Pauses between the tries of one operation, in seconds; about two seconds in all.
PAUSES = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)
LONG_ENOUGH = 20


@dataclass
class Tries:
    """What an operation may want to know of its earlier tries."""

    number: int = 0
    unsure: bool = False
    began: float = field(default_factory=monotonic)

    def pause(self, trouble: "TryAgain") -> float:
        """Note a failure; answer how long to wait before the next try, or give up."""
        slow = self.number > 0 and monotonic() - self.began > LONG_ENOUGH
        if self.number >= len(PAUSES) or slow:
            raise trouble.final() from trouble.cause
        pause = PAUSES[self.number] * (0.5 + random.random())  # noqa: S311
        self.number += 1
        self.unsure = self.unsure or trouble.unsure
        return pause


@dataclass
class TryAgain(Exception):
    """The operation may be run again from its start.

    Either the store undid it (deadlock, serialization failure, a key taken at the same moment) or
    the connection broke and nobody knows: every operation is built so that running it again does
    no harm, and finds out.
    """

    cause: BaseException
    store: str
    unsure: bool = False
    """The connection broke: what was asked may have been done."""
    read_only: bool = False
    """It answers, and takes no changes: a replica, or what a failover made one."""
    locked: bool = False
    """Somebody else held what was asked for, for longer than we wait."""

    def final(self) -> StoreUnavailable:
        """What the caller hears when trying again did not help."""
        reason = str(self.cause).strip() or type(self.cause).__name__
        if self.read_only:
            return StoreUnavailable(
                f"{self.store} is read-only: {reason.splitlines()[0]}; "
                "let the URL lead to the server that takes changes, or let this one take them"
            )
        return StoreUnavailable(
            f"{self.store} does not answer: {reason.splitlines()[0]}; "
            "check that it is running and reachable, then try again"
        )


def not_permitted(store: str, who: str | None, said: str, advice: str) -> NotPermitted:
    """What somebody hears whom the store does not let: who, where, in the store's own words."""
    return NotPermitted(f"{store}: {who or 'this user'} may not do this ({said}); {advice}, then try again")
