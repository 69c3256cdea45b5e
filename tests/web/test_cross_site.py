"""Pages of other sites change nothing through the session of a visitor."""

from __future__ import annotations

import pytest

from dibs import Dibs
from tests.support.web_apps import client_of, make_web

ELSEWHERE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://shop.example"}, 200),  # a proxy renames us
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://testserver"}, 200),
        (ELSEWHERE, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://testserver.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
    ],
    ids=repr,
)
def test_a_page_of_another_site_changes_nothing(app: Dibs, said: dict[str, str], status: int) -> None:
    with client_of(make_web(app)) as client:
        answer = client.post("/queues/mail/pause", headers=said)

    assert answer.status_code == status
    assert [queue.paused for queue in app.sync.queues()] == ([True] if status == 200 else [])


def test_a_page_of_another_site_is_told_so_before_its_visitor_is_known(app: Dibs) -> None:
    with client_of(make_web(app), headers={}) as client:
        assert "another site" in client.post("/queues/mail/pause", headers=ELSEWHERE).json()["detail"]


def test_reading_is_left_to_the_browsers_own_rules(app: Dibs) -> None:
    with client_of(make_web(app)) as client:
        assert client.get("/jobs", headers=ELSEWHERE).status_code == 200


def test_an_app_may_serve_pages_of_other_sites(app: Dibs) -> None:
    with client_of(make_web(app, cross_site=True)) as client:
        assert client.post("/queues/mail/pause", headers=ELSEWHERE).status_code == 200
