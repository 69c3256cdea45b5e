"""What happened to a job, as one line that people like to read, or as fields for programs.

→ send_receipt                   mail      01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e
✓ send_receipt          120 ms   mail      01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e
↻ send_receipt           30 ms   mail      01980c4e-… again in 2 s, attempt 1 of 3: KeyError: 'name'
✗ send_receipt           30 ms   mail      01980c4e-… failed, attempt 3 of 3: KeyError: 'name'
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dibs.jobs.job import Job
from dibs.text import spoken

LONGEST = 300  # characters of an error; the whole of it is with the job

# What an operator wants to see is INFO. A job that failed is more than that, but it is its app's business:
# below WARNING, so that a script that never set up logging prints nothing for it.
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")

LEVELS = {
    "enqueued": logging.DEBUG,
    "claimed": logging.DEBUG,
    "succeeded": logging.DEBUG,
    "snoozed": logging.DEBUG,
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

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def safe(text: str) -> str:
    """Return the text with its control characters shown instead of obeyed; lines and tabs stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


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
                return f"failed, {attempt}: {self.error}"
            case "snoozed":
                return f"again in {spoken(self.delay or 0)}"
            case "lost":
                return "lease lost: another worker may have the job, what was done here does not count"
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
    return (NOTICE if dead else logging.DEBUG), f"↻ jobs: {', '.join(said)}"
