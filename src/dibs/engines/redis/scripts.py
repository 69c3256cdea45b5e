"""The Lua scripts: each question's, composed of the files in lua/lib and lua/questions."""

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from dibs.jobs.gates import OFFER, WAITING_READ
from dibs.jobs.states import JobState, doomed_by
from dibs.operations.questions import STOP_HINT
from dibs.operations.scripts import Rows

_USES = re.compile(r"-- uses: (.*)\n")

# Files that return a table; a script reads one when it meets the first job that needs it.
MODULES = ("gates", "pipelines")

# Rules that Python has, as constants of the scripts.
_RULES = f"""\
local OFFER, MOST_COMPARED, STOP_HINT = {OFFER}, {WAITING_READ}, '\\{ord(STOP_HINT)}'
local PARENT_FAILED = '{doomed_by("%s", JobState.failed)}'
local PARENT_CANCELLED = '{doomed_by("%s", JobState.cancelled)}'
local PARENT_DELETED = '{doomed_by("%s", None)}'
"""
_SAVE_PIPELINES = "if pipelines_read then pipelines_read.save() end"
_SAVE_GATES = "if gates_read then gates_read.save_gates() end"
# A reply, and whether more is left to do than one script may: then the caller asks `go_on`.
_REPLY_AND_REST = """\
local is_more = pipelines_read and pipelines_read.is_more()
return reply.err and reply or {reply, is_more and 1 or 0}"""


@dataclass(frozen=True, slots=True)
class LuaScript:
    """The whole text of one question's script."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script to call, and its one argument: JSON text."""

    script: LuaScript
    argument: bytes


@dataclass(frozen=True, slots=True)
class OptionalCommand:
    """A command that many servers forbid; there the reply is empty."""

    words: tuple[str, ...]


Answer = Generator[ScriptCall | OptionalCommand, Any, Rows]


@cache
def lua_script(question: str) -> LuaScript:
    """Return the script of a question: prelude, the files that it uses, its own file, commit."""
    own = _read("questions", question)
    uses = _uses(own)
    has_pipelines = "pipelines" in uses
    tail = [
        f"local reply = answer_{question}()",
        *([_SAVE_PIPELINES] if has_pipelines else []),
        *([_SAVE_GATES] if "gates" in uses else []),
        "commit()",
        _REPLY_AND_REST if has_pipelines else "return reply",
        "",
    ]
    parts = [_RULES, *map(_part, ["prelude", "jobs", *uses]), own, _part("commit"), "\n".join(tail)]
    return make_script(question, "\n".join(parts))


def make_script(name: str, text: str) -> LuaScript:
    return LuaScript(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _part(name: str) -> str:
    text = _read("lib", name) or _read("questions", name)
    if name not in MODULES:
        return text
    return "\n".join([f"function read_{name}()", *map(_part, _uses(text)), f"{text}end", ""])


def _uses(text: str) -> list[str]:
    match = _USES.match(text)
    return match[1].split() if match else []


@cache
def _read(folder: str, name: str) -> str:
    file = files(__package__).joinpath("lua", folder, f"{name}.lua")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


class Scripts:
    """The scripts of one store, and the key under which all of its keys live."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.in_cluster = False
        self.script = lua_script

    def call(self, question: str, **given: Any) -> ScriptCall:
        if self.in_cluster:
            given["in_cluster"] = True
        return ScriptCall(self.script(question), msgspec.json.encode(given))

    def ask(self, question: str, **given: Any) -> Generator[ScriptCall, Any, Any]:
        """Call a script that may leave something to do, and then the scripts that do it."""
        return (yield from self.finish(self.call(question, **given)))

    def finish(self, call: ScriptCall) -> Generator[ScriptCall, Any, Any]:
        reply, is_more = yield call
        while is_more:
            _, is_more = yield self.call("go_on")
        return reply
