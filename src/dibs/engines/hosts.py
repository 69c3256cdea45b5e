"""The hosts of a store's URL: one, or several of which one takes changes."""

from urllib.parse import urlsplit

from dibs.errors import BadRequest

UNREADABLE = (
    "the URL of the store can't be read: check its host and its port, a number; in a password write "
    "/ : # ? @ as %2F %3A %23 %3F %40"
)


def hosts_of(url: str) -> list[tuple[str, int | None]]:
    """Return hosts and ports of `scheme://user:password@h1:5432,h2:5432/…`; the host is '' if left out."""
    try:
        places = urlsplit(url).netloc.rpartition("@")[2].split(",")
        parts = [urlsplit(f"//{place}") for place in places]
        return [(one.hostname or "", one.port) for one in parts]
    except ValueError:  # its message quotes the URL: what it takes for a port may be a password
        raise BadRequest(UNREADABLE) from None


def spoken_hosts(url: str, unnamed: str) -> str:
    """Return the hosts of a URL for a message, never a password."""
    return ", ".join(f"{host or unnamed}{f':{port}' if port else ''}" for host, port in hosts_of(url))
