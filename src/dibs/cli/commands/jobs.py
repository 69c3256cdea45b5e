"""`dibs jobs …` and `dibs prune`: list and show jobs, and change some or all of them."""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from dibs.app.dibs import SyncDibs
from dibs.cli._support.changes import CANCEL, DELETE, RETRY, change_all, change_each, prune_all, refuse_states
from dibs.cli._support.config import look_at, store_name
from dibs.cli._support.ids import whole_id, with_whole_ids
from dibs.cli._support.options import (
    MOST_LISTED,
    PAGE_LIMIT,
    All,
    AsJson,
    Id,
    Ids,
    Limit,
    OfKind,
    OfPipeline,
    OfQueue,
    OfSlot,
    OfTrain,
    OfWorker,
    Searched,
    Since,
    SomeIds,
    States,
    Tags,
    Url,
    Yes,
    bad_request_is_bad_usage,
    bad_usage,
    duration,
    filter_of,
    hand_on,
    job_id,
    next_page,
    time_with_zone,
)
from dibs.cli._support.printing import json_text, note, print_json, print_result, print_table, time_text
from dibs.errors import NotFound, Refused
from dibs.jobs.job import Job, JobError
from dibs.jobs.states import FINISHED, JobState
from dibs.log_format import one_line, safe
from dibs.operations.why import Why
from dibs.text import spoken

app = typer.Typer(
    help="List and show jobs, wait for one; retry, cancel, update, recover or delete them.",
    epilog="Example: dibs jobs list --state failed",
    no_args_is_help=True,
)

PRUNE_EXAMPLE = "Example: dibs prune --older-than 7d --state succeeded --yes"
ENDS = [state for state in JobState if state in FINISHED]
LONGEST_VALUE = 60
COLUMNS = ["id", "state", "queue", "kind", "tries", "about"]


@app.callback()
def options(context: typer.Context, url: Url = None, json: AsJson = False) -> None:
    hand_on(context, url, json)


# -- list ---------------------------------------------------------------------------------------


@app.command("list", epilog="Example: dibs jobs list --state failed --queue mail --limit 20")
def list_(
    context: typer.Context,
    state: States = None,
    queue: OfQueue = None,
    kind: OfKind = None,
    tag: Tags = None,
    train: OfTrain = None,
    slot: OfSlot = None,
    pipeline_id: OfPipeline = None,
    worker: OfWorker = None,
    since: Since = None,
    search: Searched = None,
    limit: Limit = PAGE_LIMIT,
    after: Annotated[
        UUID | None, typer.Option(parser=job_id, metavar="ID", help="Only jobs older than this one.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """List jobs, newest first, finished ones included."""
    gates = {"train": train, "slot": slot, "pipeline_id": pipeline_id}
    filter = filter_of(state=state, queue=queue, kind=kind, tags=tag, worker=worker, since=since, **gates)
    with look_at(context, url) as store:
        filter, after = with_whole_ids(store, filter), whole_id(store, after)
        found = store.search(search or "", **filter, limit=min(limit + 1, MOST_LISTED), after=after)
    filter |= filter_of(search=search)
    page, more = found.jobs[:limit], len(found.jobs) > limit or len(found.jobs) == MOST_LISTED
    if json:
        print_json(page)
        return
    if page:
        print_table(COLUMNS, [_row(job) for job in page])
    else:
        note(f"no jobs{' like that' if filter or after else ''} in {store_name(context, url)}")
    if not found.complete:
        note(f"looked at the newest {found.searched:,} jobs that match the rest; older ones may match, too")
    if more or not found.complete:
        words = ["dibs", "jobs", "list", *_flags(filter)]
        note(f"next page: {next_page(words, url or context.obj, limit, page[-1].id if more else found.next)}")


def _row(job: Job) -> list[str | int]:
    return [str(job.id), job.state, job.queue, job.kind, f"{job.attempts}/{job.max_attempts}", about(job)]


def about(job: Job) -> str:
    """Return what matters of a job in its state."""
    match job.state:
        case JobState.scheduled:
            return f"until {time_text(job.run_at)}"
        case JobState.running:
            return f"at {job.worker}{f', {job.progress:.0%}' if job.progress else ''} {job.message or ''}"
        case JobState.failed if job.errors:
            return f"{job.errors[-1].type}: {job.errors[-1].message}"
        case JobState.cancelled if job.message:
            return job.message
        case JobState.succeeded if job.claimed_at and job.finished_at:
            shown = [f"took {spoken((job.finished_at - job.claimed_at).total_seconds())}"]
            shown += [f"args {_cut(job.args)}"] if job.args else []
            return ", ".join(shown if job.result is None else [*shown, f"result {_cut(job.result)}"])
        case _:
            return f"since {time_text(job.finished_at or job.run_at)}"


def _cut(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _flags(filter: dict[str, Any]) -> Iterator[str]:
    for name, given in filter.items():
        for value in given if isinstance(given, list) else [given]:
            text = json_text(value) if isinstance(value, tuple) else str(value)
            yield from (f"--{_FLAG_OF.get(name, name).replace('_', '-')}", text)


_FLAG_OF = {"tags": "tag", "q": "search"}


# -- show ---------------------------------------------------------------------------------------


@app.command("show", epilog="Example: dibs jobs show 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e")
def show(context: typer.Context, id: Id, url: Url = None, json: AsJson = False) -> None:
    """Show all fields and errors of a job, and why it is not running."""
    with look_at(context, url) as store:
        id = whole_id(store, id)
        job = store.get(id)
        if job is None:
            raise NotFound(id)
        why = store.why(id)
    print_result(
        {**msgspec.to_builtins(job), "why": {"code": why.code, "sentence": why.sentence}},
        "\n".join(_lines(job, why)),
        json,
    )


def _lines(job: Job, why: Why) -> Iterator[str]:
    yield f"{'why':<14}{one_line(str(why))}"
    for name in job.__struct_fields__:
        if name not in ("errors", "is_new"):
            yield f"{name:<14}{_shown(getattr(job, name))}"
    for _, alike in groupby(job.errors, key=lambda error: (error.type, error.message, error.traceback)):
        yield from _error_lines(list(alike))


def _shown(value: Any) -> str:
    match value:
        case None | [] | "":
            return "-"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S.%f} UTC"
        case dict() | list() | bool():
            return safe(json_text(value))
        case _:
            return one_line(str(value))


def _error_lines(alike: list[JobError]) -> Iterator[str]:
    """Yield the lines of attempts that failed in the same way, one after another."""
    yield ""
    first, error = alike[0], alike[-1]
    at = f" at {error.worker}" if error.worker else ""
    if len(alike) == 1:
        yield f"attempt {error.attempt} failed{at}, {time_text(error.at)}"
    else:
        yield f"attempts {first.attempt} to {error.attempt} failed alike, the last{at}, {time_text(error.at)}"
    for line in f"{error.type}: {error.message}\n{error.traceback or ''}".splitlines():
        yield f"  {safe(line)}"


# -- wait ---------------------------------------------------------------------------------------


@app.command("wait", epilog="Example: dibs jobs wait 1f2a3b4c5d6e --timeout 10m")
def wait(
    context: typer.Context,
    id: Id,
    timeout: Annotated[
        float | None, typer.Option(parser=duration, metavar="TIME", help="Give up after this long: 30s, 10m.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Wait until a job has finished, and print how it ended; exit code 1 unless it succeeded."""
    with look_at(context, url) as store:
        try:
            job = store.wait(whole_id(store, id), timeout=timeout)
        except TimeoutError as error:
            raise Refused(str(error)) from None
    print_result(job, one_line(f"{job.id} {job.state} {about(job)}"), json)
    raise typer.Exit(0 if job.state == JobState.succeeded else 1)


# -- change -------------------------------------------------------------------------------------


@app.command("retry", epilog="Example: dibs jobs retry --all --state failed --queue mail")
def retry(
    context: typer.Context,
    ids: SomeIds = None,
    all: All = False,
    state: States = None,
    queue: OfQueue = None,
    kind: OfKind = None,
    tag: Tags = None,
    train: OfTrain = None,
    slot: OfSlot = None,
    pipeline_id: OfPipeline = None,
    worker: OfWorker = None,
    since: Since = None,
    search: Searched = None,
    yes: Yes = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Let failed or cancelled jobs run again with all their attempts, and scheduled jobs now."""
    gates = {"train": train, "slot": slot, "pipeline_id": pipeline_id}
    where = {**gates, "worker": worker, "since": since, "q": search}
    filter = filter_of(state=state, queue=queue, kind=kind, tags=tag, **where)
    _check_ids_or_all(ids, all, filter)
    if all:
        change_all(context, url, RETRY, filter, yes=yes, json=json)
    else:
        change_each(context, url, ids, _retry, json)


@app.command(
    "cancel", epilog="Example: dibs jobs cancel 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e --reason 'sent twice'"
)
def cancel(
    context: typer.Context,
    ids: SomeIds = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept with the job.")] = None,
    all: All = False,
    state: States = None,
    queue: OfQueue = None,
    kind: OfKind = None,
    tag: Tags = None,
    train: OfTrain = None,
    slot: OfSlot = None,
    pipeline_id: OfPipeline = None,
    worker: OfWorker = None,
    since: Since = None,
    search: Searched = None,
    yes: Yes = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """End waiting jobs now, and ask running ones to stop."""
    gates = {"train": train, "slot": slot, "pipeline_id": pipeline_id}
    where = {**gates, "worker": worker, "since": since, "q": search}
    filter = filter_of(state=state, queue=queue, kind=kind, tags=tag, **where)
    _check_ids_or_all(ids, all, filter)
    if all:
        change_all(context, url, CANCEL, filter, yes=yes, json=json, reason=reason)
    else:
        change_each(context, url, ids, lambda store, id: _cancelled(store.cancel(id, reason)), json)


@app.command(
    "recover", epilog="Example: dibs jobs recover 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e --stale-after 10m"
)
def recover(
    context: typer.Context,
    ids: Ids,
    stale_after: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="TIME", help="How long ago its lease must have ended. Default: 30m."
        ),
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Take jobs back from workers that are long dead, and let them run again with all their attempts."""
    change_each(
        context, url, ids, lambda store, id: _recovered(store.recover(id, stale_after=stale_after)), json
    )


@app.command("update", epilog="Example: dibs jobs update 01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e --priority 5")
def update(
    context: typer.Context,
    ids: Ids,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher goes first.")] = None,
    run_at: Annotated[
        datetime | None,
        typer.Option(parser=time_with_zone, metavar="TIME", help="Due then, like 2030-01-31T12:00:00Z."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(parser=duration, metavar="TIME", help="Due this long from now: 30s, 2h.")
    ] = None,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Change the priority of waiting jobs, or when they are due."""
    if (priority, run_at, delay) == (None, None, None):
        bad_usage("nothing to change: give --priority, --run-at or --delay")

    def updated(store: SyncDibs, id: UUID) -> tuple[Job, str]:
        job = store.update(id, priority=priority, run_at=run_at, delay=delay)
        return job, f"updated {job.id}: it is {job.state}"

    with bad_request_is_bad_usage():
        change_each(context, url, ids, updated, json)


@app.command(
    "delete", epilog="Example: dibs jobs delete --all --search 'kind:send_* since:2h' --state failed"
)
def delete(
    context: typer.Context,
    ids: SomeIds = None,
    all: All = False,
    state: States = None,
    queue: OfQueue = None,
    kind: OfKind = None,
    tag: Tags = None,
    train: OfTrain = None,
    slot: OfSlot = None,
    pipeline_id: OfPipeline = None,
    worker: OfWorker = None,
    since: Since = None,
    search: Searched = None,
    yes: Yes = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove jobs that are not running, for good."""
    gates = {"train": train, "slot": slot, "pipeline_id": pipeline_id}
    where = {**gates, "worker": worker, "since": since, "q": search}
    filter = filter_of(state=state, queue=queue, kind=kind, tags=tag, **where)
    _check_ids_or_all(ids, all, filter)
    if all:
        change_all(context, url, DELETE, filter, yes=yes, json=json)
    else:
        change_each(context, url, ids, _delete, json)


def _check_ids_or_all(ids: list[UUID] | None, all: bool, filter: dict[str, Any]) -> None:
    if bool(ids) == all:
        bad_usage("give the ids of jobs, or --all, and not both")
    if filter and not all:
        bad_usage(f"{next(_flags(filter))} goes with --all: leave it out where ids name the jobs")


def _retry(store: SyncDibs, id: UUID) -> tuple[Job, str]:
    before, job = store.get(id), store.retry(id)
    if job == before:
        return job, f"{job.id} was {job.state} already: nothing was changed"
    return job, f"retried {job.id}: it is {job.state}"


def _recovered(job: Job) -> tuple[Job, str]:
    return job, f"recovered {job.id}: it is {job.state}"


def _cancelled(job: Job) -> tuple[Job, str]:
    if job.state == JobState.running:
        return job, f"asked {job.id} to stop: it is running at {job.worker}"
    return job, f"cancelled {job.id}"


def _delete(store: SyncDibs, id: UUID) -> tuple[dict[str, Any], str]:
    if not store.delete(id):
        raise NotFound(id)
    return {"id": id, "deleted": True}, f"deleted {id}"


# -- prune --------------------------------------------------------------------------------------


def prune(
    context: typer.Context,
    older_than: Annotated[
        float, typer.Option(parser=duration, metavar="TIME", help="Finished longer ago than this: 12h, 7d.")
    ],
    state: Annotated[
        list[JobState] | None,
        typer.Option(metavar="STATE", help=f"Only in this state; may be given again: {', '.join(ENDS)}."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask first.")] = False,
    url: Url = None,
    json: AsJson = False,
) -> None:
    """Remove jobs that finished long ago, for good.

    Workers do this, too, as the settings `keep` and `keep_for` say.
    """
    refuse_states("prune", state or (), ENDS)
    prune_all(context, url, older_than, state or ENDS, yes=yes, json=json)
