"""How the log of `dibs work` looks: aligned lines with a coloured sign for people, JSON for programs.

What a line says is decided in `dibs.log_format`; records of other loggers pass through.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from dibs.log_format import SIGNS, LogLine, safe

COLOURS = {"→": "36", "✓": "32", "↻": "33", "✗": "31", "+": "34", "●": "35"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def set_up(*, level: int, json: bool, stream: TextIO | None = None) -> None:
    """Send the log of this process to stderr, from this level on."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if json else PlainLines(coloured=_wants_colour(stream)))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger("dibs").setLevel(level)


def _wants_colour(stream: TextIO) -> bool:
    """As rich decides it for the other commands."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


class PlainLines(logging.Formatter):
    """`12:30:59 ✓ send_receipt …`; exceptions below, indented."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        text = safe(super().format(record)).replace("\n", "\n         ")
        return self._painted(text) if self._coloured else text

    def _painted(self, text: str) -> str:
        time, _, rest = text.partition(" ")
        sign, _, words = rest.partition(" ")
        colour = COLOURS.get(sign)
        painted = rest if colour is None else f"\x1b[{colour}m{sign}{PLAIN} {words}"
        return f"{DIM}{time}{PLAIN} {painted}"


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, event, and what the event is about."""

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode({**self._frame(record), **self._fields(record)}, enc_hook=str).decode()

    def _frame(self, record: logging.LogRecord) -> dict[str, Any]:
        at = datetime.fromtimestamp(record.created, UTC)
        return {"time": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        told: LogLine | None = record.__dict__.get("line")
        if told is not None:
            return told.fields()
        fields = record.__dict__.get("fields") or {"event": "log", "logger": record.name}
        trace = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return {**fields, "message": _without_sign(record.getMessage()), **trace}


def _without_sign(text: str) -> str:
    sign, _, words = text.partition(" ")
    return words if sign in {*SIGNS.values(), "●"} else text
