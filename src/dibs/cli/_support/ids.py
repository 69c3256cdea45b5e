"""Ids as people type them: whole, or their last characters, which are looked for among the newest jobs."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from dibs.app.dibs import SyncDibs
from dibs.cli._support.options import MOST_LISTED, ShortId
from dibs.errors import Refused
from dibs.operations.queries import newest_ids

NEWEST = 10_000


def whole_id(store: SyncDibs, id: Any) -> Any:
    """Return the id of the one job of the newest that ends with what was typed."""
    if not isinstance(id, ShortId):
        return id
    ids: list[UUID] = store._core.store.run(lambda _: newest_ids(NEWEST))
    return _one_of(ids, id, f"no job of the newest {NEWEST:,}")


def whole_pipeline_id(store: SyncDibs, id: Any) -> Any:
    """Return the id of the one pipeline of the newest that ends with what was typed."""
    if not isinstance(id, ShortId):
        return id
    pipelines = store.pipelines.list(limit=MOST_LISTED)
    return _one_of([one.id for one in pipelines], id, f"no pipeline of the newest {MOST_LISTED:,}")


def with_whole_ids(store: SyncDibs, filter: dict[str, Any]) -> dict[str, Any]:
    """Return the filter with the whole id of its pipeline."""
    if "pipeline_id" not in filter:
        return filter
    return {**filter, "pipeline_id": whole_pipeline_id(store, filter["pipeline_id"])}


def _one_of(ids: Iterable[UUID], end: str, none: str) -> Any:
    found = [id for id in ids if str(id).endswith(end) or id.hex.endswith(end)]
    if not found:
        raise Refused(f"{none} has an id that ends with {end!r}: give the whole id")
    if len(found) > 1:
        some = " and ".join(map(str, found[:2]))
        raise Refused(f"{len(found)} ids end with {end!r}, like {some}: give more characters")
    return found[0]
