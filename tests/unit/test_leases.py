"""The keeper's two threads, and what happens between them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dibs import Dibs, NewJob, leases


def test_the_next_beat_does_not_wait_for_the_thread_of_the_last_one_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, beats = threading.Event(), threading.Semaphore(0)

    class SlowToEnd(threading.Thread):
        """On Python 3.13 a thread is alive for a while after its last line."""

        def run(self) -> None:
            super().run()
            if self.name == "dibs-beat":
                beats.release()
                over.wait(30)

    class Threading:
        Thread, Condition, current_thread = SlowToEnd, threading.Condition, threading.current_thread

    monkeypatch.setattr(leases, "threading", Threading)
    app: Any = Dibs("memory://").sync
    [job] = app.enqueue(NewJob("work"))

    with app.claim_job(job.id, lease=0.5):
        for _ in range(4):
            assert beats.acquire(timeout=30)
        over.set()

    assert app.get(job.id).state == "succeeded"
    app.close()
