"""For the tests of those who use dibs: run jobs inline, let time pass, see what was enqueued, crash.

Only running jobs is awaited (`dibs.testing.sync` has the blocking twin). Looking, and letting time pass, are
plain calls that serve both kinds of tests: an assertion that somebody forgot to await could not fail.
"""

from dibs.testing.crashes import Crashed, crash_at
from dibs.testing.enqueued import assert_enqueued, assert_not_enqueued
from dibs.testing.pending import EndlessJobs, JobFailed, run_pending
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
