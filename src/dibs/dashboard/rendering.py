"""How values become text on the page. Text of jobs is text: nothing of it is ever obeyed or hidden."""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dibs.log_format import safe, safe_json
from dibs.text import spoken, spoken_size

HERE = files("dibs.dashboard")
LONGEST = 20_000  # characters of one text on a page


def shown(text: object, most: int = LONGEST) -> str:
    """Return the text with control, invisible and direction characters written out, cut if very long."""
    full = str(text)
    plain = safe(full[:most])
    return plain if len(full) <= most else f"{plain}… ({len(full):,} characters in all)"


def as_json(value: Any, indent: int = 2) -> str:
    """Return JSON as it is stored: large integers keep all their digits, deceiving characters are escaped.

    Without an indent it is one line, with spaces at which it may be broken.
    """
    return safe_json(msgspec.json.format(msgspec.json.encode(value), indent=indent).decode())


def time_tag(at: datetime | None, now: datetime | None, *, still: bool = False) -> Markup:
    """Return a time as people say it; the exact one on hover. `still` says how long it has been going on."""
    if at is None:
        return Markup("–")
    utc = at.astimezone(UTC)
    exact = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    says = "" if now is None else relative(at, now, still=still)  # without a time: to compare two pages
    sort = "still" if still else "ago"
    return Markup('<time datetime="{}" title="{}" data-{}>{}</time>').format(
        utc.isoformat(timespec="milliseconds"), exact, sort, says
    )


def relative(at: datetime, now: datetime, *, still: bool = False) -> str:
    seconds = (now - at).total_seconds()
    if still:
        return spoken(seconds)
    if abs(seconds) < 1:
        return "now"
    says = f"{abs(seconds):.0f} s" if abs(seconds) < 9.95 else spoken(abs(seconds))
    return f"{says} ago" if seconds > 0 else f"in {says}"


def query(**words: Any) -> str:
    """Return the query of a link: the words of a search."""
    said = [f"{name}:{quoted(str(value))}" for name, value in words.items() if value is not None]
    return "q=" + quote(" ".join(said))


def quoted(text: str) -> str:
    """Return a word as the search language takes it."""
    return (
        text
        if re.fullmatch(r"[\w.*:@/+-]+", text)
        else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


@cache
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(str(HERE / "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: "" if value is None else value,
    )
    env.filters.update(
        shown=shown,
        json=as_json,
        spoken=spoken,
        size=spoken_size,
        number=lambda number: f"{number:,}",
        path=lambda text: quote(str(text), safe=""),
        short=lambda id: str(id)[-8:],
        words=lambda code: str(code).replace("_", " "),
    )
    env.globals.update(query=query, urlencode=urlencode, version=assets_version(), escape=escape)
    return env


def render(template: str, context: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(context)


@cache
def asset(name: str) -> bytes | None:
    """Return a file of the folder `static`; None if there is none of this name."""
    found = {one.name: one for one in (HERE / "static").iterdir() if one.is_file()}.get(name)
    return None if found is None else found.read_bytes()


@cache
def assets_version() -> str:
    digest = hashlib.sha256()
    for one in sorted((HERE / "static").iterdir(), key=lambda each: each.name):
        if one.is_file():
            digest.update(one.read_bytes())
    return digest.hexdigest()[:12]
