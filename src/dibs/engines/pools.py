"""What all pools of connections share, for each face.

A connection belongs to the process that made it, and on the async face to the event loop. It goes back into
the pool only when its state is known; after an error, each driver's pool decides that.
"""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# A function that turns a driver's error into the one to raise.
Judge = Callable[[BaseException], BaseException]


class Pool(ABC):
    """Connections of one process, `size` of them at most."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pid = os.getpid()
        self._idle: deque[Any] = deque()
        self._age = 0

    def _take_idle(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:  # another thread may have taken the last one
            return None

    def _drop_idle(self) -> None:
        while (connection := self._take_idle()) is not None:
            self._drop(connection)

    @abstractmethod
    def _sorted(self, error: BaseException) -> BaseException:
        """Return `TryAgain`, an error that says what to do, or the error itself if it is a bug."""

    @abstractmethod
    def _drop(self, connection: Any) -> None:
        """Close a connection at once; its event loop may be closed, and with it the socket."""


class AsyncPool(Pool):
    """Connections of one event loop."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(size)

    async def close(self) -> None:
        self._follow_loop()  # connections of another process, or of an ended loop, are not ours to close
        self._age += 1
        idle, self._idle = self._idle, deque()
        await asyncio.gather(*(self._end(connection) for connection in idle))

    async def leave_loop(self) -> None:
        """Close what belongs to the running loop; another loop's connections are not ours to touch."""
        if asyncio.get_running_loop() is self._loop:
            await self.close()

    def _connection(self, judge: Judge | None = None) -> "_Lent":
        return _Lent(self, judge or self._sorted)

    def _follow_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop and os.getpid() == self._pid:
            return
        if os.getpid() != self._pid:
            inherited.extend(self._idle)
        else:
            self._drop_idle()
        self._loop, self._pid = loop, os.getpid()
        self._idle, self._places = deque(), asyncio.Semaphore(self._size)

    @abstractmethod
    async def _connect(self) -> Any:
        """Return a new connection, or raise an error that went through `_sorted`."""

    @abstractmethod
    async def _after(self, connection: Any, error: BaseException) -> None:
        """Put a connection in a known state back, and close any other."""

    @abstractmethod
    async def _end(self, connection: Any) -> None:
        """Close a connection in good order, if that does not take long."""


class _Lent:
    """A connection of a pool, for one step. (A generator would be shorter, and is slower.)"""

    __slots__ = ("_age", "_connection", "_judge", "_places", "_pool")

    def __init__(self, pool: AsyncPool, judge: Judge) -> None:
        self._pool = pool
        self._judge = judge

    async def __aenter__(self) -> Any:
        pool = self._pool
        pool._follow_loop()
        self._places, self._age = pool._places, pool._age
        await self._places.acquire()
        try:
            self._connection = pool._idle.pop() if pool._idle else await pool._connect()
        except BaseException:
            self._places.release()
            raise
        return self._connection

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is not None:
                await self._pool._after(self._connection, error)
                raise self._judge(error) from error
            self._pool._idle.append(self._connection)
            if self._age != self._pool._age:  # closed while this call was under way
                await self._pool.close()
        finally:
            self._places.release()


class SyncPool(Pool):
    """Connections that the threads of one process share."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._places = threading.Semaphore(size)

    def close(self) -> None:
        self._mind_fork()
        self._age += 1
        while (connection := self._take_idle()) is not None:
            self._end(connection)

    @contextmanager
    def _connection(self, judge: Judge | None = None) -> Iterator[Any]:
        self._mind_fork()
        with self._places:
            age = self._age
            connection = self._take_idle() or self._connect()
            try:
                yield connection
            except BaseException as error:
                self._after(connection, error)
                raise (judge or self._sorted)(error) from error
            else:
                self._idle.append(connection)
            if age != self._age:  # closed while this call was under way
                self.close()

    def _mind_fork(self) -> None:
        if os.getpid() != self._pid:
            inherited.extend(self._idle)
            self._pid, self._idle = os.getpid(), deque()
            self._places = threading.Semaphore(self._size)

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection, or raise an error that went through `_sorted`."""

    @abstractmethod
    def _after(self, connection: Any, error: BaseException) -> None:
        """Put a connection in a known state back, and close any other."""

    @abstractmethod
    def _end(self, connection: Any) -> None:
        """Close a connection in good order."""

    def _drop(self, connection: Any) -> None:
        """Close a connection at once."""
        self._end(connection)


# Connections of the parent process, kept so that they are not closed in the child.
inherited: list[object] = []
