"""The same for tests that block: only `run_pending` differs."""

from dibs.testing.crashes import Crashed, crash_at
from dibs.testing.enqueued import assert_enqueued, assert_not_enqueued
from dibs.testing.pending import EndlessJobs, JobFailed
from dibs.testing.pending import run_pending_sync as run_pending
from dibs.testing.stores import fresh_store
from dibs.testing.time import VirtualClock, virtual_time

__all__ = [
    "Crashed",
    "EndlessJobs",
    "JobFailed",
    "VirtualClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "crash_at",
    "fresh_store",
    "run_pending",
    "virtual_time",
]
