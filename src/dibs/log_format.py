"""What happened to a job, as one line that people like to read, or as fields for programs.

→ send_receipt                   mail      01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e
✓ send_receipt          120 ms   mail      01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e
↻ send_receipt           30 ms   mail      01980c4e-… again in 2 s, attempt 1 of 3: KeyError: 'name'
✗ send_receipt           30 ms   mail      01980c4e-… failed, attempt 3 of 3: … (dibs jobs show …)
"""

import json
import logging
import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

import msgspec

from dibs.jobs.job import Job
from dibs.text import spoken

LONGEST = 280  # characters of an error; the whole of it is with the job

# What an operator wants to see is INFO. A job that failed is more than that, but it is its app's business:
# below WARNING, so that a script that never set up logging prints nothing for it.
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")
# The end of an attempt that went well: for a person who watches, not for a log that is kept.
DONE = 15
logging.addLevelName(DONE, "DONE")

LEVELS = {
    "enqueued": logging.DEBUG,
    "claimed": logging.DEBUG,
    "succeeded": DONE,
    "snoozed": DONE,
    "released": logging.INFO,
    "retried": logging.INFO,
    "cancelled": logging.INFO,
    "failed": NOTICE,
    "lost": logging.WARNING,
    "acted": NOTICE,
}
SIGNS = {
    "enqueued": "+",
    "claimed": "→",
    "succeeded": "✓",
    "snoozed": "↻",
    "released": "↻",
    "retried": "↻",
    "cancelled": "✗",
    "failed": "✗",
    "lost": "✗",
    "acted": "!",
}

# What a terminal obeys, and what hides text or turns it around: spaces of no width, joiners, bidi marks.
_UNSEEN = (
    r"\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f"
)
_DECEIVING = re.compile(rf"[\x00-\x08\x0b-\x1f{_UNSEEN}\ud800-\udfff]")
_DECEIVING_IN_JSON = re.compile(f"[{_UNSEEN}]")


class CurrentJob:
    """The job that this asyncio task or thread works on, for the lines that its handler logs."""

    def __init__(self) -> None:
        self.is_wanted = False
        """A log shows it; else it is not even noted."""
        self._job: ContextVar[Job | None] = ContextVar("dibs_current_job", default=None)

    def get(self) -> Job | None:
        return self._job.get()

    def set(self, job: Job | None) -> "Token[Job | None]":
        """Note the job for this task or thread, and for what it starts."""
        return self._job.set(job)

    def reset(self, token: "Token[Job | None]") -> None:
        self._job.reset(token)


current_job = CurrentJob()


def safe(text: str) -> str:
    """Return the text with control and invisible characters written out, not obeyed; lines and tabs stay."""
    return _DECEIVING.sub(lambda found: ascii(found[0])[1:-1], text)


def safe_json(text: str) -> str:
    """Return the same JSON with these characters escaped."""
    return _DECEIVING_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text)


def one_line(text: str) -> str:
    return safe(" ".join(text.split()))


@dataclass(frozen=True, slots=True)
class LogLine:
    """One thing that happened to one job."""

    event: str
    job: Job
    seconds: float | None = None
    delay: float | None = None
    error: str | None = None

    def __str__(self) -> str:
        took = "" if self.seconds is None else spoken(self.seconds)
        job, says = self.job, self._says()
        return (
            f"{SIGNS[self.event]} {job.kind:<20} {took:>8}   {job.queue:<8}  {job.id}{says and f'  {says}'}"
        )

    def fields(self) -> dict[str, Any]:
        """Return the same for programs; what does not apply is left out."""
        job = self.job
        fields = {
            "event": self.event,
            "job": str(job.id),
            "kind": job.kind,
            "queue": job.queue,
            "attempt": job.attempts or None,
            "worker": job.worker,
            "duration_ms": None if self.seconds is None else round(self.seconds * 1000, 3),
            "retry_in_s": self.delay,
            "error": self.error,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _says(self) -> str:
        attempt = f"attempt {self.job.attempts} of {self.job.max_attempts}"
        match self.event:
            case "retried":
                return f"again in {spoken(self.delay or 0)}, {attempt}: {self.error}"
            case "failed":
                ended = "given up" if self.job.attempts < self.job.max_attempts else "failed"
                return f"{ended}, {attempt}: {self.error}  (dibs jobs show {self.job.id})"
            case "snoozed":
                return f"again in {spoken(self.delay or 0)}"
            case "lost":
                return "lease lost: another worker may have the job, what was done here may not count"
            case "released" | "cancelled" as event:
                return event
            case _:
                return ""


def line(event: str, job: Job, about: Mapping[str, Any]) -> LogLine:
    """Return the line of an event; `about` is what the event says beside the job."""
    delay = about.get("delay")
    return LogLine(
        event=about.get("as", event),
        job=job,
        seconds=about.get("seconds"),
        delay=None if delay is None else delay / 1_000_000,
        error=_last_error(about.get("errors")) if about.get("as") in ("retried", "failed") else None,
    )


def _last_error(errors: str | None) -> str:
    entries = msgspec.json.decode(errors or "[]")
    if not entries:
        return "no reason was given"
    text = one_line(f"{entries[-1]['type']}: {entries[-1]['message']}")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def acted_line(about: Mapping[str, Any]) -> str:
    """Return the words for an act of an operator."""
    operator = one_line(about["by"] or "an operator")
    return f"{SIGNS['acted']} {about['verb']} {one_line(about['about'])}, by {operator}"


def swept_line(moved: Mapping[str, int]) -> tuple[int, str]:
    """Return the level and the words for what one round of upkeep changed."""
    words = {
        "returned": "back from a worker that died",
        "failed": "failed with the worker, no attempt left",
        "cancelled": "cancelled with the worker",
        "staged": "due",
    }
    said = [f"{moved[name]:,} {what}" for name, what in words.items() if moved.get(name)]
    dead = moved.get("returned") or moved.get("failed") or moved.get("cancelled")
    level, sign = (NOTICE, SIGNS["retried"]) if dead else (logging.DEBUG, SIGNS["enqueued"])
    return level, f"{sign} jobs: {', '.join(said)}"
