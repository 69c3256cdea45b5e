"""`dibs move`: transfer everything from one store to another, while both are in use.

A job goes in four steps, each of them one transaction of one store:

1. it *departs*: out of the tables of the source, where it can no longer be claimed, into a note;
2. it *arrives* in the target, which notes that it came and from where;
3. it has *landed*: the source forgets its note,
4. and the target forgets its own.

So it can never be claimed in both. After a crash in between, the same move run again continues from the
notes: a job that departed is delivered, and one that had arrived is not stored a second time, not even if it
was done and pruned meanwhile.
"""

from dibs.app.dibs import Dibs
from dibs.faces import Calls, run, run_async
from dibs.moving.stores import Stores, lock_move, unlock_move
from dibs.moving.transfer import (
    MoveOptions,
    MovePreview,
    MoveReport,
    Running,
    Told,
    UnmovedJob,
    give_all_back,
    identify,
    preview,
    transfer_all,
)
from dibs.operations.pipelines import refuse_open_pipelines
from dibs.settings import Duration

__all__ = [
    "MovePreview",
    "MoveReport",
    "Running",
    "Told",
    "UnmovedJob",
    "give_back_sync",
    "look",
    "look_sync",
    "move",
    "move_sync",
]


async def move(
    source: Dibs,
    target: Dibs,
    *,
    running: Running = "wait",
    timeout: Duration | None = None,
    told: Told | None = None,
) -> MoveReport:
    """Move all jobs, settings of queues and last ticks of schedules; safe to interrupt and run again.

    Wait for running jobs, at most `timeout` long, or leave them. Call `told` with the progress.
    """
    return await run_async(_move(source, target, MoveOptions(running, timeout, told)))


def move_sync(
    source: Dibs,
    target: Dibs,
    *,
    running: Running = "wait",
    timeout: Duration | None = None,
    told: Told | None = None,
) -> MoveReport:
    """Do the same in sync code."""
    return run(_move(source, target, MoveOptions(running, timeout, told)))


def _move(source: Dibs, target: Dibs, options: MoveOptions) -> Calls[MoveReport]:
    stores = Stores(source, target)
    yield from stores.ask("source", refuse_open_pipelines)
    source_id, _ = yield from identify(stores)
    claim = yield from lock_move(source_id, stores)
    try:
        report = yield from transfer_all(stores, options)
    finally:
        yield from unlock_move(claim, stores)
    return report.without_lock()


async def look(source: Dibs, target: Dibs) -> MovePreview:
    """Return what a move would do; nothing is changed."""
    return await run_async(preview(Stores(source, target)))


def look_sync(source: Dibs, target: Dibs) -> MovePreview:
    """Do the same in sync code."""
    return run(preview(Stores(source, target)))


def give_back_sync(source: Dibs) -> int:
    """Let the jobs be claimed here again that an interrupted move took out; return how many.

    Only for when its target is gone for good: jobs that had arrived there would be in both.
    """
    return source._core.store.run(lambda _: give_all_back())
