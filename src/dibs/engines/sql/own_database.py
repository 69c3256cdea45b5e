"""The check that a caller's connection leads to the app's own store, not to another one with our tables."""

from pathlib import Path

from dibs.errors import UnsupportedConnection
from dibs.operations.scripts import Rows


def check_same_file(files: Rows, path: str) -> None:
    """Refuse a connection that is open on another file."""
    for row in files:
        other = row["file"]
        if row["name"] == "main" and other and Path(path).exists() and not Path(other).samefile(path):
            raise UnsupportedConnection(
                f"this connection is open on {other} and the store is {path}: "
                "what is written can only live and die with a transaction of its own store"
            )


def check_same_database(found: Rows, name: str) -> None:
    """Refuse another database of the same server, which may have dibs' tables as well."""
    other = found[0]["name"]
    if other is not None and other.casefold() != name.casefold():
        raise UnsupportedConnection(
            f"this connection leads to the database {other!r} and the app's store is {name!r}: "
            "what is written can only live and die with a transaction of its own store"
        )
