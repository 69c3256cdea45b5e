"""Durations, sizes, numbers and URLs as people say them, and the word that was meant."""

from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from dibs.errors import BadRequest

MAY_HAVE_AT_IN_PATH = ("sqlite", "memory", "http", "https")


def meant(word: str, known: Iterable[str]) -> str:
    """Return `did you mean …?` for a word that is nearly one of these, else the words that there are."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(word, names, 1)
    return f"did you mean {near[0]}?" if near else f"the options are {', '.join(names)}"


def split_url(url: str, what: str = "the store") -> SplitResult:
    """Return the parts of a URL; the refusal quotes none of them, as any may be a part of a password."""
    try:
        parts = urlsplit(url)
        for place in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{place}").port
    except ValueError:
        raise BadRequest(
            f"the URL of {what} can't be read: check its host and its port, a number; "
            "in a password write / : # ? @ as %2F %3A %23 %3F %40"
        ) from None
    if "@" in parts.path and parts.scheme.partition("+")[0] not in MAY_HAVE_AT_IN_PATH:
        raise BadRequest(f"the URL of {what} has an @ after its first /: write a / in a password as %2F")
    return parts


def without_password(url: str) -> str:
    """Return a URL that is safe to show: user, host and database, nothing more."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    user, at, where = place.rpartition("@")
    name = user.partition(":")[0]
    return f"{scheme}{mark}{name}{name and at}{where}{slash}{path}"


def spoken(seconds: float) -> str:
    """Return a duration as `120 ms`, `1.5 s`, `45 s`, `5 min`, `3 h`, `2 d`."""
    seconds = max(seconds, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.9995 else f"{seconds * 1000:.0f} ms"


def spoken_size(size: float) -> str:
    """Return a size as `512 bytes`, `1.5 MB`, `20 GB`."""
    for power, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= power:
            return f"{size / power:.{0 if size >= 10 * power else 1}f} {unit}"
    return numbered(round(size), "byte")


def numbered(number: int, noun: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
