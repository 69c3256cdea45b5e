"""Does a hint that is sent come back? Measured on the way that workers listen on."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dibs.clock import monotonic
from dibs.doctor import Echo
from dibs.engines.store import Operation, Store
from dibs.operations.questions import ECHO_HINT
from dibs.operations.scripts import Script, Step

SENDS = 12
PAUSE = 0.25  # seconds between two sends: a listener needs a moment to be there


class _Ear:
    """Remembers when each hint was sent, and how long the first that came back took."""

    def __init__(self) -> None:
        self._name = f"{ECHO_HINT}doctor:{secrets.token_hex(4)}"  # a voice that workers ignore
        self._sent: dict[str, float] = {}
        self.seconds: float | None = None
        self.error: str | None = None

    def next_hint(self) -> str:
        hint = f"{self._name}:{len(self._sent)}"
        self._sent[hint] = monotonic()
        return hint

    def hear(self, hint: str) -> bool:
        if hint in self._sent and self.seconds is None:
            self.seconds = monotonic() - self._sent[hint]
        return self.seconds is not None

    def answer(self) -> Echo:
        return Echo(self.seconds, None if self.seconds is not None else self.error)


async def echo_async(store: Store) -> Echo | None:
    """None for a store that wakes nobody."""
    if not store.traits.wakes:
        return None
    ear, heard = _Ear(), asyncio.Event()
    listening = asyncio.create_task(_listen(store, ear, heard.set))
    try:
        for _ in range(SENDS):
            await store.run_async(_saying(ear.next_hint()))
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await heard.wait()
            if heard.is_set() or listening.done():
                break
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return ear.answer()


def echo(store: Store) -> Echo | None:
    """The same for code that blocks; only the listening, which is always awaited, has a loop of its own."""
    if not store.traits.wakes:
        return None
    ear, heard = _Ear(), threading.Event()
    with _beside(lambda: _listen(store, ear, heard.set)) as listening:
        for _ in range(SENDS):
            store.run(_saying(ear.next_hint()))
            if heard.wait(PAUSE) or listening.done():
                break
    return ear.answer()


def _saying(hint: str) -> Operation[None]:
    return lambda _: _say(hint)


def _say(hint: str) -> Script[None]:
    yield Step("echo", {"hint": hint})


async def _listen(store: Store, ear: _Ear, heard: Callable[[], object]) -> None:
    def hear(hint: str) -> None:
        if ear.hear(hint):
            heard()

    try:
        await store.listen(hear)
    except Exception as error:  # whatever it is: hints that can't be heard are a finding, not a failure
        ear.error = " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> Iterator["asyncio.Task[None]"]:
    """Run this beside the body, in a thread with a loop, until the body is over."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])), name="dibs-echo")
    thread.start()
    try:
        yield task
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
