"""The helpers of `dibs.testing` for sync tests; only `run_pending` differs."""

from dibs.testing.enqueued import assert_enqueued, assert_not_enqueued
from dibs.testing.pending import AttemptFailed, EndlessJobs
from dibs.testing.pending import run_pending_sync as run_pending
from dibs.testing.stores import Crashed, VirtualClock, crash_at, fresh_store, virtual_time

__all__ = [
    "AttemptFailed",
    "Crashed",
    "EndlessJobs",
    "VirtualClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "crash_at",
    "fresh_store",
    "run_pending",
    "virtual_time",
]
