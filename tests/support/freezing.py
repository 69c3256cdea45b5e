"""A process that forks one child per question; each stops itself at the end of such a transaction.

    python -m tests.support.freezing URL QUESTION…

It prints the question when its child stands still, waits for a line, and goes to the next one. After the last
it lets all children go on, and ends with the number of them that did not end well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from dibs import Dibs, DibsError, NewJob
from dibs.clock import SECOND
from dibs.jobs.ids import new_id
from dibs.operations import upkeep
from dibs.operations.scripts import Step
from tests.support.fault_stores import exchange
from tests.support.internals import core_of, due_ticks, engine_of, run_script
from tests.support.moves import ELSEWHERE, ask

LEASE = 2.0


def freeze_at(app: Dibs, question: str) -> None:
    """Stop this process after the last statement of the first such transaction, before its commit."""
    engine = engine_of(app)
    answer, is_frozen = engine.answer, False

    def freezing(step: Step, **options: Any) -> Any:
        nonlocal is_frozen
        rows = yield from answer(step, **options)
        if step.question == question and not is_frozen and engine.needs_transaction(step):
            is_frozen = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return rows

    engine.answer = freezing


def do_everything(app: Any, name: str) -> None:
    """Ask every question that opens a transaction, about jobs of this name's own kind, gates and key."""
    new: Callable[..., NewJob] = partial(NewJob, name, queue=name)
    claim = partial(app.claim, queues=[name], kinds=[name], worker=name, lease=LEASE)
    for step in (_hold_and_settle, _act, _keep_up, _plan_ahead, _move):
        with contextlib.suppress(DibsError):  # another process may have taken back what this one held
            step(app, name, new, claim)


def _hold_and_settle(app: Any, name: str, new: Any, claim: Any) -> None:
    app.enqueue(new(train=name), new(slot=name), new(unique=name))
    app.enqueue(new(train=name), new(slot=name))
    if not (claims := claim(limit=5)):  # this process stood still, and a worker has done them all
        return
    first, *others = claims
    first.renew(lease=LEASE)
    first.progress(0.5)
    first.succeed(then=[new()])
    wish: Any = {"queues": [name], "kinds": [name], "limit": 1}
    exchange(_behind(app), others[:1], [new()], lease=round(LEASE * SECOND), **wish)
    app.limit(name, 50)
    claim(limit=1)
    app.limit(name, None)


def _act(app: Any, name: str, new: Any, claim: Any) -> None:
    [one] = app.enqueue(new(train=name))
    with contextlib.suppress(DibsError):  # a worker may have it already
        app.update(one.id, priority=1)
    app.cancel(one.id)
    app.retry(one.id)
    app.claim_job(one.id, worker=name, lease=0.1)
    for _ in range(9):
        [other] = app.enqueue(new())
        app.claim_job(other.id, worker=name, lease=0.1)
        time.sleep(0.101)
        with contextlib.suppress(DibsError):  # a worker may have swept it before
            app.recover(other.id, stale_after=0)
            break
    app.cancel(one.id)
    app.delete(one.id)
    with contextlib.suppress(DibsError):
        app.trains.release(name)


def _keep_up(app: Any, name: str, new: Any, claim: Any) -> None:
    app.enqueue(new(slot=name, delay=0.05), new(train=name))
    time.sleep(0.1)
    app.sweep()
    run_script(_behind(app), upkeep.mend)
    app.prune(timedelta(days=3))


def _plan_ahead(app: Any, name: str, new: Any, claim: Any) -> None:
    pipeline = app.pipeline(name)
    first = pipeline.add(new())
    pipeline.add(new(), after=[first])
    pipeline.enqueue()
    app.schedules.put(name, timedelta(seconds=1), new())
    app.schedules.run_now(name)
    if name == "at_enqueue_tick":  # before a worker does; the others need not wait for a tick
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            _tick(_behind(app))
    app.schedules.delete(name)


def _tick(app: Any) -> None:
    [clock] = ask(app, "now")
    core_of(app).store.run(due_ticks(app, clock["now"]))


def _move(app: Any, name: str, new: Any, claim: Any) -> None:
    behind, just_before = _behind(app), new_id()
    app.enqueue(new(delay=3600))
    ask(behind, "identify", new=new_id())
    rows = ask(behind, "depart", store=ELSEWHERE, after=just_before, limit=1)
    ask(behind, "give_back", store=ELSEWHERE, ids=[row["id"] for row in rows])
    rows = ask(behind, "depart", store=ELSEWHERE, after=just_before, limit=1)
    ask(behind, "landed", way="out", store=ELSEWHERE, ids=[row["id"] for row in rows])
    ask(behind, "arrive", store=ELSEWHERE, jobs=[row["job"] for row in rows])


def _behind(app: Any) -> Any:
    return app.app


class Face:
    """`app.sync`, with the app itself beside it."""

    def __init__(self, app: Dibs) -> None:
        self.app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app.sync, name)


def child(url: str, question: str) -> int:
    app = Dibs(url)
    freeze_at(app, question)
    try:
        do_everything(Face(app), f"at_{question}")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main(url: str, *questions: str) -> int:
    children: dict[str, int] = {}
    for question in questions:
        pid = os.fork()
        if pid == 0:
            os._exit(child(url, question))
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            print(f"never {question}", flush=True)
            continue
        children[question] = pid
        print(question, flush=True)
        sys.stdin.readline()
    sys.stdin.readline()
    for pid in children.values():
        os.kill(pid, signal.SIGCONT)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
