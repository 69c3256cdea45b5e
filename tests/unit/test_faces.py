"""A verb is declared once and serves both faces."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from dibs.faces import AsyncFace, Call, Calls, SyncFace, make, verb


async def _awaited(word: str) -> str:
    await asyncio.sleep(0)
    return f"awaited {word}"


def _said(word: str) -> Call[str]:
    return Call(lambda: f"blocked {word}", lambda: _awaited(word))


async def _broken() -> None:
    raise ValueError("broken")


def _break() -> None:
    raise ValueError("broken")


class Verbs:
    @verb
    def say(self, word: str, *, times: int = 1) -> Calls[list[str]]:
        """Say a word."""
        said = []
        for _ in range(times):
            said.append((yield from make(_said(word))))
        return said

    @verb
    def survive(self) -> Calls[str]:
        """Go on after a call that failed."""
        try:
            yield from make(Call(_break, _broken))
        except ValueError as error:
            return str(error)
        return "nothing happened"


class Awaited(Verbs, AsyncFace):
    pass


class Blocking(Verbs, SyncFace):
    pass


def test_a_verb_blocks_on_the_sync_face_and_is_awaited_on_the_other() -> None:
    assert Blocking().say("hello", times=2) == ["blocked hello"] * 2
    assert asyncio.run(Awaited().say("hello")) == ["awaited hello"]


def test_an_error_of_a_call_reaches_the_verb() -> None:
    assert Blocking().survive() == "broken"
    assert asyncio.run(Awaited().survive()) == "broken"


def test_an_error_of_the_verb_reaches_the_caller() -> None:
    with pytest.raises(TypeError, match="often"):
        Blocking().say("hello", often=2)  # type: ignore[call-arg]


def test_a_verb_keeps_its_signature_and_its_docstring() -> None:
    assert inspect.iscoroutinefunction(Awaited().say)
    assert not inspect.iscoroutinefunction(Blocking().say)
    for face in (Awaited, Blocking):
        assert face.say.__doc__ == "Say a word."
        assert list(inspect.signature(face().say).parameters) == ["word", "times"]
