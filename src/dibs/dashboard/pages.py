"""What each page shows: one function per page that reads it, with the budget of questions it costs."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cronsim import CronSim, CronSimError

from dibs.app.dibs import Dibs
from dibs.app.scopes import why_shown
from dibs.clock import wall
from dibs.dashboard import drawings
from dibs.dashboard.bulk import check_search, count_found, exact_preview
from dibs.dashboard.charts import SPANS, activity
from dibs.dashboard.checkup import Checkup, icon_of, worth_saying
from dibs.dashboard.outboxes import outbox_page
from dibs.dashboard.proof import Proof
from dibs.dashboard.rendering import assets_version
from dibs.dashboard.sessions import Visitor
from dibs.dashboard.twins import (
    twins_of,
    twins_of_pipeline,
    twins_of_queues,
    twins_of_schedules,
    twins_of_search,
    twins_of_trains,
)
from dibs.dashboard.waiting import MOST_TRAFFIC, flows_of, reasons_of
from dibs.errors import NotFound
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job
from dibs.jobs.pipelines import Pipeline
from dibs.jobs.states import FINISHED, WAITING, JobState
from dibs.operations.search import Count
from dibs.outbox import Outbox

PER_PAGE = 50
MOST_GROUPS = 100
MOST_RUNNING = 200  # jobs that the page of workers shows
NAV = ("jobs", "queues", "trains", "slots", "pipelines", "schedules", "workers", "outbox", "health")
CAN_RETRY = (JobState.failed, JobState.cancelled, JobState.scheduled)


class NoSuchPage(Exception):
    """There is no page at this path."""


@dataclass(frozen=True, slots=True, eq=False)
class DashboardPage:
    """A page: its template, the function that reads it, and how many questions that asks."""

    template: str
    load: "Callable[[View], Awaitable[dict[str, Any]]]"
    questions: int = 2
    whole_store: bool = False
    """It is about jobs of all tenants, so a scope that is a part of them can't see it."""
    shows_queue: bool = False
    """A scope that is one whole queue sees it, with that queue alone."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One page as one user sees it."""

    app: Dibs
    page: DashboardPage
    id: str | None
    params: dict[str, str]
    visitor: Visitor
    outbox: Outbox | None
    checkup: Checkup
    proof: Proof | None

    @property
    def key(self) -> str:
        """The page, the search and the scope: views of one key show the same data."""
        filter = sorted(self.visitor.scope.filter.items())
        return repr(
            (
                self.page.template,
                self.id,
                sorted(self.params.items()),
                filter,
                self.visitor.role,
                sorted(self.visitor.fields),
            )
        )

    @property
    def parts(self) -> list[str]:
        name = next(name for name, page in PAGES.items() if page is self.page)
        return [part for part in (name.rstrip("/"), self.id) if part]

    async def load(self) -> dict[str, Any]:
        return await self.page.load(self)

    def context(self, data: dict[str, Any]) -> dict[str, Any]:
        visitor = self.visitor
        return {
            "now": now(),
            "fields": visitor.fields,
            "whole": not visitor.scope.filter,
            "nav": [name for name in NAV if name in PAGES and self.may_open(PAGES[name])],
            "icon": "ok",
            "q": self.params.get("q", ""),
            **data,
        }

    def may_open(self, page: DashboardPage) -> bool:
        scope = self.visitor.scope.filter
        return not scope or not page.whole_store or (page.shows_queue and set(scope) == {"queue"})

    def named_id(self) -> UUID:
        return parse_id(self.id or "")


def now() -> datetime:
    return datetime.fromtimestamp(wall(), UTC)


# -- overview -----------------------------------------------------------------------------------


async def overview(view: View) -> dict[str, Any]:
    app, scope = view.app, view.visitor.scope
    running = await app.find(state="running", limit=10, **scope.narrowed())
    failed = await app.find(state="failed", limit=10, **scope.narrowed())
    seen = {job.id for job in running}
    data: dict[str, Any] = {"running": running, "failed": [job for job in failed if job.id not in seen]}
    if scope.filter:
        return data
    queues, workers = await app.queues(), await app.workers()
    reasons = await reasons_of(app, queues, workers)
    counts = dict.fromkeys((state.value for state in JobState if state not in FINISHED), 0)
    for queue in queues:
        for state, number in queue.counts.items():
            counts[state] = counts.get(state, 0) + number
    span = view.params.get("span", "hour")
    stats = await app.stats(since=SPANS.get(span, SPANS["hour"]))
    findings = worth_saying(await view.checkup.recent() or [])
    flows = await flows_of(app)
    failed_in_all = sum(flow.failed for flow in flows.values())
    return {
        **data,
        "queues": queues,
        "workers": workers,
        "reasons": reasons,
        "counts": counts,
        "failures": Count(number=failed_in_all, capped=failed_in_all >= MOST_TRAFFIC),
        "charts": activity(stats),
        "spans": list(SPANS),
        "span": span if span in SPANS else "hour",
        "flows": flows,
        "findings": findings,
        "icon": "warn"
        if any(one.stuck for one in reasons) and icon_of(findings) == "ok"
        else icon_of(findings),
    }


# -- jobs ---------------------------------------------------------------------------------------


async def jobs(view: View) -> dict[str, Any]:
    q, scope = view.params.get("q", "").strip(), view.visitor.scope
    check_search(q, view.visitor)
    filter, after = scope.narrowed(), view.params.get("after") or None
    found = await view.app.search(q, limit=PER_PAGE, after=after, **filter)
    count, bulk = await count_found(view.app, q, found, after, filter) if q else (None, [])
    if q and view.visitor.may_write and (asked := view.params.get("preview")):
        bulk = [await exact_preview(view.app, asked, q, filter)]
    return {
        "jobs": found.jobs,
        "bulk": bulk,
        "next": found.next,
        "searched": None if found.complete else found.searched,
        "count": count,
        "states": [(state.value, with_state(q, state), f"state:{state}" in q.split()) for state in JobState],
        "words": without_each(q),
        "twins": twins_of_search(q),
    }


def with_state(q: str, state: str) -> str:
    """Return the search with this state instead of its own."""
    return " ".join([f"state:{state}", *(word for word in q.split() if not word.startswith("state:"))])


def without_each(q: str) -> list[tuple[str, str]]:
    """Return each word of a search but its states, and the search without it."""
    words = re.findall(r'(?:[^\s"]|"(?:\\.|[^"\\])*"?)+', q)
    return [
        (word, " ".join(words[:number] + words[number + 1 :]))
        for number, word in enumerate(words)
        if not word.startswith("state:")
    ]


async def job(view: View) -> dict[str, Any]:
    app, visitor = view.app, view.visitor
    found = await app.get(view.named_id())
    if found is None or not visitor.scope.allows(found):
        raise NotFound(view.named_id())
    why = await app.why(found.id)
    refused = await app.refusals(found.id)
    return {
        "job": found,
        "questions": 8 if found.state in WAITING else 4,
        "why": await why_shown(app, why, visitor.scope, visitor.fields),
        "recover_at": recover_at(app, found),
        "can_recover": can_recover(app, found),
        "retries": found.state in CAN_RETRY,
        "waits": found.state in WAITING,
        "lanes": drawings.lanes(found, refused, now()),
        "refused": [(one, drawings.says_refused(one)) for one in refused],
        "children": await children_of(view, found),
        "twins": twins_of(found, with_args="args" in visitor.fields),
        "icon": {"failed": "bad", "running": "busy"}.get(found.state, "ok"),
    }


def recover_at(app: Dibs, job: Job) -> datetime | None:
    if job.state != JobState.running or job.lease_until is None:
        return None
    return job.lease_until + timedelta(seconds=app._core.settings.stale_after)


def can_recover(app: Dibs, job: Job) -> bool:
    at = recover_at(app, job)
    died = job.state == JobState.failed and bool(job.errors) and job.errors[-1].message == "worker died"
    return died or (at is not None and at <= now())


async def children_of(view: View, job: Job) -> list[Job]:
    if job.pipeline_id is None:
        return []
    members = await view.app.find(pipeline_id=job.pipeline_id, limit=200, **view.visitor.scope.narrowed())
    return [one for one in members if one.parent_id == job.id]


# -- queues, trains, slots, workers, schedules --------------------------------------------------


async def queues(view: View) -> dict[str, Any]:
    only = view.visitor.scope.filter.get("queue")
    return {
        "queues": [one for one in await view.app.queues() if only in (None, one.name)],
        "flows": await flows_of(view.app),
        "twins": twins_of_queues(),
    }


async def trains(view: View) -> dict[str, Any]:
    held = await view.app.trains.held()
    found = await view.app.trains.list(limit=MOST_GROUPS, after=view.params.get("after") or None)
    names = {one.name for one in held}
    others = [one for one in found if one.name not in names]
    more = found[-1].name if len(found) == MOST_GROUPS else None
    return {
        "held": held,
        "trains": others,
        "next": more,
        "icon": "warn" if held else "ok",
        "twins": twins_of_trains(),
    }


async def schedules(view: View) -> dict[str, Any]:
    found = await view.app.schedules.list()
    return {"schedules": [(one, in_words(one.rule)) for one in found], "twins": twins_of_schedules()}


def in_words(rule: str | None) -> str | None:
    """Return what a cron expression means; None for an interval, which says so itself."""
    try:
        return None if rule is None else CronSim(rule, now()).explain()
    except CronSimError:
        return None


async def workers(view: View) -> dict[str, Any]:
    found = await view.app.workers()
    running = await view.app.find(state="running", limit=MOST_RUNNING)
    by_worker: dict[str | None, list[Job]] = {}
    for one in running:
        by_worker.setdefault(one.worker, []).append(one)
    names = {worker.name for worker in found}
    elsewhere = {name: jobs for name, jobs in by_worker.items() if name not in names}
    return {"workers": found, "by_worker": by_worker, "elsewhere": elsewhere}


async def health(view: View) -> dict[str, Any]:
    findings = await view.checkup.fresh()
    return {
        "findings": findings,
        "proof": view.proof and (view.proof.is_running, view.proof.lines),
        "icon": icon_of(findings),
        "version": assets_version(),
        "schema": await view.app.schema_version(),
    }


# -- pipelines ----------------------------------------------------------------------------------


async def pipeline(view: View) -> dict[str, Any]:
    found = await pipeline_within(view)
    return {
        "pipeline": found,
        "twins": twins_of_pipeline(found.id),
        "graph": drawings.graph(found),
        "bars": drawings.bars(found, now()),
        "can_cancel": not found.is_finished,
        "can_retry": any(job.state in (JobState.failed, JobState.cancelled) for job in found.jobs),
        "icon": "busy" if not found.is_finished else "bad" if found.counts["failed"] else "ok",
    }


async def pipeline_within(view: View) -> Pipeline:
    """Return the pipeline with the jobs of the scope; other jobs are neither shown nor counted."""
    found = await view.app.pipelines.get(view.named_id())
    members = () if found is None else tuple(one for one in found.jobs if view.visitor.scope.allows(one))
    if found is None or not members:
        raise NotFound(view.named_id(), "pipeline")
    return replace(found, jobs=members)


async def slots(view: View) -> dict[str, Any]:
    found = await view.app.slots.list(limit=MOST_GROUPS, after=view.params.get("after") or None)
    return {"slots": found, "next": found[-1].key if len(found) == MOST_GROUPS else None}


async def pipelines(view: View) -> dict[str, Any]:
    found = await view.app.pipelines.list(limit=PER_PAGE, after=view.params.get("after") or None)
    return {"pipelines": found, "next": found[-1].id if len(found) == PER_PAGE else None}


PAGES: dict[str, DashboardPage] = {
    "": DashboardPage("overview", overview, questions=14),
    "jobs": DashboardPage("jobs", jobs, questions=5),
    "jobs/": DashboardPage("job", job, questions=4),
    "queues": DashboardPage("queues", queues, questions=5, whole_store=True, shows_queue=True),
    "trains": DashboardPage("trains", trains, questions=4, whole_store=True),
    "slots": DashboardPage("slots", slots, questions=3, whole_store=True),
    "pipelines": DashboardPage("pipelines", pipelines, questions=3, whole_store=True),
    "schedules": DashboardPage("schedules", schedules, questions=1, whole_store=True),
    "pipelines/": DashboardPage("pipeline", pipeline, questions=4),
    "workers": DashboardPage("workers", workers, questions=2, whole_store=True),
    "outbox": DashboardPage("outbox", outbox_page, questions=3, whole_store=True),
    "health": DashboardPage("health", health, questions=20, whole_store=True),
}
