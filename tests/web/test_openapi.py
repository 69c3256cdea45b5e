"""The OpenAPI document is true: random requests made from it get the documented responses."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dibs import Dibs, NewJob
from dibs.engines.memory.engine import MemoryStore
from dibs.integrations.fastapi import router
from dibs.jobs.ids import new_id
from tests.support.internals import core_of
from tests.support.web_apps import WRITER, client_of, make_web

JOB = new_id()
ENDLESS = "/events"

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

app = Dibs("memory://", max_payload=100_000)
web = make_web(app)
schema = schemathesis.openapi.from_asgi("/openapi.json", web).exclude(path=ENDLESS)
OPERATIONS = {each.ok().label: each.ok() for each in schema.get_all_operations()}


# Valid requests and, where a request can be invalid, invalid ones.
CASES = [(label, GenerationMode.POSITIVE) for label in OPERATIONS]
CASES += [(label, GenerationMode.NEGATIVE) for label in OPERATIONS if "{id}" in label or "/jobs" in label]


@pytest.mark.parametrize("examples", [5, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize(("operation", "mode"), CASES, ids=str)
def test_no_request_is_answered_with_a_surprise(operation: str, mode: GenerationMode, examples: int) -> None:
    @hypothesis.given(case=OPERATIONS[operation].as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        _ask(case)

    ask()


def _ask(case: schemathesis.Case) -> None:
    core_of(app).use(MemoryStore())
    app.sync.enqueue(NewJob("work", id=JOB, pipeline_id=JOB))
    app.sync.cancel(JOB)  # else a client that watches it would wait for ever
    if "id" in case.path_parameters and case.meta is not None and case.meta.generation.mode.is_positive:
        case.path_parameters["id"] = str(JOB)

    response = case.call(headers=WRITER)

    case.validate_response(response, checks=CHECKS)


def test_every_operation_says_what_it_does() -> None:
    document = web.openapi()
    operations = [each for path in document["paths"].values() for each in path.values()]

    assert len(operations) == len(router(app, insecure=True).routes)
    assert all(each["summary"] for each in operations)
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert {"Job", "JobPage", "NewJob", "Problem"} <= set(document["components"]["schemas"])


def test_the_routes_may_live_under_a_prefix() -> None:
    outer = FastAPI()
    outer.include_router(router(app, insecure=True), prefix="/admin/dibs")

    with client_of(outer) as client:
        assert client.get("/admin/dibs/jobs").status_code == 200
