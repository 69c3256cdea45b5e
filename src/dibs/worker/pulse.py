"""What a worker notes of itself while it works, and the judgement of its health that follows."""

from typing import Any, Literal

from dibs.clock import monotonic
from dibs.worker.health import Health

SILENCE = 3  # polls without a word from the store, when there should be one in each
SLACK = 10.0  # seconds more than that

Phase = Literal["not started", "starting", "working", "stopping"]


class Pulse:
    """How a worker is doing. Noting something costs next to nothing: it is done at every turn."""

    def __init__(self) -> None:
        self._phase: Phase = "not started"
        self._beat_at = self._missed_at = monotonic()
        self._trouble: str | None = None
        self.has_beaten = False
        """Whether the store has ever answered."""

    def becomes(self, phase: Phase) -> None:
        self._phase = phase
        self._beat_at = monotonic()

    def beats(self) -> None:
        """The store answered."""
        self._beat_at, self._trouble, self.has_beaten = monotonic(), None, True

    def misses(self, error: Exception) -> None:
        """The store did not."""
        if self._trouble is None:
            self._missed_at = monotonic()
        self._trouble = str(error)

    def lost_for(self) -> float:
        """Seconds since the store last answered, while it does not."""
        return 0.0 if self._trouble is None else monotonic() - self._missed_at

    def health(self, poll: float, about: dict[str, Any], deafness: str | None = None) -> Health:
        """Being deaf is only worth a note: the poll finds everything, a little later."""
        notes = [] if deafness is None else [f"hears no wake-ups and looks every second instead: {deafness}"]
        return Health(
            reason=self._reason(monotonic(), poll), about={**about, **({"notes": notes} if notes else {})}
        )

    def _reason(self, now: float, poll: float) -> str | None:
        if self._phase != "working":
            return f"the worker is {self._phase}"
        if self._trouble is not None:
            return f"the store has been lost for {self.lost_for():.1f} s: {self._trouble}"
        if not self.has_beaten:
            return "the worker has yet to hear from its store"
        if now - self._beat_at > SILENCE * poll + SLACK:
            return f"nothing was heard from the store for {now - self._beat_at:.0f} s"
        return None
