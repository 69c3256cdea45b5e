"""Connections of `dibs serve`: requests have to arrive in time, and there is always one for the operator."""

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_LIMIT = 10.0  # seconds
BODY_LIMIT = 30.0


def limited_to(most: int) -> type[H11Protocol]:
    """Return a class of connections; of more than these, the one that waited longest for a request ends."""
    waiting: OrderedDict[H11Protocol, None] = OrderedDict()

    class LimitedConnection(H11Protocol):
        """A connection with a deadline for each head and each body."""

        _phase: Any = None
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._note_phase()
            if len(self.connections) > most:
                next(iter(waiting), self).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._enter(None)
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._note_phase()

        def _note_phase(self) -> None:
            if self.transport.is_closing():
                self._enter(None)
            elif self.conn.their_state is not self._phase:
                self._enter(self.conn.their_state)

        def _enter(self, phase: Any) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._phase, self._deadline = phase, None
            waiting.pop(self, None)
            if phase in (h11.IDLE, h11.SEND_BODY):
                waiting[self] = None
                seconds = HEAD_LIMIT if phase is h11.IDLE else BODY_LIMIT
                self._deadline = self.loop.call_later(seconds, self.transport.abort)

    return LimitedConnection
