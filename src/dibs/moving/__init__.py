"""`dibs move`: carry everything from one store to another, while both are in use.

A job goes in four steps, each of them one transaction of one store:

1. it *departs*: out of the tables of the source, where nobody can claim it any more, into a note;
2. it *arrives* in the target, which notes that it came and from where;
3. it has *landed*: the source forgets its note,
4. and the target forgets its own.

So it can never be claimed in both, and whatever dies in between, the same move run again goes on with what
it finds noted: a job that departed is delivered, one that had arrived is not stored a second time, not even
if it was done and pruned meanwhile.
"""

from dibs.app.dibs import Dibs
from dibs.engines.store import Operation
from dibs.moving.checks import give_all_back, introduce, looking, without_mover
from dibs.moving.lock import alone, alone_sync
from dibs.moving.report import KeyTaken, Moved, Planned, Running, Told, Way
from dibs.moving.steps import run, run_async
from dibs.moving.transfer import moving
from dibs.operations.pipelines import refuse_open_pipelines
from dibs.settings import Duration

__all__ = [
    "KeyTaken",
    "Moved",
    "Planned",
    "Running",
    "Told",
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
) -> Moved:
    """Move all jobs, settings of queues and last ticks of schedules; safe to interrupt and run again.

    Running jobs are waited for, at most `timeout` long, or left where they are. `told` hears how far it got.
    """
    way = Way(running, timeout, told)
    await source._core.store.run_async(_nobody_waits())
    who, _ = await run_async(source, target, introduce())
    async with alone(who, target) as alive:
        moved = await run_async(source, target, moving(way), alive)
    return without_mover(moved)


def move_sync(
    source: Dibs,
    target: Dibs,
    *,
    running: Running = "wait",
    timeout: Duration | None = None,
    told: Told | None = None,
) -> Moved:
    """The same for code that blocks."""
    way = Way(running, timeout, told)
    source._core.store.run(_nobody_waits())
    who, _ = run(source, target, introduce())
    with alone_sync(who, target) as alive:
        moved = run(source, target, moving(way), alive)
    return without_mover(moved)


def _nobody_waits() -> Operation[None]:
    return lambda _: refuse_open_pipelines()


async def look(source: Dibs, target: Dibs) -> Planned:
    """What a move would do; nothing is changed."""
    return await run_async(source, target, looking())


def look_sync(source: Dibs, target: Dibs) -> Planned:
    """The same for code that blocks."""
    return run(source, target, looking())


def give_back_sync(source: Dibs) -> int:
    """Let the jobs be claimed here again that an interrupted move took out; how many.

    Only for when its target is gone for good: what had arrived there would be in both.
    """
    return source._core.store.run(lambda _: give_all_back())
