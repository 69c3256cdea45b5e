"""A process of the fault tests: reads one deed per line as JSON, does it, answers in one line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any
from uuid import UUID

from dibs import Dibs, DibsError, NewJob

# What a job takes. Without it one process of SQLite's would have the file to itself: whoever was
# turned away sleeps for up to 100 ms, and by then everything is done.
WORK_SECONDS = 0.003


class Actor:
    """One process's app and the claims that it holds, by token."""

    def __init__(self, url: str) -> None:
        self._app = Dibs(url).sync
        self._app.open()
        self._held: dict[int, Any] = {}

    def claim(self, **wish: Any) -> list[dict[str, Any]]:
        claims = self._app.claim(**wish)
        self._held |= {claim.token: claim for claim in claims}
        return [
            {
                "id": str(claim.job.id),
                "token": claim.token,
                "attempts": claim.job.attempts,
                "errors": [error.message for error in claim.job.errors],
            }
            for claim in claims
        ]

    def claim_and_die(self, **wish: Any) -> list[Any]:
        """As poison does: the claim is taken, and with it the process."""
        if self._app.claim(**wish):
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    def settle(self, token: int, verb: str, given: list[Any]) -> str:
        """The name of the error, or "done"."""
        return _outcome(lambda: getattr(self._held[token], verb)(*given))

    def work(self, token: int) -> str:
        """Keep the claim in a `with` block until a line comes in, then leave the block."""

        def body() -> None:
            with self._held[token]:
                say("working")
                sys.stdin.readline()

        return _outcome(body)

    def drain(self, file: str, limit: int = 1, hold_at: int | None = None, **wish: Any) -> int:
        """Claim and finish until nothing is left, and note each claim first; how many they were.

        With `hold_at` the so-manieth claim is held until somebody ends this process.
        """
        done = 0
        with open(file, "a", buffering=1) as notes:
            while claims := self._app.claim(limit=limit, **wish):
                notes.writelines(f"{claim.job.id} {claim.token}\n" for claim in claims)
                for claim in claims:
                    done += 1
                    if done == hold_at:
                        say("holding")
                        sys.stdin.readline()
                    time.sleep(WORK_SECONDS)
                    claim.succeed(str(claim.token))
        return done

    def leave(self) -> None:
        """Only ever read by `work`, which it ends."""

    def enqueue(self, **new: Any) -> bool:
        """Whether the job was new."""
        [job] = self._app.enqueue(NewJob(**new | {"id": UUID(new["id"])}))
        return job.is_new


def _outcome(deed: Any) -> str:
    try:
        deed()
    except DibsError as error:
        return type(error).__name__
    return "done"


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    actor = Actor(sys.argv[1])
    say("here")
    for line in sys.stdin:
        told = json.loads(line)
        say(getattr(actor, told.pop("deed"))(**told))


if __name__ == "__main__":
    main()
