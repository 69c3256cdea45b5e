"""`dibs enqueue KIND [JSON]`: store a job without the code that runs it."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from msgspec import structs

from dibs.app.dibs import SyncDibs
from dibs.cli._support.config import open_store
from dibs.cli._support.ids import whole_pipeline_id
from dibs.cli._support.options import AsJson, Url, bad_usage, duration, json_object, slot_key, time_with_zone
from dibs.cli._support.options import pipeline_id as read_pipeline_id
from dibs.cli._support.printing import note, print_json
from dibs.errors import Refused
from dibs.jobs.gates import SLOT_POLICIES
from dibs.jobs.job import Job, NewJob

EXAMPLE = """Example: dibs enqueue send_receipt '{"order_id": 42}' --queue mail --delay 10m"""


def command(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job: what is to be done.")],
    args: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="Its arguments, a JSON object; - reads it from stdin."),
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The queue. Default: default.")] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher runs first. Default: 0.")] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="Not before this time has passed: 30s, 10m, 2h, 7d."
        ),
    ] = None,
    run_at: Annotated[
        datetime | None,
        typer.Option(parser=time_with_zone, metavar="WHEN", help="Not before: 2030-01-31T12:00:00Z."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="How many attempts it has. Default: 3.")
    ] = None,
    unique: Annotated[
        str | None, typer.Option(metavar="KEY", help="Store nothing while an unfinished job has this key.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run strictly after the train's earlier jobs.")
    ] = None,
    slot: Annotated[
        Any,
        typer.Option(
            parser=slot_key,
            metavar="KEY",
            help="Of all jobs with this key one runs at a time: a name, or its parts as a JSON array.",
        ),
    ] = None,
    slot_policy: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help=f"If the slot is taken: {', '.join(SLOT_POLICIES)}. Default: wait."
        ),
    ] = None,
    slot_limit: Annotated[
        int | None, typer.Option(metavar="N", help="How many jobs of the slot run at a time. Default: 1.")
    ] = None,
    on_cancelled: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="If it is cancelled, its train: advance (default) or hold."),
    ] = None,
    on_failed: Annotated[
        str | None, typer.Option(metavar="WORD", help="If it fails, its train: advance (default) or hold.")
    ] = None,
    pipeline_id: Annotated[
        UUID | None,
        typer.Option(parser=read_pipeline_id, metavar="ID", help="The pipeline it belongs to."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag; may be given again.")] = None,
    meta: Annotated[
        str | None, typer.Option(metavar="JSON", help="Notes to keep with it, a JSON object.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Store a job for a worker that knows its kind, and print its id.

    The options of its @app.job do not apply: without --max-attempts it has 3 attempts, and so on. Its retry,
    timeout and lease are those of the worker.
    """
    if delay is not None and run_at is not None:
        bad_usage("give --delay or --run-at, not both")
    words: dict[str, Any] = {"slot_policy": slot_policy, "on_cancelled": on_cancelled, "on_failed": on_failed}
    new = NewJob(
        kind,
        args=json_object(_from_stdin() if args == "-" else args, "the arguments"),
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        max_attempts=max_attempts,
        unique=unique,
        train=train,
        slot=slot,
        slot_limit=slot_limit,
        pipeline_id=pipeline_id,
        tags=tag or (),
        meta=json_object(meta, "--meta"),
        **words,  # checked as every option is
    )
    with open_store(context, url) as store:
        new = structs.replace(new, pipeline_id=whole_pipeline_id(store, new.pipeline_id))
        _print(_enqueue(store, new), new, json)


def _from_stdin() -> bytes:
    return typer.get_binary_stream("stdin").read()


def _enqueue(store: SyncDibs, new: NewJob) -> Job:
    if not store.traits.shared:
        raise Refused("this store ends with the command; use sqlite:///file.db or a server")
    [job] = store.enqueue(new)
    return job


def _print(job: Job, new: NewJob, json: bool) -> None:
    if json:
        print_json(job)
        return
    if not job.is_new:
        note(f"nothing new: {_taken(job, new)} is {job.state}")
    typer.echo(job.id)


def _taken(job: Job, new: NewJob) -> str:
    if new.unique is not None and job.unique == new.unique:
        return f"a job with the unique key {job.unique!r}"
    return f"a job of the slot {job.slot!r}"
