"""Whether a hint that is sent comes back, measured on the connection that workers listen on."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dibs.clock import monotonic
from dibs.doctor import HintCheck
from dibs.engines.store import Operation, Store
from dibs.operations.questions import ECHO_HINT
from dibs.operations.scripts import Script, Step

SENDS = 12
PAUSE = 0.25  # seconds between two sends: a listener needs some time to connect


class _SentHints:
    """The times at which hints were sent, and how long the first that came back took."""

    def __init__(self) -> None:
        self._name = f"{ECHO_HINT}doctor:{secrets.token_hex(4)}"  # a name that workers ignore
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

    def result(self) -> HintCheck:
        return HintCheck(self.seconds, None if self.seconds is not None else self.error)


async def echo_async(store: Store) -> HintCheck | None:
    """Send hints until one comes back; None for a store that has none."""
    if not store.traits.wakes:
        return None
    hints, heard = _SentHints(), asyncio.Event()
    listening = asyncio.create_task(_listen(store, hints, heard.set))
    try:
        for _ in range(SENDS):
            await store.run_async(_sending(hints.next_hint()))
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await heard.wait()
            if heard.is_set() or listening.done():
                break
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return hints.result()


def echo(store: Store) -> HintCheck | None:
    """Do the same in sync code; only the listener, which is always async, has an event loop."""
    if not store.traits.wakes:
        return None
    hints, heard = _SentHints(), threading.Event()
    with _beside(lambda: _listen(store, hints, heard.set)) as listening:
        for _ in range(SENDS):
            store.run(_sending(hints.next_hint()))
            if heard.wait(PAUSE) or listening.done():
                break
    return hints.result()


def _sending(hint: str) -> Operation[None]:
    return lambda _: _send(hint)


def _send(hint: str) -> Script[None]:
    yield Step("echo", {"hint": hint})


async def _listen(store: Store, hints: _SentHints, heard: Callable[[], object]) -> None:
    def hear(hint: str) -> None:
        if hints.hear(hint):
            heard()

    try:
        await store.listen(hear)
    except Exception as error:  # any: hints that can't be heard are a finding, not a failure
        hints.error = " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> Iterator["asyncio.Task[None]"]:
    """Run this while the body runs, in a thread with an event loop."""
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
