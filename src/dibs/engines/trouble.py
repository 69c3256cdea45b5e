"""What can go wrong between us and a store, sorted by what it means for the operation."""

import random
from dataclasses import dataclass, field

from dibs.clock import monotonic
from dibs.errors import StoreUnavailable

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

    def final(self) -> StoreUnavailable:
        """What the caller hears when trying again did not help."""
        reason = str(self.cause).strip() or type(self.cause).__name__
        return StoreUnavailable(
            f"{self.store} does not answer: {reason.splitlines()[0]}; "
            "check that it is running and reachable, then try again"
        )
