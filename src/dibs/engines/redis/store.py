"""A Redis or Valkey server as a store, and `within=` of pipelines that belong to the caller.

A caller's pipeline returns nothing before its EXEC. So an enqueue returns the job as it was asked for, and a
settle assumes that the claim still holds: if not, the EXEC itself replies with an error (LEASELOST). Redis
rolls nothing back: everything else in that EXEC is done all the same.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from dibs.clock import from_micros, store_micros
from dibs.engines.redis.connection import RedisNode
from dibs.engines.redis.engine import Redis
from dibs.engines.redis.pools import AsyncRedis, SyncRedis
from dibs.engines.retries import Tries, again, again_async
from dibs.engines.store import Operation, Pooled, WithoutTables
from dibs.errors import UnsupportedConnection
from dibs.faces import Call, Calls
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.scripts import Row, Rows, Step, run, run_async
from dibs.settings import Settings

T = TypeVar("T")
Face = Literal["sync", "async"]


class RedisStore(Pooled, WithoutTables):
    """A Redis or Valkey server, or one slot of a cluster of them."""

    traits = Redis.traits

    def __init__(self, settings: Settings) -> None:
        self._engine = Redis(settings.prefix)
        self._node = RedisNode(settings.url)
        self._sync = SyncRedis(self._engine, self._node, settings.pool_size)
        self._async = AsyncRedis(self._engine, self._node, settings.pool_size)
        self._checked = False

    def run(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            self.open()
        if within is not None:
            return self._run_within(operation, within, "sync")
        return again(lambda tries: run(operation(tries), self._sync.execute))

    async def run_async(self, operation: Operation[T], within: Any = None) -> T:
        if not self._checked:
            await self.open_async()
        if within is not None:
            return self._run_within(operation, within, "async")
        return await again_async(lambda tries: run_async(operation(tries), self._async.execute))

    def _run_within(self, operation: Operation[T], within: Any, face: Face) -> T:
        pipeline = _checked(within, self._node, face)
        return run(operation(Tries()), _adding_to(pipeline, self._engine))

    async def listen(self, hear: Callable[[str], None]) -> None:
        await self._async.listen(hear)

    def _opening(self) -> Calls[None]:
        if not self._checked:
            yield Call(
                lambda: again(lambda _: self._sync.open()), lambda: again_async(lambda _: self._async.open())
            )
            self._checked = True


# -- Pipelines of the caller --------------------------------------------------------------------

# Classes by their qualified name, so that redis-py need not be installed; the attribute that says whether the
# commands are sent as one transaction.
PIPELINES: dict[str, tuple[Face, str]] = {
    "redis.client.Pipeline": ("sync", "transaction"),
    "redis.asyncio.client.Pipeline": ("async", "is_transaction"),
}

_RUN_AT, _DELAY = (NEW_JOB_COLUMNS.index(name) for name in ("run_at", "delay"))


def _adding_to(pipeline: Any, engine: Redis) -> Callable[[Step], Rows]:
    """Execute steps by adding script calls to the caller's pipeline."""

    def execute(step: Step) -> Rows:
        match step.question:
            case "get":
                return []  # the script reads the job itself
            case "enqueue":
                calls = engine.enqueue_calls(**step.params)
                rows = [_as_asked(job) for job in step.params["jobs"]]
            case "enqueue_pipeline":
                calls = engine.pipelines.enqueue_calls(**step.params)
                waiting = {child for _, child in step.params["edges"]}
                rows = [_as_asked(job, waits=job[0] in waiting) for job in step.params["jobs"]]
            case "settle":
                calls = [engine.settle_or_raise(**step.params)]
                rows = [{"id": settlement[0]} for settlement in step.params["settlements"]]
            case question:
                raise UnsupportedConnection(f"{question} can't be part of a pipeline; leave within= out")
        for call in calls:
            # Never by digest: a server that does not know the script would fail in the middle of the EXEC.
            pipeline.eval(call.script.text, 1, engine.scripts.key, call.argument)
        return rows

    return execute


def _as_asked(job: tuple[Any, ...], *, waits: bool = False) -> Row:
    """Return the job as it will be, with this process's time instead of the store's."""
    now = store_micros()
    run_at = job[_RUN_AT] or from_micros(now + (job[_DELAY] or 0))
    state = "blocked" if waits else "ready" if run_at <= from_micros(now) else "scheduled"
    times = {"run_at": run_at, "enqueued_at": from_micros(now)}
    return {"id": job[0], "holder": job[0], "is_new": True, "state": state, **times}


def _checked(within: object, node: RedisNode, face: Face) -> Any:
    """Return the pipeline if dibs can add to it on this face, for this store."""
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(within).__mro__)
    known = next((PIPELINES[name] for name in names if name in PIPELINES), None)
    if known is None:
        raise _refusal(within, "it is no pipeline that dibs knows")
    own_face, transactional = known
    pipeline: Any = within
    if own_face != face:
        raise _refusal(within, f"it belongs to {'app.sync' if own_face == 'sync' else 'the async app'}")
    if not getattr(pipeline, transactional):
        raise _refusal(within, "it was made with transaction=False")
    if pipeline.watching and not pipeline.explicit_transaction:
        raise _refusal(within, "it is watching keys; call its multi() first")
    database = str(pipeline.connection_pool.connection_kwargs.get("db", 0))
    if database != node.database:
        raise _refusal(within, f"it leads to database {database} and the app's store is {node.name}")
    return pipeline


def _refusal(within: object, why: str) -> UnsupportedConnection:
    name = f"{type(within).__module__}.{type(within).__qualname__}"
    return UnsupportedConnection(
        f"can't work within {name}: {why}; pass a transactional pipeline of redis-py, of the app's store"
    )
