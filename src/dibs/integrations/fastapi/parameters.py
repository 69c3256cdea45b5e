"""What several routes share: parameters of requests, responses to document, the audit log."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Query

from dibs.app.dibs import Dibs
from dibs.integrations.fastapi import models
from dibs.jobs.states import JobState

MOST_PER_PAGE = 200

Id = Annotated[UUID, Path(description="The job's id.")]
QueueName = Annotated[str, Path(min_length=1, max_length=200)]
Named = Annotated[str | None, Query(min_length=1, max_length=200)]
Limit = Annotated[
    int, Query(ge=1, description=f"How many per page, at most {MOST_PER_PAGE}; more is cut to that.")
]
Slot = Annotated[
    str | None, Query(min_length=1, max_length=700, description="A name, or its parts as a JSON array.")
]
Since = Annotated[str | None, Query(max_length=20, description="Enqueued in `30s`, `10m`, `2h` or `7d`.")]
Search = Annotated[
    str | None,
    Query(max_length=2000, description="Like `state:failed args.order_id:42 error:Timeout words`."),
]
Tags = Annotated[list[str], Query(max_length=20, description="Only jobs with all of these tags.")]
States = Annotated[list[JobState], Query(max_length=20)]

REFUSED: dict[int | str, dict[str, Any]] = {
    409: {"model": models.Problem, "description": "Refused; the detail has the reason"}
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": models.Problem, "description": "Not found"}}


def audit(app: Dibs, verb: str, about: UUID | str, by: Any) -> None:
    """Log a change as an event, with the user's name if the permission returned one."""
    app._core.events.acted(verb, str(about), by if isinstance(by, str) else None)
