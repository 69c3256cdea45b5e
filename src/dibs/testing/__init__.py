"""Helpers for tests of your own jobs: run them inline, let time pass, see what was enqueued, crash.

Only `run_pending` is async; `dibs.testing.sync` has the sync one. The other helpers are plain calls for both
kinds of tests: an assertion without its `await` could not fail.
"""

from dibs.testing.enqueued import assert_enqueued, assert_not_enqueued
from dibs.testing.pending import AttemptFailed, EndlessJobs, run_pending
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
