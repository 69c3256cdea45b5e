"""The scripts of Redis: each question's, put together from the files in lua/."""

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dibs.jobs.gates import OFFER, WAITING_READ
from dibs.jobs.states import JobState, doomed_by
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows

_USES = re.compile(r"-- uses: (.*)\n")
_MODULE = re.compile(r"^return \{", re.MULTILINE)  # read only by those who need it

# Rules of states.py and contract.py, told to the scripts.
_RULES = f"""\
local PATIENCE, LOOKED_AT, STOP_HINT = {OFFER}, {WAITING_READ}, '\\{ord(STOP_HINT)}'
local DOOMED_AS_FAILED = '{doomed_by("%s", JobState.failed)}'
local DOOMED_AS_CANCELLED = '{doomed_by("%s", JobState.cancelled)}'
local DOOMED_AS_GONE = '{doomed_by("%s", None)}'
"""


@dataclass(frozen=True, slots=True)
class LuaScript:
    """One question's script: what all begin with, the files it uses, its own; then the commit."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Call:
    """A script to call, and the one argument that it takes: JSON text."""

    script: LuaScript
    argument: bytes


@dataclass(frozen=True, slots=True)
class IfAllowed:
    """A command that many servers allow nobody to give; there the reply is empty."""

    words: tuple[str, ...]


Plan = Generator[Call | IfAllowed, Any, Rows]


@cache
def lua_script(question: str) -> LuaScript:
    uses = _uses(question)
    saves = [
        *(["if steps_read then steps_read.save() end"] if "steps" in uses else []),
        *(["if turns_read then turns_read.save_gates() end"] if "turns" in uses else []),
    ]
    reply = "with_rest(reply)" if "steps" in uses else "reply"
    tail = "\n".join([f"local reply = answer_{question}()", *saves, "commit()", f"return {reply}", ""])
    parts = ["prelude", "jobs", *uses, question, "commit"]
    return make_script(question, "\n".join([_RULES, *map(_part, parts), tail]))


def make_script(name: str, text: str) -> LuaScript:
    return LuaScript(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _part(name: str) -> str:
    if not _MODULE.search(_lua(name)):
        return _lua(name)
    whole = "\n".join(map(_lua, [*_uses(name), name]))
    return f"function read_{name}()\n{whole}end\n"


def _uses(name: str) -> list[str]:
    match = _USES.match(_lua(name))
    return match[1].split() if match else []


@cache
def _lua(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
