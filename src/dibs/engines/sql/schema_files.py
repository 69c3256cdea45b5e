"""The migrations of a dialect, as they lie in its folder."""

import re
from collections.abc import Iterator
from importlib.resources import files


def schema_files(dialect: str) -> Iterator[tuple[int, str]]:
    """(version, SQL) of each migration, oldest first."""
    folder = files("dibs.engines").joinpath(dialect, "schema")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):  # beside them there may be the folder `down`
            yield int(file.name.split("_")[0]), file.read_text(encoding="utf-8")


def schema_version(dialect: str) -> int:
    return max(version for version, _ in schema_files(dialect))


def statements(text: str) -> list[str]:
    """The statements of a migration file, one by one."""
    bare = re.sub(r"--.*", "", text)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
