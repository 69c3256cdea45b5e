"""Pipelines that the caller owns: what dibs is asked goes along with the caller's own EXEC.

A pipeline answers nothing before it is executed. So an enqueue answers with the job as it was asked for,
and a settle takes it that the claim still holds: if not, the EXEC itself replies with an error (LEASELOST).
Redis undoes nothing: what else is in that EXEC is done all the same.
"""

from collections.abc import Callable
from typing import Any, Literal

from dibs.clock import from_micros, store_micros
from dibs.engines.redis.connection import Nodes
from dibs.engines.redis.engine import Redis
from dibs.errors import UnsupportedConnection
from dibs.jobs.job import NEW_JOB_COLUMNS
from dibs.operations.scripts import Row, Rows, Step

Colour = Literal["sync", "async"]

# Classes by their qualified name, so that redis-py need not be there; the attribute that says whether the
# commands are sent as one transaction.
PIPELINES: dict[str, tuple[Colour, str]] = {
    "redis.client.Pipeline": ("sync", "transaction"),
    "redis.asyncio.client.Pipeline": ("async", "is_transaction"),
}

_RUN_AT, _DELAY = (NEW_JOB_COLUMNS.index(name) for name in ("run_at", "delay"))


def bind_pipeline(within: object, engine: Redis, nodes: Nodes, colour: Colour) -> Callable[[Step], Rows]:
    """Answer steps by adding script calls to the caller's pipeline."""
    pipeline: Any = _checked(within, nodes, colour)

    def execute(step: Step) -> Rows:
        match step.question:
            case "get":
                return []  # the script looks for itself
            case "enqueue":
                calls = engine.enqueue_calls(**step.params)
                rows = [_as_asked(job) for job in step.params["jobs"]]
            case "enqueue_pipeline":
                calls = engine.enqueue_pipeline_calls(**step.params)
                waiting = {child for _, child in step.params["edges"]}
                rows = [_as_asked(job, waits=job[0] in waiting) for job in step.params["jobs"]]
            case "settle":
                calls = [engine.settle_or_raise(**step.params)]
                rows = [{"id": settlement[0]} for settlement in step.params["settlements"]]
            case question:
                raise UnsupportedConnection(f"{question} can't be part of a pipeline; leave within= out")
        for call in calls:
            # Never by digest: a server that has not seen the script would fail in the middle of the EXEC.
            pipeline.eval(call.script.text, 1, engine.key, call.argument)
        return rows

    return execute


def _as_asked(job: tuple[Any, ...], *, waits: bool = False) -> Row:
    """How the job will be, with the time of this process for that of the store."""
    now = store_micros()
    run_at = job[_RUN_AT] or from_micros(now + (job[_DELAY] or 0))
    state = "blocked" if waits else "ready" if run_at <= from_micros(now) else "scheduled"
    times = {"run_at": run_at, "enqueued_at": from_micros(now)}
    return {"id": job[0], "holder": job[0], "is_new": True, "state": state, **times}


def _checked(within: object, nodes: Nodes, colour: Colour) -> Any:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(within).__mro__)
    known = next((PIPELINES[name] for name in names if name in PIPELINES), None)
    if known is None:
        raise UnsupportedConnection(_refusal(within, "it is no pipeline that dibs knows"))
    own_colour, transactional = known
    pipeline: Any = within
    if own_colour != colour:
        other = "app.sync" if own_colour == "sync" else "the async app"
        raise UnsupportedConnection(_refusal(within, f"it belongs to {other}"))
    if not getattr(pipeline, transactional):
        raise UnsupportedConnection(_refusal(within, "it was made with transaction=False"))
    if pipeline.watching and not pipeline.explicit_transaction:
        raise UnsupportedConnection(_refusal(within, "it is watching keys; call its multi() first"))
    database = str(pipeline.connection_pool.connection_kwargs.get("db", 0))
    if database != nodes.database:
        raise UnsupportedConnection(
            _refusal(within, f"it leads to database {database} and the app's store is {nodes.name}")
        )
    return pipeline


def _refusal(within: object, why: str) -> str:
    name = f"{type(within).__module__}.{type(within).__qualname__}"
    return f"can't work within {name}: {why}; pass a transactional pipeline of redis-py, of the app's store"
