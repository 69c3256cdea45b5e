"""Jobs in Django's admin: list, search, filter, one job and why it does not run, retry, cancel.

It asks the project's app, so it shows any store; there are no rows that Django's ORM could read.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from dibs.errors import BadRequest, DibsError
from dibs.integrations.django.models import Job as JobModel
from dibs.integrations.django.store import app
from dibs.jobs.job import Job
from dibs.jobs.states import JobState
from dibs.text import numbered

PAGE = 50
ACTS = ("retry", "cancel")
SHOWN_APART = ("errors", "args", "result", "is_new")


class ListedJob(NamedTuple):
    """A job in the list, and what matters of it in its state."""

    job: Job
    about: str


class JobAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The pages at admin/dibs/job/."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show a page of jobs, newest first; a POST retries or cancels the chosen ones."""
        self._check_view(request)
        if request.method == "POST":
            self._act(request, request.POST.getlist("job"))
            return HttpResponseRedirect(request.get_full_path())
        given = ((name, request.GET.get(name)) for name in ("q", "state", "after"))
        asked: dict[str, Any] = {name: value for name, value in given if value}
        filter = {"state": asked.get("state"), "after": asked.get("after")}
        try:
            found = app.sync.search(asked.get("q", ""), limit=PAGE, **filter)
        except BadRequest as error:  # a search that means nothing: say so, and show all
            messages.error(request, str(error))
            found, asked = app.sync.search("", limit=PAGE), {}
        kept = {name: value for name, value in asked.items() if name != "after"}
        return self._page(
            request,
            "jobs.html",
            title="Jobs",
            jobs=[ListedJob(job, _about(job)) for job in found.jobs],
            found=found,
            asked=asked,
            states=list(_choices(kept)),
            next=urlencode([*kept.items(), ("after", found.next)]) if found.next else None,
        )

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show a job, its attempts, and why it does not run; a POST retries or cancels it."""
        self._check_view(request)
        if request.method == "POST":
            self._act(request, [object_id])
            return HttpResponseRedirect(request.get_full_path())
        try:
            job = app.sync.get(object_id)
        except BadRequest:
            job = None
        if job is None:
            raise Http404(f"there is no job {object_id}: it was never enqueued here, or it was pruned")
        names = [name for name in job.__struct_fields__ if name not in SHOWN_APART]
        return self._page(
            request,
            "job.html",
            title=job.kind,
            job=job,
            why=str(app.sync.why(job.id)),
            facts=[
                (name, value) for name in names if (value := getattr(job, name)) not in (None, "", [], {})
            ],
            args=_json(job.args),
            result=_json(job.result) if job.state is JobState.succeeded else None,
        )

    def _check_view(self, request: Any) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _act(self, request: Any, ids: list[str]) -> None:
        """Retry or cancel jobs; say how many, and of the others why not."""
        act = request.POST.get("act", "")
        if act not in ACTS or not self.has_change_permission(request):
            raise PermissionDenied
        change: Callable[..., Any] = getattr(app.sync, act)
        extra = {"reason": f"by {request.user} in the admin"} if act == "cancel" else {}
        changed = 0
        for id in ids:
            try:
                change(id, **extra)
            except DibsError as error:
                messages.error(request, str(error))
            else:
                changed += 1
        if changed or not ids:
            done = {"retry": "will run again", "cancel": "cancelled, or asked to stop"}[act]
            messages.success(request, f"{numbered(changed, 'job')} {done}" if ids else "no job was chosen")

    def _page(self, request: Any, template: str, **context: Any) -> TemplateResponse:
        about = {**self.admin_site.each_context(request), "opts": self.model._meta, "acts": ACTS, **context}
        about["may_change"] = self.has_change_permission(request)
        about["list_url"] = reverse(f"{self.admin_site.name}:dibs_job_changelist")
        return TemplateResponse(request, f"admin/dibs/{template}", about)


def _about(job: Job) -> str:
    if job.state is JobState.failed and job.errors:
        return f"{job.errors[-1].type}: {job.errors[-1].message}"
    return job.message or ""


def _choices(kept: dict[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Yield name, query and whether it is chosen, of each state that a list can be narrowed to."""
    others = {name: value for name, value in kept.items() if name != "state"}
    yield "all", urlencode(others), "state" not in kept
    for state in JobState:
        yield state.value, urlencode({**others, "state": state.value}), kept.get("state") == state.value


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


admin.site.register(JobModel, JobAdmin)
