"""Which parts of a job leave the server: `router(fields=…)`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from fastapi import Header

from dibs import BadRequest, Dibs, Job, NewJob
from tests.support.web_apps import EventReader, client_of, make_web, on_a_port

USUAL = ["args", "errors", "meta", "result"]
ALL = [*USUAL, "traceback"]


def failed_job(app: Dibs, **options: Any) -> Job:
    """Return a job with all its parts, which failed with a traceback."""
    new = NewJob("charge", args={"card": "4111"}, meta={"by": "ann"}, max_attempts=1, **options)
    [job] = app.sync.enqueue(new)
    claim = app.sync.claim_job(job.id)
    assert claim is not None
    with suppress(ValueError), claim:
        raise ValueError("expired")
    done = app.sync.get(job.id)
    assert done is not None
    assert done.errors[0].traceback
    return done


def parts(job: dict[str, Any]) -> list[str]:
    """Return which parts an answer has."""
    found = [name for name in USUAL if name in job]
    return found + ["traceback"] * any("traceback" in error for error in job.get("errors", []))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, USUAL),
        ((), []),
        (["args"], ["args"]),
        (["errors", "traceback"], ["errors", "traceback"]),
        (ALL, ALL),
    ],
)
def test_every_answer_has_the_parts_that_the_app_named(app: Dibs, fields: Any, expected: list[str]) -> None:
    job = failed_job(app)
    options = {} if fields is None else {"fields": fields}

    with client_of(make_web(app, **options)) as client:
        answers = [
            client.get("/jobs").json()["jobs"][0],
            client.get(f"/jobs/{job.id}").json(),
            client.post("/jobs", json={"kind": "charge", "id": str(job.id)}).json(),
            client.post(f"/jobs/{job.id}/retry").json(),
            client.post(f"/jobs/{job.id}/cancel").json(),
        ]

    assert [parts(answer) for answer in answers] == [expected] * len(answers)
    assert {answer["kind"] for answer in answers} == {"charge"}
    assert ("test_fields.py" in str(answers)) == ("traceback" in expected)


def test_so_has_every_event(app: Dibs) -> None:
    job = failed_job(app)
    [whole] = app.sync.enqueue(NewJob("after", pipeline_id=job.id))
    app.sync.cancel(whole.id)

    async def follow(port: int) -> list[dict[str, Any]]:
        streams = [await EventReader.open(port, f"/{path}/{job.id}/events") for path in ("jobs", "pipelines")]
        return [(await stream.rest())[0]["data"] for stream in streams]

    with on_a_port(make_web(app, fields=["errors"])) as port:
        of_job, of_pipeline = asyncio.run(follow(port))

    assert parts(of_job) == ["errors"]
    assert [parts(each) for each in of_pipeline["jobs"]] == [["errors"]]


async def of_user(authorization: str = Header()) -> list[str]:
    return ALL if authorization == "writer" else ["result"]


def test_the_parts_may_depend_on_the_user(app: Dibs) -> None:
    job = failed_job(app)

    with client_of(make_web(app, fields=of_user)) as client:
        seen = [
            parts(client.get(f"/jobs/{job.id}", headers={"authorization": user}).json())
            for user in ("reader", "writer")
        ]

    assert seen == [["result"], ALL]


@pytest.mark.parametrize("fields", ["args", ["arguments"], 7], ids=repr)
def test_parts_that_do_not_exist_are_refused(app: Dibs, fields: Any) -> None:
    with pytest.raises(BadRequest, match=r"fields=.*args, result, errors, traceback, meta"):
        make_web(app, fields=fields)


@pytest.mark.parametrize(("fields", "quoted"), [(USUAL, True), (["args"], False)])
def test_why_quotes_an_error_only_where_errors_are_shown(app: Dibs, fields: Any, quoted: bool) -> None:
    job = failed_job(app)

    with client_of(make_web(app, fields=fields)) as client:
        assert ("expired" in client.get(f"/jobs/{job.id}/why").text) is quoted


def test_a_traceback_of_a_job_is_one_that_was_stored(app: Dibs) -> None:
    with client_of(make_web(app, fields=ALL)) as client:
        [error] = client.get(f"/jobs/{failed_job(app).id}").json()["errors"]

    assert "expired" in error["message"]
    assert "test_fields.py" in error["traceback"]
