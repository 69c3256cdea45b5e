"""Write the reference of the command line: `python docs/reference/draw_cli.py > docs/reference/cli.md`."""

from collections.abc import Iterator
from typing import Any

import typer

from dibs.cli import app

OPENING = """# The command line

`dibs` is thin over `Dibs(url).sync`: whatever a command does can also be done from Python. This page is made
from the commands themselves by `docs/reference/draw_cli.py`, and a test compares the two.

**Which store.** `--url`, before or after the command; else `$DIBS_URL`; else `url` under `[tool.dibs]` in the
nearest `pyproject.toml` (from here upwards; a relative SQLite file lies beside it); else the file `dibs.db`
here. The other settings of `Dibs` come from `$DIBS_PREFIX`, `$DIBS_STALE_AFTER` …, or from that table.

**What it prints.** Tables with colours on a terminal, aligned columns in a pipe, JSON with `--json`: lists as
arrays, ids as strings, times as ISO 8601 in UTC. Remarks and questions go to stderr. `NO_COLOR` is respected.

**Exit codes.** 0 done · 1 refused or failed, with one line on stderr for each thing refused · 2 bad usage.

**Durations** are `30`, `30s`, `10m`, `2h` or `7d`. **Completion**: `dibs --install-completion`.
"""


def page() -> str:
    """Return the whole text of docs/reference/cli.md."""
    parts = [
        OPENING,
        *(_section(path, command) for path, command in _commands("dibs", typer.main.get_command(app))),
    ]
    return "\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something by itself, with the words that call it."""
    for name, child in getattr(command, "commands", {}).items():
        if not hasattr(child, "commands") or child.invoke_without_command:
            yield f"{path} {name}", child
        yield from _commands(f"{path} {name}", child)


def _section(path: str, command: Any) -> str:
    called = " ".join([path, *(_placeholder(one) for one in _params(command, "argument"))])
    example = (command.epilog or "").removeprefix("Example: ").replace(", or ", "\n")
    told = "\n".join(line.strip() for line in (command.help or "").splitlines())
    return f"## `{called}`\n\n{told}\n\n```sh\n{example}\n```\n\n{_table(command)}"


def _placeholder(argument: Any) -> str:
    name = f"{argument.metavar}{'...' if argument.nargs != 1 else ''}"
    return name if argument.required else f"[{name}]"


def _table(command: Any) -> str:
    rows = [*map(_argument, _params(command, "argument")), *map(_option, _params(command, "option"))]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def _argument(argument: Any) -> str:
    return _row(argument.metavar, argument)


def _option(option: Any) -> str:
    names = ", ".join(option.opts)
    return _row(names if option.is_flag else f"{names} {option.metavar or 'N'}", option)


def _row(name: str, param: Any) -> str:
    return f"| `{name.replace('|', chr(92) + '|')}` | {param.help}{_default(param)} |"


def _default(param: Any) -> str:
    plain = isinstance(param.default, int | str) and not isinstance(param.default, bool)
    return f" Default: {param.default}." if plain else ""


def _params(command: Any, kind: str) -> list[Any]:
    return [one for one in command.params if one.param_type_name == kind and one.name != "help"]


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
