"""The verbs of many jobs: find and count them, by filter and search, and change all that match."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar
from uuid import UUID

from dibs.app.callbacks import cancelled_events
from dibs.app.state import AppState
from dibs.engines.store import Operation
from dibs.errors import BadRequest
from dibs.faces import Calls, ask, verb
from dibs.jobs import payload
from dibs.jobs.ids import parse_id
from dibs.jobs.job import Job
from dibs.operations import manage, minutes, queries, search
from dibs.operations.manage import Acted
from dibs.operations.minutes import MinuteStats
from dibs.operations.queries import MOST_FOUND, job_filter
from dibs.operations.search import MOST_COUNTED, Count, Found
from dibs.settings import Duration, span

MINUTE_MICROS = 60_000_000

T = TypeVar("T")


class AppVerbs:
    """Verbs of an app, which ask its store."""

    def __init__(self, core: AppState) -> None:
        self._core = core

    def _ask(self, operation: Operation[T]) -> Calls[T]:
        return ask(self._core.store, operation)


class FindVerbs(AppVerbs):
    """The verbs that take a filter of jobs, on both faces."""

    @verb
    def find(
        self,
        *,
        state: str | Sequence[str] | None = None,
        queue: str | None = None,
        kind: str | None = None,
        train: str | None = None,
        slot: str | tuple[Any, ...] | None = None,
        pipeline_id: UUID | str | None = None,
        tags: Sequence[str] | str | None = None,
        worker: str | None = None,
        since: Duration | None = None,
        q: str | None = None,
        limit: int = 50,
        after: UUID | str | None = None,
    ) -> Calls[list[Job]]:
        """Return the jobs that match, newest first; `after` the last id of a page gives the next one.

        `since` means enqueued in so many seconds; `q` is a search, like `state:failed args.order_id:42`.
        """
        named = {"queue": queue, "kind": kind, "train": train, "slot": slot, "pipeline_id": pipeline_id}
        more = {"state": state, "tags": tags, "worker": worker, "since": since}
        return (yield from self._find(limit, after, q=q, **named, **more)).jobs

    @verb
    def search(
        self, q: str, /, *, limit: int = 50, after: UUID | str | None = None, **filter: Any
    ) -> Calls[Found]:
        """Return a page of `find`, and how far it went: by text it looks at the newest 20,000 jobs."""
        return (yield from self._find(limit, after, q=q, **filter))

    def _find(self, limit: int, after: UUID | str | None, **filter: Any) -> Calls[Found]:
        limit = payload.check_whole(limit, "limit", None, MOST_FOUND)
        if limit <= 0:
            return Found(jobs=[])
        wanted, start = search.job_search(**filter), None if after is None else parse_id(after)
        return (yield from self._ask(lambda _: search.find_page(wanted, limit=limit, after=start)))

    @verb
    def count(self, /, *, cap: int = MOST_COUNTED, **filter: Any) -> Calls[Count]:
        """Count the jobs that match the filters of `find`, up to `cap`; with a search by text, to 1,000."""
        most = payload.check_whole(cap, "cap", 1, 1_000_000)
        wanted = search.job_search(**filter)
        return (yield from self._ask(lambda _: search.count(wanted, most)))

    @verb
    def counts(self, queue: str | None = None) -> Calls[dict[str, int]]:
        """Return how many jobs are in each state."""
        checked = None if queue is None else payload.check_name(queue, "queue")
        return (yield from self._ask(lambda _: queries.counts(checked)))

    @verb
    def stats(
        self,
        queue: str | None = None,
        kind: str | None = None,
        *,
        since: Duration = 3600,
        width: Duration | None = None,
        by: Literal["queue", "kind"] | None = None,
    ) -> Calls[list[MinuteStats]]:
        """Return how many attempts ended lately, how long they waited and took: by the minute, oldest first.

        Workers count, and write it once a minute; 72 hours are kept. Of more than three hours it is by the
        quarter of an hour, unless `width` says otherwise; `by` gives a row for each queue or kind.
        """
        asked = job_filter(queue=queue, kind=kind)
        if by not in (None, "queue", "kind"):
            raise BadRequest(f"by={by!r} must be 'queue' or 'kind'")
        ago = -(-span(since, what="since") // MINUTE_MICROS)
        step = None if width is None else max(1, round(span(width, what="width") / MINUTE_MICROS))
        return (yield from self._ask(lambda _: minutes.read_minutes(asked, ago, step, by)))

    @verb
    def cancel_many(self, /, *, reason: str | None = None, **filter: Any) -> Calls[int]:
        """Cancel all jobs that match, with the filters of `find`; return how many."""
        core = self._core
        wanted, why = search.job_search(**filter), core.checked_text(reason, "reason")
        tell = core.callbacks.want("cancelled")
        changed = yield from self._ask(
            lambda _: manage.change_many("cancel", wanted, with_rows=tell, reason=why)
        )
        yield from core.callbacks.call(core.store, cancelled_events(changed.rows))
        return changed.number

    @verb
    def retry_many(self, /, **filter: Any) -> Calls[int]:
        """Retry all jobs that match, with the filters of `find`; return how many."""
        wanted = search.job_search(**filter)
        changed = yield from self._ask(lambda _: manage.change_many("retry", wanted))
        return changed.number

    @verb
    def delete_many(self, /, **filter: Any) -> Calls[int]:
        """Remove all jobs that match and are not running, with the filters of `find`; return how many."""
        wanted = search.job_search(**filter)
        changed = yield from self._ask(lambda _: manage.change_many("delete", wanted))
        return changed.number

    @verb
    def change_matching(
        self,
        act: Literal["retry", "cancel", "delete"],
        /,
        *,
        preview: bool = False,
        expect: int | None = None,
        reason: str | None = None,
        **filter: Any,
    ) -> Calls[Acted]:
        """Retry, cancel or delete the jobs that match; return how many there were, and how many were changed.

        Only jobs that the act can change count. With `preview` nothing is changed; nor, with `Refused`, when
        there are not as many as you `expect`.
        """
        core = self._core
        if act not in ("retry", "cancel", "delete"):
            raise BadRequest(f"there is no act {act!r}: retry, cancel or delete")
        wanted, why = search.job_search(**filter), core.checked_text(reason, "reason")
        if preview:
            found = yield from self._ask(lambda _: manage.affected(act, wanted))
            return Acted(matched=len(found), changed=0)
        tell = act == "cancel" and core.callbacks.want("cancelled")
        extra = {"reason": why} if act == "cancel" else {}
        matched, changed = yield from self._ask(
            lambda _: manage.change_expected(act, wanted, expect, with_rows=tell, **extra)
        )
        yield from core.callbacks.call(core.store, cancelled_events(changed.rows))
        return Acted(matched=matched, changed=changed.number)
