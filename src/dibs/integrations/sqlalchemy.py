"""Read-only models of the tables of dibs, for your own queries: reports, joins with your rows, dashboards.

    session.scalars(select(AnyJob).where(AnyJob.kind == "send_receipt", AnyJob.state == "failed"))

Whoever changes a job by hand breaks promises that others rely on, so these can't: every model stands on a
subquery, which SQLAlchemy has no way to write to, and changed objects are refused when they are flushed. The
columns are those of the tables and may grow with them; what never changes is on `Dibs`.
"""

import importlib.util

if importlib.util.find_spec("sqlalchemy") is None:
    raise ModuleNotFoundError(
        "dibs.integrations.sqlalchemy needs SQLAlchemy: pip install 'dibs[sqlalchemy]'", name="sqlalchemy"
    )


from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
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


# -- Values as every store answers them ---------------------------------------------------------


class Id(TypeDecorator[UUID]):
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


class Moment(TypeDecorator[datetime]):
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
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """JSON that the store keeps as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else msgspec.json.decode(value)


class State(TypeDecorator[JobState]):
    """A `JobState`, which is a string."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else JobState(value).value

    def process_result_value(self, value: Any, dialect: Any) -> JobState | None:
        return None if value is None else JobState(value)


# -- Tables -------------------------------------------------------------------------------------

JOB_COLUMNS: dict[str, Any] = {
    "id": Id,
    "kind": Text,
    "queue": Text,
    "args": Json,
    "priority": Integer,
    "state": State,
    "attempts": Integer,
    "max_attempts": Integer,
    "run_at": Moment,
    "enqueued_at": Moment,
    "claimed_at": Moment,
    "finished_at": Moment,
    "worker": Text,
    "token": BigInteger,
    "lease_until": Moment,
    "train": Text,
    "slot": Text,
    "on_cancelled": Text,
    "on_failed": Text,
    "unique_key": Text,
    "pipeline_id": Id,
    "parent_id": Id,
    "progress": Double,
    "message": Text,
    "result": Json,
    "errors": Json,
    "tags": Json,
    "meta": Json,
    "cancel_reason": Text,
    "settled_token": BigInteger,
    "settled_as": Text,
    "position": BigInteger,
    "slot_policy": Text,
    "slot_limit": Integer,
    "unique_until": Moment,
}
TABLES: dict[str, dict[str, Any]] = {
    "jobs": JOB_COLUMNS,
    "finished": JOB_COLUMNS,
    "queues": {"name": Text, "paused": Boolean, "max_running": Integer},
    "workers": {
        "name": Text,
        "queues": Json,
        "kinds": Json,
        "concurrency": Integer,
        "running": Integer,
        "started_at": Moment,
        "seen_at": Moment,
    },
    "schedules": {"name": Text, "last_tick": Moment},
    "gates": {"sort": Text, "name": Text, "last_position": BigInteger, "held_by": Id, "offer_ends": Moment},
    "pipelines": {"id": Id, "name": Text, "on_failed": Text},
    "parents": {"child": Id, "place": Integer, "parent": Id, "met": Boolean},
}
KEYS = {"gates": ("sort", "name"), "parents": ("child", "place")}  # the first column of every other table


class JobColumns:
    """What a job has. `dibs.Job` says what each of these means."""

    if TYPE_CHECKING:
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.kind} {self.state}>"


class AnyJobColumns(JobColumns):
    """The same, live or finished."""

    if TYPE_CHECKING:
        is_finished: Mapped[bool]


class QueueColumns:
    """Only queues that somebody paused or limited have a row."""

    if TYPE_CHECKING:
        name: Mapped[str]
        paused: Mapped[bool]
        max_running: Mapped[int | None]


class WorkerColumns:
    """Who works here."""

    if TYPE_CHECKING:
        name: Mapped[str]
        queues: Mapped[list[str] | None]
        kinds: Mapped[list[str]]
        concurrency: Mapped[int]
        running: Mapped[int]
        started_at: Mapped[datetime]
        seen_at: Mapped[datetime]


class ScheduleColumns:
    """How far each schedule got."""

    if TYPE_CHECKING:
        name: Mapped[str]
        last_tick: Mapped[datetime]


class GateColumns:
    """A train or slot (`sort`) that somebody is at; `held_by` names the job that holds up a train."""

    if TYPE_CHECKING:
        sort: Mapped[str]
        name: Mapped[str]
        last_position: Mapped[int]
        held_by: Mapped[UUID | None]
        offer_ends: Mapped[datetime | None]


class PipelineColumns:
    """A pipeline whose jobs wait for each other, as long as one of them is not finished."""

    if TYPE_CHECKING:
        id: Mapped[UUID]
        name: Mapped[str]
        on_failed: Mapped[str]


class StepColumns:
    """That one job of a pipeline waits for another, and whether that one has succeeded."""

    if TYPE_CHECKING:
        child: Mapped[UUID]
        place: Mapped[int]
        parent: Mapped[UUID]
        met: Mapped[bool]


class Models(NamedTuple):
    """The models of one store."""

    LiveJob: type[JobColumns]
    """What can still run: scheduled, blocked, ready, running."""
    FinishedJob: type[JobColumns]
    """What has succeeded, failed or was cancelled, and is still kept."""
    AnyJob: type[AnyJobColumns]
    """Both."""
    Queue: type[QueueColumns]
    Worker: type[WorkerColumns]
    Schedule: type[ScheduleColumns]
    Gate: type[GateColumns]
    Pipeline: type[PipelineColumns]
    Step: type[StepColumns]


# -- Models -------------------------------------------------------------------------------------


def models(prefix: str | None = None) -> Models:
    """The models of the store with this prefix; of `$DIBS_PREFIX`, else of `dibs`, if none is given."""
    return _models(read_settings({"prefix": prefix}).prefix)


@cache
def _models(start: str) -> Models:
    tables = {name: _selected(start, name, columns) for name, columns in TABLES.items()}
    live, finished = tables["jobs"], tables["finished"]
    both = union_all(
        live.add_columns(literal(False, Boolean).label("is_finished")),
        finished.add_columns(literal(True, Boolean).label("is_finished")),
    )

    class Base(DeclarativeBase):
        """A registry of its own: these are nobody else's tables to make."""

        def __init__(self, *_: Any, **__: Any) -> None:
            _refuse(type(self).__name__)

    for moment in ("before_insert", "before_update", "before_delete"):
        event.listen(Base, moment, _refuse_flush, propagate=True)

    def model(name: str, columns: type, selected: Any, table: str) -> Any:
        rows = selected.subquery(f"{start}_{table}_read_only")
        key = [rows.c[column] for column in KEYS.get(table, rows.c.keys()[:1])]
        about = {"__table__": rows, "__mapper_args__": {"primary_key": key}}
        return type(name, (columns, Base), {**about, "__module__": __name__, "__doc__": columns.__doc__})

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


def _selected(prefix: str, name: str, columns: dict[str, Any]) -> Select[Any]:
    made = [Column(column, type) for column, type in columns.items()]
    return select(Table(f"{prefix}_{name}", MetaData(), *made))


def _refuse_flush(_: Any, __: Any, target: Any) -> NoReturn:
    _refuse(type(target).__name__)


def _refuse(name: str) -> NoReturn:
    raise BadRequest(
        f"{name} is read-only: jobs are changed through Dibs, which keeps its promises; "
        "app.enqueue, cancel, retry, delete, pause …"
    )


LiveJob, FinishedJob, AnyJob, Queue, Worker, Schedule, Gate, Pipeline, Step = models("dibs")
