"""What a machine draws at random: jobs, wishes, ends, settings, filters."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dibs.jobs.states import JobState
from tests.model.beside import KINDS, QUEUES

queues = st.sampled_from(QUEUES)
kinds = st.sampled_from(KINDS)
some_queues = st.one_of(st.none(), st.lists(queues, min_size=1, max_size=2))
some_kinds = st.one_of(st.none(), st.lists(kinds, min_size=1, max_size=2))
workers = st.sampled_from(["pod-a", "pod-b"])
leases = st.sampled_from([None, 60, 600])
tags = st.lists(st.sampled_from(["red", "blue"]), max_size=2, unique=True)
reasons = st.sampled_from([None, "", "no longer wanted"])
states = st.sampled_from(list(JobState))

# Most are much alike, so that their order is decided by time and id.
plain_jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*KINDS, KINDS[0], KINDS[0]]),
        "args": st.fixed_dictionaries({"n": st.integers(0, 3)}),
        "queue": st.sampled_from([*QUEUES, QUEUES[0], QUEUES[0]]),
        "priority": st.sampled_from([0, 0, 0, 5, -5]),
        "delay": st.sampled_from([None, None, 0, 60]),
        "max_attempts": st.integers(1, 3),
        "unique": st.sampled_from([None, None, None, "one", "two"]),
        "tags": tags,
    }
)

new_jobs = st.runner().flatmap(lambda machine: machine.new_jobs)

# A way to end an attempt: the claim's method and its arguments.
End = tuple[str, tuple[Any, ...], dict[str, Any]]

ends = st.sampled_from(
    [
        ("succeed", ("done",), {}),
        ("succeed", ({"n": [1, None]},), {}),
        ("succeed", (), {}),
        ("fail", ("it broke",), {"retry": True}),
        ("fail", ("it broke",), {"retry": False}),
        ("snooze", (0,), {}),
        ("snooze", (60,), {}),
        ("release", (), {}),
        ("cancel", (), {}),
        ("cancel", ("not needed",), {}),
    ]
)

beats = st.one_of(
    st.tuples(st.just("renew"), leases),
    st.tuples(st.just("progress"), st.sampled_from([0, 0.5, 1]), st.sampled_from([None, "", "half way"])),
)

queue_settings = st.sampled_from(
    [("pause",), ("resume",), ("resume",), ("limit", 0), ("limit", 1), ("limit", 2), ("limit", None)]
)

filters = st.one_of(
    st.builds(lambda state, tag: {"state": state, "tags": [tag]}, states, st.sampled_from(["red", "blue"])),
    st.builds(
        lambda some, queue: {"state": some, "queue": queue},
        st.lists(states, max_size=3),
        queues,
    ),
    st.builds(lambda kind, queue: {"kind": kind, "queue": queue}, kinds, queues),
    st.builds(lambda both: {"tags": both}, tags),
)
