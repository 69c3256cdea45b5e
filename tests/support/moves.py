"""Two stores to move between, and moves that die, or hear nothing, at a point of the test's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from dibs import Dibs, Job
from dibs.jobs.job import StoredJob, read_stored
from dibs.moving import MoveReport
from dibs.moving.stores import Stores
from dibs.moving.transfer import MoveOptions, transfer_all
from dibs.operations.questions import SETTLEMENT_COLUMNS
from dibs.operations.scripts import Step
from tests.support.faces import Face
from tests.support.internals import run_script

ELSEWHERE = UUID(int=7)
ALL = 100_000


def ask(app: Dibs, question: str, **params: Any) -> Any:
    def script() -> Any:
        return (yield Step(question, params))

    return run_script(app, script)


def put(app: Face, question: str, **params: Any) -> Any:
    """The same on the face that a test is about."""

    def script() -> Any:
        return (yield Step(question, params))

    return app.ask(script)


def stored(app: Dibs) -> list[StoredJob]:
    """Everything the store keeps of every job that does not run, also what no `Job` shows."""
    texts: list[str] = []
    while rows := ask(app, "depart", store=ELSEWHERE, after=None, limit=500):
        texts += [row["job"] for row in rows]
        ask(app, "landed", way="out", store=ELSEWHERE, ids=[row["id"] for row in rows])
    for first in range(0, len(texts), 500):
        ask(app, "arrive", store=ELSEWHERE, jobs=texts[first : first + 500])
    ask(app, "landed", way="in", store=ELSEWHERE, ids=None)
    return [read_stored(text) for text in texts]


def settle(app: Dibs, claims: Iterable[Any], state: str, **more: Any) -> None:
    """Many at once, and by hand: no face does that."""
    usual = dict.fromkeys(SETTLEMENT_COLUMNS) | {"refund": False, "errors": "[]"}
    given = [
        {**usual, "id": one.job.id, "token": one.token, "state": state, "settled_as": state, **more}
        for one in claims
    ]
    ask(app, "settle", settlements=[tuple(one.values()) for one in given], children=[])


def ids(app: Dibs) -> set[UUID]:
    return {job.id for job in everything(app)}


def everything(app: Dibs) -> Iterator[Job]:
    after = None
    while page := app.sync.find(limit=1000, after=after):
        yield from page
        after = page[-1].id


def left_behind(*apps: Dibs) -> list[Any]:
    """Notes of a move; there are none once it is over."""
    return [row for app in apps for row in ask(app, "departed", limit=ALL)]


class Died(Exception):
    pass


def move_that_dies(source: Dibs, target: Dibs, when: Callable[[int], bool]) -> MoveReport | None:
    """Run the move until this is so, given how many questions were asked; None if that was before its end."""
    asked = 0

    def run(call: Callable[[], Any]) -> Any:
        nonlocal asked
        if when(asked):
            raise Died
        asked += 1
        return call()

    try:
        return drive(source, target, run)
    except Died:
        return None


def move_that_hears_nothing_at_first(source: Dibs, target: Dibs) -> MoveReport:
    """Every answer gets lost once, and every question is asked again."""

    def run(call: Callable[[], Any]) -> Any:
        call()
        return call()

    return drive(source, target, run)


def drive(source: Dibs, target: Dibs, run: Callable[[Callable[[], Any]], Any]) -> MoveReport:
    calls = transfer_all(Stores(source, target), MoveOptions("leave", None, None))
    answer: Any = None
    try:
        while True:
            call = calls.send(answer)
            answer = run(partial(call.run, *call.args))
    except StopIteration as end:
        return end.value
