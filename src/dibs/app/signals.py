"""Stop on the signals that end a process, and on Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable, Sequence


def handle_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> list[signal.Signals]:
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
            handled.append(number)
        except (ValueError, RuntimeError, NotImplementedError):  # not in the main thread, or Windows
            pass
    return handled


def unhandle_signals(loop: asyncio.AbstractEventLoop, handled: Sequence[signal.Signals]) -> None:
    for number in handled:
        loop.remove_signal_handler(number)
