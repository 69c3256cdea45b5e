"""`dibs workers`, `dibs slots` and `dibs pipelines`: what there is, with counts."""

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from dibs.cli._support.config import look_at, store_name
from dibs.cli._support.ids import whole_pipeline_id
from dibs.cli._support.options import (
    PAGE_LIMIT,
    AsJson,
    Limit,
    Url,
    hand_on,
    next_page,
    pipeline_id,
)
from dibs.cli._support.printing import note, print_json, print_result, print_table, some, time_text
from dibs.cli.commands.jobs import about
from dibs.errors import NotFound
from dibs.jobs.job import Job
from dibs.jobs.pipelines import Branch, Pipeline
from dibs.log_format import one_line
from dibs.operations.pipelines import PipelineInfo
from dibs.operations.queries import Slot
from dibs.operations.upkeep import WorkerInfo

WORKERS_EXAMPLE = "Example: dibs workers"
SLOTS_EXAMPLE = "Example: dibs slots --limit 20"
MOST_NAMED = 5  # kinds

pipelines = typer.Typer(
    invoke_without_command=True,
    epilog="Example: dibs pipelines, or dibs pipelines show 1f2a3b4c5d6e",
)


# -- workers ------------------------------------------------------------------------------------


def workers(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    """List the workers that were heard of lately, and how many jobs each runs."""
    with look_at(context, url) as store:
        found = store.workers()
    if json:
        print_json(found)
    elif found:
        columns = ["worker", "busy", "queues", "kinds", "dibs", "started", "seen"]
        print_table(columns, [_worker(one) for one in found])
    else:
        note(f"no worker was heard of lately in {store_name(context, url)}")


def _worker(worker: WorkerInfo) -> list[str | int]:
    queues = "all" if worker.queues is None else ", ".join(worker.queues)
    times = [time_text(worker.started_at), time_text(worker.seen_at)]
    busy = f"{worker.running}/{worker.concurrency}"
    return [worker.name, busy, queues, some(worker.kinds, MOST_NAMED), worker.version or "?", *times]


# -- slots --------------------------------------------------------------------------------------


def slots(
    context: typer.Context,
    limit: Limit = PAGE_LIMIT,
    after: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only slots with keys after this one.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List the slots with waiting or running jobs, and the job of each that started last."""
    with look_at(context, url) as store:
        page = store.slots.list(limit=limit, after=after)
    if json:
        print_json([msgspec.to_builtins(slot) for slot in page])
        return
    if page:
        columns = ["slot", "running", "waiting", "current", "state", "kind", "about"]
        print_table(columns, [_slot(slot) for slot in page])
    else:
        note(f"no job of a slot waits or runs in {store_name(context, url)}")
    if len(page) == limit:
        note(f"next page: {next_page(['dibs', 'slots'], url or context.obj, limit, page[-1].key)}")


def _slot(slot: Slot) -> list[str | int]:
    job = slot.current
    current = ["-"] * 4 if job is None else [str(job.id), job.state, job.kind, about(job)]
    return [slot.key, slot.running, slot.waiting, *current]


# -- pipelines ----------------------------------------------------------------------------------


@pipelines.callback()
def list_pipelines(
    context: typer.Context,
    limit: Limit = PAGE_LIMIT,
    after: Annotated[
        UUID | None,
        typer.Option(parser=pipeline_id, metavar="ID", help="Only pipelines older than this one."),
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List the pipelines, newest first, with how far they are; show the jobs of one."""
    hand_on(context, url, json)
    if context.invoked_subcommand is not None:
        return
    with look_at(context, url) as store:
        page = store.pipelines.list(limit=limit, after=whole_pipeline_id(store, after))
    if json:
        print_json(page)
        return
    if page:
        print_table(["id", "name", "progress", "jobs"], [_pipeline(one) for one in page])
    else:
        note(f"no pipeline has jobs in {store_name(context, url)}")
    if len(page) == limit:
        note(f"next page: {next_page(['dibs', 'pipelines'], context.obj, limit, page[-1].id)}")


def _pipeline(pipeline: PipelineInfo) -> list[str | int]:
    return [str(pipeline.id), pipeline.name or "-", f"{pipeline.progress:.0%}", _counts(pipeline.counts)]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)


@pipelines.command("show", epilog="Example: dibs pipelines show 1f2a3b4c5d6e")
def show_pipeline(
    context: typer.Context,
    id: Annotated[
        UUID,
        typer.Argument(parser=pipeline_id, metavar="ID", help="The pipeline's id, or its last 8 characters."),
    ],
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Show the jobs of a pipeline, each below the one that it follows."""
    with look_at(context, url) as store:
        id = whole_pipeline_id(store, id)
        pipeline = store.pipelines.get(id)
    if pipeline is None:
        raise NotFound(id, "pipeline")
    print_result(_shown(pipeline), "\n".join(_lines(pipeline)), json)


def _shown(pipeline: Pipeline) -> dict[str, object]:
    about = {"id": pipeline.id, "name": pipeline.name, "on_failed": pipeline.on_failed}
    far = {"counts": pipeline.counts, "progress": pipeline.progress}
    after = {str(id): parents for id, parents in pipeline.after.items()}
    return {**about, **far, "jobs": pipeline.jobs, "after": after}


def _lines(pipeline: Pipeline) -> Iterator[str]:
    name = "" if pipeline.name is None else f" {one_line(pipeline.name)}"
    yield f"{pipeline.id}{name}: {pipeline.progress:.0%}, {_counts(pipeline.counts)}"
    for branch in pipeline.tree:
        yield from _branch(branch, 1)


def _branch(branch: Branch, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{_job(branch.job)}"
    for child in branch.then:
        yield from _branch(child, depth + 1)


def _job(job: Job) -> str:
    return one_line(f"{job.id} {job.state} {job.kind} {about(job)}")
