"""Read-only models of the tables of dibs, for your own queries: reports, joins with your rows, dashboards.

    session.scalars(select(AnyJob).where(AnyJob.kind == "send_receipt", AnyJob.state == "failed"))

A change of a job by hand would break the promises of dibs, so these models can't change anything: each is
mapped to a subquery, to which SQLAlchemy can't write, and a flush of a changed object is refused. The columns
are the columns of the tables, which may get more; the stable interface is `Dibs`.
"""

import importlib.util

if importlib.util.find_spec("sqlalchemy") is None:
    raise ModuleNotFoundError(
        "dibs.integrations.sqlalchemy needs SQLAlchemy: pip install 'dibs[sqlalchemy]'", name="sqlalchemy"
    )


from datetime import UTC, datetime
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, NoReturn, get_args, get_type_hints
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    MetaData,
    Select,
    String,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    event,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.mysql import BINARY, DATETIME
from sqlalchemy.orm import DeclarativeBase, Mapped

from dibs.clock import from_micros, to_micros
from dibs.errors import BadRequest
from dibs.jobs.states import JobState
from dibs.settings import read_settings

__all__ = [
    "AnyJob",
    "FinishedJob",
    "Gate",
    "LiveJob",
    "Models",
    "Pipeline",
    "Queue",
    "Schedule",
    "Step",
    "Worker",
    "models",
]


# -- Values, equal from every store -------------------------------------------------------------


class JobId(TypeDecorator[UUID]):
    """A job's id: `uuid` on PostgreSQL, 16 bytes on MariaDB, text on SQLite."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        match dialect.name:
            case "sqlite":
                return dialect.type_descriptor(String(36))
            case "mysql" | "mariadb":
                return dialect.type_descriptor(BINARY(16))
        return dialect.type_descriptor(Uuid())

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if value is None:
            return None
        id = value if isinstance(value, UUID) else UUID(str(value))
        return {"sqlite": str(id), "mysql": id.bytes, "mariadb": id.bytes}.get(dialect.name, id)

    def process_result_value(self, value: Any, dialect: Any) -> UUID | None:
        if value is None or isinstance(value, UUID):
            return value
        return UUID(bytes=value) if isinstance(value, bytes) else UUID(value)


class UtcTime(TypeDecorator[datetime]):
    """A time with its zone: microseconds since 1970 on SQLite, UTC without a zone on MariaDB."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        match dialect.name:
            case "sqlite":
                return dialect.type_descriptor(BigInteger())
            case "mysql" | "mariadb":
                return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise BadRequest(f"{value!r} has no time zone; say datetime(..., tzinfo=UTC)")
        match dialect.name:
            case "sqlite":
                return to_micros(value)
            case "mysql" | "mariadb":
                return value.astimezone(UTC).replace(tzinfo=None)
        return value

    def process_result_value(self, value: Any, dialect: Any) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, int):
            return from_micros(value)
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON that the store keeps as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else msgspec.json.decode(value)


class StateText(TypeDecorator[JobState]):
    """A `JobState`, which is a string."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else JobState(value).value

    def process_result_value(self, value: Any, dialect: Any) -> JobState | None:
        return None if value is None else JobState(value)


# -- Columns ------------------------------------------------------------------------------------


class JobColumns:
    """The columns of a job; `dibs.Job` explains them."""

    id: Mapped[UUID]
    kind: Mapped[str]
    queue: Mapped[str]
    args: Mapped[dict[str, Any]]
    priority: Mapped[int]
    state: Mapped[JobState]
    attempts: Mapped[int]
    max_attempts: Mapped[int]
    run_at: Mapped[datetime]
    enqueued_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    worker: Mapped[str | None]
    token: Mapped[int | None]
    lease_until: Mapped[datetime | None]
    train: Mapped[str | None]
    slot: Mapped[str | None]
    on_cancelled: Mapped[str]
    on_failed: Mapped[str]
    unique_key: Mapped[str | None]
    pipeline_id: Mapped[UUID | None]
    parent_id: Mapped[UUID | None]
    progress: Mapped[float]
    message: Mapped[str | None]
    result: Mapped[Any]
    errors: Mapped[list[dict[str, Any]]]
    tags: Mapped[list[str]]
    meta: Mapped[dict[str, Any]]
    cancel_reason: Mapped[str | None]
    settled_token: Mapped[int | None]
    settled_as: Mapped[str | None]
    position: Mapped[int | None]
    slot_policy: Mapped[str | None]
    slot_limit: Mapped[int | None]
    unique_until: Mapped[datetime | None]


class AnyJobColumns(JobColumns):
    """The columns of a live or finished job."""

    is_finished: Mapped[bool]


class QueueColumns:
    """The columns of a queue that is paused or limited; other queues have no row."""

    name: Mapped[str]
    paused: Mapped[bool]
    max_running: Mapped[int | None]


class WorkerColumns:
    """The columns of a worker that is registered."""

    name: Mapped[str]
    version: Mapped[str | None]
    queues: Mapped[list[str] | None]
    kinds: Mapped[list[str]]
    concurrency: Mapped[int]
    running: Mapped[int]
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]


class ScheduleColumns:
    """The columns of a schedule: its name, its last tick, and what else there is about it, as JSON text."""

    name: Mapped[str]
    last_tick: Mapped[datetime]
    about: Mapped[str | None]
    revision: Mapped[int]


class GateColumns:
    """The columns of a train or slot (`sort`) that has jobs; `held_by` is the job that holds a train."""

    sort: Mapped[str]
    name: Mapped[str]
    last_position: Mapped[int]
    held_by: Mapped[UUID | None]
    offer_ends: Mapped[datetime | None]


class PipelineColumns:
    """The columns of a pipeline with jobs that wait for parents, until all of them have finished."""

    id: Mapped[UUID]
    name: Mapped[str]
    on_failed: Mapped[str]


class StepColumns:
    """The columns of a child that waits for a parent; `met` when the parent has succeeded."""

    child: Mapped[UUID]
    place: Mapped[int]
    parent: Mapped[UUID]
    met: Mapped[bool]


class Models(NamedTuple):
    """The models of one store."""

    LiveJob: type[JobColumns]
    """Scheduled, blocked, ready or running jobs."""
    FinishedJob: type[JobColumns]
    """Succeeded, failed or cancelled jobs that are still kept."""
    AnyJob: type[AnyJobColumns]
    """Both."""
    Queue: type[QueueColumns]
    Worker: type[WorkerColumns]
    Schedule: type[ScheduleColumns]
    Gate: type[GateColumns]
    Pipeline: type[PipelineColumns]
    Step: type[StepColumns]


COLUMNS: dict[str, type] = {
    "jobs": JobColumns,
    "finished": JobColumns,
    "queues": QueueColumns,
    "workers": WorkerColumns,
    "schedules": ScheduleColumns,
    "gates": GateColumns,
    "pipelines": PipelineColumns,
    "parents": StepColumns,
}
KEYS = {"gates": ("sort", "name"), "parents": ("child", "place")}  # the first column of every other table
SQL_TYPES: dict[Any, Any] = {
    UUID: JobId,
    str: Text,
    int: BigInteger,
    float: Double,
    bool: Boolean,
    datetime: UtcTime,
    JobState: StateText,
}


# -- Models -------------------------------------------------------------------------------------


def models(prefix: str | None = None) -> Models:
    """Return the models of the store with this prefix; by default with `$DIBS_PREFIX`, else `dibs`."""
    return _models(read_settings({"prefix": prefix}).prefix)


@cache
def _models(start: str) -> Models:
    tables = {name: _selected(start, name, columns) for name, columns in COLUMNS.items()}
    live, finished = tables["jobs"], tables["finished"]
    both = union_all(
        live.add_columns(literal(False, Boolean).label("is_finished")),
        finished.add_columns(literal(True, Boolean).label("is_finished")),
    )

    class Base(DeclarativeBase):
        """A registry of its own, so that `create_all` of the user makes none of these tables."""

        def __init__(self, *_: Any, **__: Any) -> None:
            _refuse(type(self).__name__)

        def __repr__(self) -> str:
            words = (str(getattr(self, name)) for name in ("id", "kind", "state") if hasattr(self, name))
            return f"<{' '.join([type(self).__name__, *words])}>"

    for name in ("before_insert", "before_update", "before_delete"):
        event.listen(Base, name, lambda _, __, made: _refuse(type(made).__name__), propagate=True)

    def model(name: str, columns: type, selected: Any, table: str) -> Any:
        rows = selected.subquery(f"{start}_{table}_read_only")
        key = [rows.c[column] for column in KEYS.get(table, rows.c.keys()[:1])]
        about = {"__table__": rows, "__mapper_args__": {"primary_key": key}}
        return type(name, (Base,), {**about, "__module__": __name__, "__doc__": columns.__doc__})

    return Models(
        model("LiveJob", JobColumns, live, "jobs"),
        model("FinishedJob", JobColumns, finished, "finished"),
        model("AnyJob", AnyJobColumns, both, "jobs_and_finished"),
        model("Queue", QueueColumns, tables["queues"], "queues"),
        model("Worker", WorkerColumns, tables["workers"], "workers"),
        model("Schedule", ScheduleColumns, tables["schedules"], "schedules"),
        model("Gate", GateColumns, tables["gates"], "gates"),
        model("Pipeline", PipelineColumns, tables["pipelines"], "pipelines"),
        model("Step", StepColumns, tables["parents"], "parents"),
    )


def _selected(prefix: str, name: str, columns: type) -> Select[Any]:
    made = [Column(column, _sql_type(mapped)) for column, mapped in get_type_hints(columns).items()]
    return select(Table(f"{prefix}_{name}", MetaData(), *made))


def _sql_type(mapped: Any) -> Any:
    """Return the type of a column from its annotation, like `Mapped[str | None]`; JSON for all else."""
    [hint] = get_args(mapped)
    plain = [each for each in get_args(hint) if each is not type(None)] if isinstance(hint, UnionType) else []
    return SQL_TYPES.get(plain[0] if plain else hint, JsonText)


def _refuse(name: str) -> NoReturn:
    raise BadRequest(
        f"{name} is read-only: jobs are changed through Dibs, which keeps its promises; "
        "app.enqueue, cancel, retry, delete, pause …"
    )


LiveJob, FinishedJob, AnyJob, Queue, Worker, Schedule, Gate, Pipeline, Step = models("dibs")
