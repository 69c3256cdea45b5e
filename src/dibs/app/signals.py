"""Stop on the signals that end a process, and on Ctrl-C."""

import asyncio
import signal
import threading
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


def may_raise_interrupt() -> bool:
    """Return whether a Ctrl-C raises `KeyboardInterrupt` in this thread, as it does unless it is handled."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
