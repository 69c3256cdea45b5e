"""Jobs in Django's admin: what is listed, found and shown, and the buttons for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings

from dibs import NewJob, Worker
from dibs.integrations.django import app, store
from dibs.jobs.ids import new_id
from tests.support import django_shop
from tests.support.django_project import pointed_at
from tests.support.raw_sql import bare_store


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A project whose tables of users and jobs are made by `migrate`."""
    with pointed_at(bare_store(request.param, request, tmp_path)):
        call_command("migrate", verbosity=0)
        yield


@pytest.fixture
def staff(project: None) -> Client:
    return client_of(User.objects.create_superuser("ann", password="x"))


def client_of(user: User | AnonymousUser) -> Client:
    client = Client()
    if isinstance(user, User):
        client.force_login(user)
    return client


def texts(page: Any) -> str:
    assert page.status_code == 200, page
    return re.sub(r"\s+", " ", page.content.decode())


def enqueue(*kinds: str) -> list[Any]:
    return app.sync.enqueue(*(NewJob(kind, {"order_id": 4711}) for kind in kinds))


def test_jobs_are_listed_newest_first_with_their_error(staff: Client) -> None:
    django_shop.broken.enqueue()
    asyncio.run(_drain())
    enqueue("waits")

    page = texts(staff.get("/admin/dibs/job/"))

    assert page.index(">waits</a>") < page.index(">tests.support.django_shop.broken</a>")
    assert "ValueError: this does not work" in page
    assert "Jobs" in texts(staff.get("/admin/"))


def test_the_list_is_narrowed_by_state_and_by_a_search(staff: Client) -> None:
    one, _ = enqueue("one", "other")
    app.sync.cancel(one.id)

    narrowed = texts(staff.get("/admin/dibs/job/", {"state": "cancelled"}))
    searched = texts(staff.get("/admin/dibs/job/", {"q": "kind:oth* args.order_id:4711"}))

    assert (">one</a>" in narrowed, ">other</a>" in narrowed) == (True, False)
    assert (">one</a>" in searched, ">other</a>" in searched) == (False, True)


def test_a_search_that_means_nothing_is_said(staff: Client) -> None:
    enqueue("one")

    for asked in ({"q": "state:nonsense"}, {"state": "nonsense"}, {"after": "nonsense"}):
        page = texts(staff.get("/admin/dibs/job/", asked))
        assert "nonsense" in page
        assert ">one</a>" in page


def test_pages_follow_each_other(staff: Client) -> None:
    enqueue(*(f"kind-{n}" for n in range(60)))

    first = texts(staff.get("/admin/dibs/job/"))
    [older] = re.findall(r'href="\?(after=[^"]*)">Older', first)
    second = texts(staff.get(f"/admin/dibs/job/?{older}"))

    shown = [re.findall(r">(kind-\d+)</a>", page) for page in (first, second)]
    assert [len(kinds) for kinds in shown] == [50, 10]
    assert len({kind for kinds in shown for kind in kinds}) == 60


def test_a_job_is_shown_with_the_reason_why_it_waits(staff: Client) -> None:
    [job] = enqueue("<b>waits</b>")
    app.sync.pause("default")

    page = texts(staff.get(f"/admin/dibs/job/{job.id}/change/"))

    assert "paused" in page
    assert "&quot;order_id&quot;: 4711" in page
    assert "<b>waits" not in page


def test_chosen_jobs_are_retried_and_cancelled(staff: Client) -> None:
    jobs = enqueue("one", "two", "three")
    chosen = [str(job.id) for job in jobs[:2]]

    cancelled = staff.post("/admin/dibs/job/", {"act": "cancel", "job": chosen}, follow=True)
    states = [app.sync.get(job.id).state for job in jobs]
    retried = staff.post("/admin/dibs/job/", {"act": "retry", "job": chosen[:1]}, follow=True)

    assert "2 jobs cancelled" in texts(cancelled)
    assert states == ["cancelled", "cancelled", "ready"]
    assert "1 job will run again" in texts(retried)
    assert app.sync.get(jobs[0].id).state == "ready"
    assert "by ann in the admin" in str(app.sync.why(jobs[1].id))


def test_what_is_refused_is_said_and_changes_nothing(staff: Client) -> None:
    [job] = enqueue("one")
    app.sync.claim_job(job.id).succeed()

    page = staff.post(f"/admin/dibs/job/{job.id}/change/", {"act": "retry"}, follow=True)

    assert "succeeded" in texts(page)
    assert "errorlist" in texts(page) or 'class="error"' in texts(page)
    assert app.sync.get(job.id).state == "succeeded"


def test_an_unknown_job_is_not_found(staff: Client) -> None:
    for id in (new_id(), "nonsense"):
        assert staff.get(f"/admin/dibs/job/{id}/change/").status_code == 404


def test_it_works_where_each_request_is_a_transaction(staff: Client) -> None:
    [job] = enqueue("one")
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True

    try:
        staff.post(f"/admin/dibs/job/{job.id}/change/", {"act": "cancel"})
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False

    assert app.sync.get(job.id).state == "cancelled"


def test_permissions_are_djangos_own(project: None) -> None:
    [job] = enqueue("one")
    reader, writer, other = (User.objects.create_user(name, is_staff=True) for name in ("r", "w", "o"))
    for user, names in ((reader, ["view_job"]), (writer, ["view_job", "change_job"])):
        user.user_permissions.set(
            Permission.objects.filter(codename__in=names, content_type__app_label="dibs")
        )
    address = f"/admin/dibs/job/{job.id}/change/"

    nobody = client_of(AnonymousUser()).get(address)
    told = {name: client_of(user).get(address).status_code for name, user in (("r", reader), ("o", other))}
    refused = client_of(reader).post(address, {"act": "cancel"}).status_code
    state = app.sync.get(job.id).state
    client_of(writer).post(address, {"act": "cancel"})

    assert (nobody.status_code, told, refused, state) == (302, {"r": 200, "o": 403}, 403, "ready")
    assert 'name="act"' not in texts(client_of(reader).get(address))
    assert app.sync.get(job.id).state == "cancelled"


def test_a_page_of_another_site_changes_nothing(staff: Client) -> None:
    [job] = enqueue("one")
    forger = Client(enforce_csrf_checks=True)
    forger.cookies = staff.cookies

    forged = forger.post(f"/admin/dibs/job/{job.id}/change/", {"act": "cancel"})

    assert (forged.status_code, app.sync.get(job.id).state) == (403, "ready")


def test_jobs_of_another_store_are_shown_too(staff: Client, tmp_path: Path) -> None:
    with override_settings(DIBS={"URL": f"sqlite:///{tmp_path}/elsewhere.db"}):
        store.follow()
        enqueue("elsewhere")
        page = texts(staff.get("/admin/dibs/job/"))
        app.sync.close()
    store.follow()

    assert ">elsewhere</a>" in page


async def _drain() -> None:
    await Worker(app).run(until_idle=True)
    await app.close()
