"""Finding jobs by a filter and a search: pages, numbers, and the ids of all that match.

What a store has in columns it compares itself. Arguments, errors and words it only looks for, in the newest
jobs that match the rest; each job that may match is then compared here, in the same way for all stores.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from dibs.errors import BadRequest
from dibs.jobs.job import Job
from dibs.jobs.search import TextTerms, parse_search
from dibs.operations.queries import find, job_filter, with_current
from dibs.operations.scripts import Row, Script, Step
from dibs.settings import span

MOST_SEARCHED = 20_000  # jobs whose texts one search looks at
MOST_COUNTED = 10_000  # what a page counts to
MOST_COUNTED_BY_TEXT = 1_000
READ_AT_ONCE = 250
LAST_ID = (1 << 128) - 1


class JobSearch(NamedTuple):
    """What is to be found: a filter as engines take it, and conditions on texts."""

    filter: Mapping[str, Any]
    text: TextTerms
    up_to: UUID | None = None
    """No id greater than this."""

    def start(self, after: UUID | None) -> UUID | None:
        """Return the id before which a page begins."""
        ends = [after] if after is not None else []
        if self.up_to is not None and self.up_to.int < LAST_ID:
            ends.append(UUID(int=self.up_to.int + 1))
        return min(ends, default=None)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs, newest first; how far the search went. Example: `await app.search("state:failed")`"""

    jobs: list[Job]
    next: UUID | None = None
    """Find `after` this id to go on; None at the end."""
    searched: int | None = None
    """How many jobs were looked at for a text; None without one."""
    complete: bool = True
    """False when older jobs may match, too, that were not looked at: a search by text has a limit."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs match, counted up to a limit. Example: `(await app.count(state="failed")).number`"""

    number: int
    capped: bool
    """There are at least so many, and maybe more."""


def job_search(q: str | None = None, *, fields: Collection[str] | None = None, **filter: Any) -> JobSearch:
    """Return what the filters of `find` and the search `q` ask for, both together.

    `fields` names the parts of jobs that the caller may see: a search by others would reveal them.
    """
    if q is None:
        return JobSearch(job_filter(**filter), TextTerms())
    search = parse_search(q)
    text = search.text if fields is None else search.text.within(fields)
    named = dict(search.filter)
    id = named.pop("id", None)
    joined = job_filter(
        **_joined({k: v for k, v in filter.items() if v is not None}, named), patterns=search.patterns
    )
    if id is None:
        return JobSearch(joined, text)
    before = UUID(int=max(id.int - 1, 0))
    newer = max(before, joined["newer_than"] or before)
    return JobSearch({**joined, "newer_than": newer}, text, id)


def _joined(given: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return one filter for both; a search never widens what the caller's filter allows."""
    joined = {**named, **given}
    for name in given.keys() & named.keys():
        match name:
            case "state":
                wanted = [given["state"]] if isinstance(given["state"], str) else list(given["state"])
                joined["state"] = [state for state in named["state"] if state in wanted]
            case "tags":
                own = [given["tags"]] if isinstance(given["tags"], str) else given["tags"]
                joined["tags"] = [*own, *named["tags"]]
            case "since":
                joined["since"] = min(given["since"], named["since"], key=lambda ago: span(ago, what="since"))
            case _ if str(given[name]) != str(named[name]):
                raise BadRequest(f"q asks for {name}:{named[name]}, and {name} is {given[name]!r} already")
    return joined


def find_page(wanted: JobSearch, *, limit: int, after: UUID | None) -> Script[Found]:
    """Return the next jobs that match, newest first."""
    start = wanted.start(after)
    if wanted.text:
        return (yield from _search(wanted, limit, start))
    jobs = yield from find(wanted.filter, limit=limit, after=start)
    return Found(jobs=jobs, next=jobs[-1].id if len(jobs) == limit else None)


def _search(wanted: JobSearch, limit: int, after: UUID | None) -> Script[Found]:
    """Compare the jobs that may match, until the page is full or enough jobs were looked at."""
    found: list[Job] = []
    searched = 0
    while searched < MOST_SEARCHED:
        params = {**wanted.filter, **wanted.text.needles, "limit": READ_AT_ONCE, "after": after}
        scan = MOST_SEARCHED - searched
        rows = yield Step("search", {**params, "scan": scan, "contained": wanted.text.contained})
        for row, job in (yield from _matching(wanted.text, rows)):
            found.append(job)
            if len(found) == limit:
                return Found(jobs=found, next=job.id, searched=searched + row["nth"])
        if not rows:
            return Found(jobs=found, searched=searched)
        after, searched = rows[-1]["id"], searched + rows[-1]["nth"]
        if sum(bool(row["hit"]) for row in rows) < READ_AT_ONCE and rows[-1]["nth"] < scan:
            return Found(jobs=found, searched=searched)
    return Found(jobs=found, next=after, searched=searched, complete=False)


def _matching(text: TextTerms, rows: Any) -> Script[Iterator[tuple[Row, Job]]]:
    hits = {row["id"]: row for row in rows if row["hit"]}
    whole = (yield Step("get", {"ids": list(hits)})) if hits else ()
    jobs = yield from with_current(whole)
    matching = sorted((job for job in jobs if text.match(job)), key=lambda job: job.id, reverse=True)
    return ((hits[job.id], job) for job in matching)


def all_ids(wanted: JobSearch, page: int) -> Script[list[UUID]]:
    """Return the ids of all jobs that match, newest first; by text too, however far it has to look."""
    ids: list[UUID] = []
    after = wanted.start(None)
    while True:
        if wanted.text:
            found = yield from _search(wanted, page, after)
            ids += [job.id for job in found.jobs]
            after = found.next
        else:
            any_text = {**wanted.filter, **TextTerms().needles, "contained": None}
            rows = yield Step("search", {**any_text, "limit": page, "scan": page, "after": after})
            ids += [row["id"] for row in rows]
            after = rows[-1]["id"] if len(rows) == page else None
        if after is None:
            return ids


def count(wanted: JobSearch, cap: int = MOST_COUNTED) -> Script[Count]:
    """Count the jobs that match, up to `cap`; by texts only to a thousand, among the newest."""
    start = wanted.start(None)
    if wanted.text:
        page = yield from _search(wanted, min(cap, MOST_COUNTED_BY_TEXT), start)
        return Count(number=len(page.jobs), capped=page.next is not None)
    [row] = yield Step("count", {**wanted.filter, "scan": cap + 1, "after": start})
    return Count(number=min(row["jobs"], cap), capped=row["jobs"] > cap)
