"""The page where people put it: below any path of any framework, behind a proxy, in `dibs serve`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from starlette.testclient import TestClient

from dibs import Dibs, NewJob
from dibs.dashboard import Dashboard
from dibs.integrations.service import Credentials, make_service
from tests.support.web_apps import PLACES, in_django

STATIC = Path(__file__).parents[2] / "src" / "dibs" / "dashboard" / "static"
TOKEN = "a token for tests only"


@pytest.mark.parametrize(("place", "prefix"), PLACES.items())
def test_pages_assets_and_acts_work_wherever_it_is_mounted(
    app: Dibs, place: Callable[[Dashboard], Any], prefix: str
) -> None:
    [job] = app.sync.enqueue(NewJob("greet"))
    client = TestClient(place(Dashboard(app, insecure=True)))

    for path, name in (("", "overview"), ("jobs", "jobs"), (f"jobs/{job.id}", "job")):
        response = client.get(f"{prefix}{path}")
        assert f'data-page="{name}"' in response.text
        for link in re.findall(r'(?:href|src)="([^"#]+)"', response.text):
            assert client.get(urljoin(f"{prefix}{path}", link.replace("&amp;", "&"))).status_code == 200, link

    token = re.search(r'name="token_of_form" value="([^"]+)"', response.text)
    assert token is not None
    form = {"token_of_form": token[1], "back": f"jobs/{job.id}", "act": f"cancel job {job.id}"}
    changed = client.post(urljoin(f"{prefix}jobs/{job.id}", "../act"), data=form)

    assert changed.url.path == f"{prefix}jobs/{job.id}"
    assert "greet is cancelled" in changed.text


def test_the_rest_of_a_django_project_is_its_own(app: Dibs) -> None:
    client = TestClient(in_django(Dashboard(app, insecure=True)))

    assert client.get("/own/").text == "django's own"


# -- dibs serve ---------------------------------------------------------------------------------


@contextmanager
def served(app: Dibs, *, ui: bool = True) -> Iterator[TestClient]:
    credentials = Credentials(token=TOKEN)
    page = Dashboard(app, authorize=credentials.login()) if ui else None
    web = make_service(app, credentials, page=page)
    with TestClient(web, base_url="http://localhost:8000") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/"])
def test_its_address_leads_to_the_page(app: Dibs, path: str) -> None:
    with served(app) as client:
        response = client.get(path)

    assert (response.status_code, response.url.path) == (200, "/ui/login")


def test_the_page_can_be_left_out(app: Dibs) -> None:
    with served(app, ui=False) as client:
        assert [client.get(path).status_code for path in ("/", "/ui/", "/ui/login")] == [404, 404, 404]


def test_wrong_tokens_count_for_the_page_and_the_routes_together(app: Dibs) -> None:
    with served(app) as client:
        for number in range(20):
            client.post("/ui/login", data={"token": f"wrong {number}"})

        assert client.get("/jobs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 429


def test_a_session_of_the_page_does_not_open_the_routes(app: Dibs) -> None:
    with served(app) as client:
        assert 'data-page="overview"' in client.post("/ui/login", data={"token": TOKEN}).text

        assert client.get("/jobs").status_code == 401


# -- what is shipped ----------------------------------------------------------------------------


def test_all_scripts_together_are_small() -> None:
    assert sum(file.stat().st_size for file in STATIC.glob("*.js")) <= 120 * 1024


def test_what_comes_from_elsewhere_has_its_licence_and_version() -> None:
    [script] = json.loads((STATIC / "vendored.cdx.json").read_text())["components"]

    assert (script["name"], script["version"]) == ("idiomorph", "0.8.0")
    assert script["hashes"][0]["content"] == sha256((STATIC / "idiomorph.js").read_bytes()).hexdigest()
    assert "Zero-Clause BSD" in (STATIC / "idiomorph.LICENSE.txt").read_text()


def test_scripts_and_styles_hold_nothing_that_the_policy_refuses() -> None:
    for file in STATIC.glob("*.js"):
        assert not re.search(r"\beval\(|new Function|\.cssText|\.style\.", file.read_text()), file
    assert "url(" not in (STATIC / "dibs.css").read_text()
