"""How many clients a process serves at a time: as its files allow, and no client has most of them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MOST_FILES = 65_536
KEPT_FREE = 192  # files for the store, the log, and connections that were accepted in one go
MOST_STREAMS = 10_000


def file_limit(*, raised: bool = False) -> int:
    """Return how many files this process may open; raise the number first as far as it is allowed to."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_FILES if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    if raised and soft < (wanted := min(hard, MOST_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return wanted
    return min(soft, MOST_FILES)


def most_connections(files: int) -> int:
    """Return how many connections leave enough files for the rest of the process."""
    return max(files - KEPT_FREE, files // 4)


class StreamLimit:
    """The streams of a process, of which one client may have half."""

    def __init__(self, files: int) -> None:
        self.most = min(MOST_STREAMS, most_connections(files) // 2)
        self._open: Counter[str] = Counter()

    def refusal(self, client: str) -> str | None:
        """Return why this client gets no other stream; None if it does."""
        if self._open.total() >= self.most:
            return f"{self.most:,} streams are open already"
        if self._open[client] >= self.most // 2:
            return f"{self.most // 2:,} streams of yours are open already"
        return None

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            self._open += Counter()  # forgets clients without streams
