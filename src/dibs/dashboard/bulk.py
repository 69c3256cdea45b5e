"""One act on all jobs that match a search: how many it would change, said before; what it changed, after."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dibs.app.dibs import Dibs
from dibs.app.scopes import OutOfScope
from dibs.dashboard.sessions import Visitor
from dibs.errors import BadRequest
from dibs.jobs.search import parse_search
from dibs.jobs.states import FINISHED, WAITING, JobState
from dibs.operations.search import MOST_COUNTED_BY_TEXT, Count, Found

MOST_UNTYPED = 100  # jobs that one click may change
LONGEST_NUMBER = 20  # digits
BulkAct = Literal["retry", "cancel", "delete"]
CHANGES: dict[BulkAct, frozenset[JobState]] = {
    "retry": frozenset((JobState.failed, JobState.cancelled, JobState.scheduled)),
    "cancel": frozenset((*WAITING, JobState.running)),
    "delete": frozenset((*WAITING, *FINISHED)),
}


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """How many jobs an act would change."""

    act: BulkAct
    number: int | None
    """None where there are more than a page counts to: ask for a preview."""

    @property
    def typed(self) -> bool:
        """Whether the number has to be typed to confirm it."""
        return self.number is None or self.number > MOST_UNTYPED


def check_search(q: str, visitor: Visitor) -> None:
    """Refuse a search in fields that the visitor may not see: finding is seeing."""
    text = parse_search(q).text
    if text.args and "args" not in visitor.fields:
        raise OutOfScope("you may not see arguments, so you can't search in them")
    if (text.errors or text.words) and "errors" not in visitor.fields:
        raise OutOfScope("you may not see errors, so you can't search in them")


async def count_found(
    app: Dibs, q: str, found: Found, after: str | None, scope: Mapping[str, Any]
) -> tuple[Count, list[BulkPreview]]:
    """Return how many jobs match, and the acts that make sense for them, with their numbers.

    If all that match are on the page, they are counted there, and the store is asked nothing. Jobs that
    match by text are read once for all acts.
    """
    is_by_text = bool(parse_search(q).text)
    if is_by_text and (after is not None or (found.next is not None and found.complete)):
        found, after = await app.search(q, limit=MOST_COUNTED_BY_TEXT, **scope), None
    if found.next is None and after is None:
        here = {act: sum(job.state in states for job in found.jobs) for act, states in CHANGES.items()}
        return Count(number=len(found.jobs), capped=False), _worth(here)
    if is_by_text:
        return Count(number=len(found.jobs), capped=True), _worth(dict.fromkeys(CHANGES))
    total = await app.count(q=q, **scope)
    wanted = frozenset(parse_search(q).filter.get("state", JobState))
    numbers: dict[BulkAct, int | None] = {}
    for act, changed in CHANGES.items():
        numbers[act] = await _changeable(app, q, wanted, changed, total, scope)
    return total, _worth(numbers)


async def _changeable(
    app: Dibs,
    q: str,
    wanted: frozenset[JobState],
    changed: frozenset[JobState],
    total: Count,
    scope: Mapping[str, Any],
) -> int | None:
    """Return how many of all that match an act changes; ask only if the search does not say, and for few."""
    if not wanted & changed:
        return 0
    if total.capped:
        return None
    others = wanted - changed
    counted = others if len(others) <= 1 else wanted & changed
    number = (await app.count(q=q, state=sorted(counted), **scope)).number if counted else 0
    return total.number - number if counted is others else number


def _worth(numbers: Mapping[BulkAct, int | None]) -> list[BulkPreview]:
    return [BulkPreview(act, number) for act, number in numbers.items() if number != 0]


async def exact_preview(app: Dibs, act: str, q: str, scope: Mapping[str, Any]) -> BulkPreview:
    """Return an act with the number of jobs that it would change now, however many."""
    checked = check_act(act)
    acted = await app.change_matching(checked, preview=True, q=q, **scope)
    return BulkPreview(checked, acted.matched)


async def change(app: Dibs, act: str, q: str, form: Mapping[str, str], scope: Mapping[str, Any]) -> str:
    """Carry out an act that was previewed; refuse it if another number matches by now."""
    expect = form.get("expect", "")
    if not is_number(expect) or not q:
        raise BadRequest("look at the jobs first, then act on what was found")
    if int(expect) > MOST_UNTYPED and form.get("confirm", "").strip().replace(",", "") != expect:
        raise BadRequest(f"type {expect} to confirm this; nothing was changed")
    acted = await app.change_matching(check_act(act), expect=int(expect), q=q, **scope)
    said = {"retry": "run again", "cancel": "cancelled or asked to stop", "delete": "deleted"}[act]
    moved_on = acted.matched - acted.changed
    return f"{acted.changed:,} of {acted.matched:,} {said}" + (
        f"; {moved_on:,} had moved on" if moved_on else ""
    )


def is_number(text: str) -> bool:
    """Return whether it is a number of jobs; Python refuses to read thousands of digits."""
    return text.isdecimal() and len(text) <= LONGEST_NUMBER


def check_act(act: str) -> BulkAct:
    for known in CHANGES:
        if known == act:
            return known
    raise BadRequest(f"there is no act {act!r} for all jobs that match")
