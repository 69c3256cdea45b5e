"""Search: the words of `q`, which all must hold, and how many jobs match."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from dibs import BadRequest, NewJob, Refused
from dibs.jobs.ids import new_id
from dibs.operations import search
from tests.support.faces import Face, Make, nothing_written


def _ids(jobs: list[Any]) -> list[UUID]:
    return [job.id for job in jobs]


@pytest.fixture
def shop(app: Face, make: Make) -> dict[str, UUID]:
    """Jobs by name that differ in what one can search by."""
    sent = make.succeeded("send_receipt", queue="mail", tags=["x", "tenant 7"], args={"order_id": 42})
    failed = make.running("send_invoice", queue="mail", worker="pod-a:1", args={"order_id": "42"}, tags=["x"])
    failed.fail("Timeout after 30 s: the printer is away", retry=False)
    on_train = make.ready("load", train="dest_1", args={"order": {"id": 42, "parts": [7, 8]}})
    in_slot = make.running("report", slot=("csv", 7, None), worker="pod-b:1")
    in_slot.progress(0.5, "reading Table 3")
    cancelled = make.cancelled("send*all", reason="not needed")
    claims = {"failed": failed.job.id, "in_slot": in_slot.job.id}
    return {"sent": sent.id, **claims, "on_train": on_train.id, "cancelled": cancelled.id}


FOUND = {
    "": ["sent", "failed", "on_train", "in_slot", "cancelled"],
    "state:failed": ["failed"],
    "state:failed state:ready": ["failed", "on_train"],
    "state:failed,cancelled": ["failed", "cancelled"],
    "kind:send_receipt": ["sent"],
    "kind:send_*": ["sent", "failed"],
    "kind:*_*e*": ["sent", "failed"],
    "kind:*d_": [],
    "kind:SEND_*": [],
    'kind:"send*all"': ["cancelled"],
    "queue:mail": ["sent", "failed"],
    "queue:ma*l kind:*receipt": ["sent"],
    "tag:x": ["sent", "failed"],
    'tag:x tag:"tenant 7"': ["sent"],
    "train:dest_1": ["on_train"],
    "train:dest_*": ["on_train"],
    "train:*": ["on_train"],
    'slot:["csv",7,null]': ["in_slot"],
    "worker:pod-a:1": ["failed"],
    "worker:pod-*": ["failed", "in_slot"],
    "worker:*": ["sent", "failed", "in_slot"],
    "since:2h": ["sent", "failed", "on_train", "in_slot", "cancelled"],
    "args.order_id:42": ["sent", "failed"],
    'args.order_id:"42"': ["failed"],
    "args.order_id:4*": ["failed"],
    "args.order.id:42": ["on_train"],
    "args.order.parts.1:8": ["on_train"],
    "args.order.parts.1:7": [],
    "args.order_id:4": [],
    "error:timeout": ["failed"],
    'error:"Timeout after 30 s: the"': ["failed"],
    "error:time*printer": ["failed"],
    "error:needed": [],
    "needed": ["cancelled"],
    "table": ["in_slot"],
    '"Table 3" reading': ["in_slot"],
    "INVOICE": ["failed"],
    "printer": ["failed"],
    "printer send": ["failed"],
    "printer receipt": [],
    "state:succeeded printer": [],
    "queue:mail args.order_id:42 state:succeeded": ["sent"],
}


def test_a_search_finds_what_all_of_its_words_say(app: Face, shop: dict[str, UUID]) -> None:
    found = {q: {name for name in shop if shop[name] in _ids(app.find(q=q))} for q in FOUND}

    assert found == {q: set(names) for q, names in FOUND.items()}


def test_a_search_goes_with_the_filters_and_never_widens_them(app: Face, shop: dict[str, UUID]) -> None:
    assert _ids(app.find(q="order_id", queue="mail")) == []
    assert _ids(app.find(q="args.order_id:42", state="failed")) == [shop["failed"]]
    assert _ids(app.find(q="state:failed,cancelled", state=["failed", "ready"])) == [shop["failed"]]
    assert _ids(app.find(q="tag:x", tags=["tenant 7"])) == [shop["sent"]]
    assert _ids(app.find(q="state:failed", state="ready")) == []
    assert _ids(app.find(q="queue:m*", queue="mail", kind="send_receipt")) == [shop["sent"]]
    with pytest.raises(BadRequest, match="queue"):
        app.find(q="queue:default", queue="mail")


def test_a_job_is_found_by_its_id(app: Face, shop: dict[str, UUID]) -> None:
    id = shop["failed"]

    assert [_ids(app.find(q=f"id:{id}")), _ids(app.find(q=str(id)))] == [[id], [id]]
    assert _ids(app.find(q=f"{id} state:failed printer")) == [id]
    assert app.find(q=f"{id} state:ready") == app.find(q=f"id:{new_id()}") == []
    assert app.find(q=str(id), after=id) == []


def test_a_pipeline_is_searched(app: Face, make: Make) -> None:
    pipeline = new_id()
    jobs = [make.ready("load", pipeline_id=pipeline, args={"n": n}).id for n in (1, 2)]
    make.ready("load", args={"n": 1})

    assert _ids(app.find(q=f"pipeline:{pipeline}")) == jobs[::-1]
    assert _ids(app.find(q=f"pipeline:{pipeline} args.n:1 load")) == jobs[:1]


VALUES = [
    *(18446744073709551615, 9007199254740993, -9223372036854775808, 0, -1, 42.5, 42.0, 1e-7),
    *(True, False, None, "true", "null", "42.5", "a b", 'say "hi"', "back\\slash", "größe 🚂", "100%_!"),
    "x" * 1900,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_arguments_are_compared_as_they_are(app: Face, make: Make, value: Any) -> None:
    jobs = [NewJob("work", args={"a": {"weird.key": each}}) for each in [*VALUES, "", [value], {"b": value}]]
    app.enqueue(*jobs, NewJob("work", args={"a": value}), NewJob("work", args={"weird.key": value}))
    word = msgspec.json.encode(value).decode()
    same_text = [word] if not isinstance(value, str) and word in VALUES else []

    found = app.find(q=f'args.a."weird.key":{word}')

    assert [repr(job.args["a"]["weird.key"]) for job in found[::-1]] == [
        repr(one) for one in [value, *same_text]
    ]


def test_a_big_number_is_not_its_neighbour(app: Face, make: Make) -> None:
    jobs = [make.ready(args={"n": 2**63 + n}).id for n in range(3)]

    assert _ids(app.find(q=f"args.n:{2**63 + 1}")) == [jobs[1]]


def test_pages_of_a_search_follow_each_other(app: Face, make: Make) -> None:
    wanted = [make.ready(args={"n": n % 3}).id for n in range(12)][::3]
    pages, after = [], None

    while page := app.search("args.n:0 state:ready", limit=3, after=after):
        pages.append(_ids(page.jobs))
        after = page.next
        if after is None:
            break

    assert [id for page in pages for id in page] == wanted[::-1]
    assert [len(page) for page in pages] == [3, 1]


def test_a_search_by_text_looks_at_the_newest_and_says_so(
    app: Face, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_SEARCHED", 5)
    monkeypatch.setattr(search, "READ_AT_ONCE", 2)
    oldest = make.ready(args={"n": 1}).id
    make.ready("other", args={"n": 1})
    for _ in range(6):
        make.ready(args={"n": 0})

    first = app.search("args.n:1 kind:work")
    rest = app.search("args.n:1 kind:work", after=first.next)

    assert (first.jobs, first.complete, first.searched) == ([], False, 5)
    assert (_ids(rest.jobs), rest.complete, rest.searched, rest.next) == ([oldest], True, 2, None)
    assert app.search("kind:work").searched is None


def test_only_recent_jobs_are_found_by_since(app: Face, make: Make) -> None:
    make.succeeded(), make.ready()
    app.age(7200)
    young = make.ready()
    app.age(1800)

    assert _ids(app.find(q="since:1h")) == _ids(app.find(since=3600)) == [young.id]
    assert len(app.find(q="since:3h")) == 3
    assert app.find(q="since:10m") == []
    assert _ids(app.find(q="since:3h", since=3600)) == [young.id]


@pytest.mark.parametrize("since", [-1, 1e302, float("nan"), "2h"], ids=repr)
def test_a_since_that_is_no_span_is_refused(app: Face, since: object) -> None:
    with pytest.raises(BadRequest, match="since"):
        app.find(since=since)


def test_what_matches_is_counted_up_to_a_cap(app: Face, make: Make, shop: dict[str, UUID]) -> None:
    app.enqueue(*(NewJob("many", queue="slow", args={"n": n}) for n in range(30)))

    counts = [
        app.count(q="kind:many"),
        app.count(q="kind:man*", queue="slow", cap=10),
        app.count(state="failed"),
    ]
    by_text = [app.count(q="args.n:7"), app.count(q="many", cap=10), app.count(q="state:ready tag:no")]

    assert [(count.number, count.capped) for count in counts] == [(30, False), (10, True), (1, False)]
    assert [(count.number, count.capped) for count in by_text] == [(1, False), (10, True), (0, False)]
    assert app.count(cap=35).number == app.count(cap=36).number == 35
    assert app.count(q="kind:many since:1h", worker="none").number == 0


BAD = {
    "colour:red": "the search can't filter by colour; known are state, kind, queue",
    "state:tired": "the states are",
    "since:yesterday": "30s, 10m, 2h",
    "kind:a kind:b": "twice",
    'kind:"open': "not closed",
    "kind:": "no value after kind",
    "args.a:": "no value",
    "id:7": "job id",
    "a" * 2001: "at most 2,000 characters",
    "a " * 51: "at most 50",
    'kind:"\x01"': "control character",
    'slot:["csv"': "JSON array",
}


@pytest.mark.parametrize("q", BAD, ids=lambda q: q[:20])
def test_a_word_that_means_nothing_is_refused(app: Face, q: str) -> None:
    with nothing_written(app), pytest.raises(BadRequest) as caught:
        app.find(q=q)

    assert BAD[q] in str(caught.value)


@pytest.mark.parametrize(
    "q", ["'; drop table dibs_jobs --", 'args.a:"\x00"', '"\x00"', "args.a:\ud800", "%_!", "[a-z]?"]
)
def test_a_search_is_only_ever_text(app: Face, make: Make, q: str) -> None:
    make.ready(args={"a": 1})

    with nothing_written(app):
        assert app.find(q=q) == []


# -- acts on all that match ---------------------------------------------------------------------


def test_all_that_a_search_finds_are_retried(app: Face, shop: dict[str, UUID], make: Make) -> None:
    other = make.failed("send_invoice", reason="no paper")

    assert app.retry_many(q="state:failed error:printer") == 1
    assert [app.get(id).state for id in (shop["failed"], other.id)] == ["ready", "failed"]
    assert app.retry_many(q=f"id:{other.id}") == 1
    assert app.retry_many(q="since:1h kind:nothing_*") == 0


def test_all_that_a_search_finds_are_cancelled(app: Face, shop: dict[str, UUID], make: Make) -> None:
    waiting = [make.ready("load", args={"order": {"id": n}}).id for n in range(3)]

    assert app.cancel_many(q="kind:lo* args.order.id:2", reason="not needed") == 1
    assert [app.get(id).state for id in waiting] == ["ready", "ready", "cancelled"]
    assert app.cancel_many(q="kind:load", state=["ready"]) == 3


def test_all_that_match_are_deleted_but_running_ones(app: Face, shop: dict[str, UUID]) -> None:
    assert app.delete_many(q="args.order_id:42") == 2
    assert app.delete_many(state="running") == 0
    assert app.delete_many() == 2
    assert _ids(app.find()) == [shop["in_slot"]]


def test_a_preview_changes_nothing(app: Face, make: Make) -> None:
    jobs = [make.failed(reason=f"broken {n}").id for n in range(3)]
    make.succeeded(), make.ready()

    with nothing_written(app):
        seen = [app.change_matching("retry", q=q, preview=True) for q in ("error:broken", "", "error:2")]
        deleted = app.change_matching("delete", kind="work", preview=True)

    assert [(each.matched, each.changed) for each in (*seen, deleted)] == [(3, 0), (3, 0), (1, 0), (5, 0)]
    assert app.change_matching("cancel", preview=True).matched == 1
    done = app.change_matching("retry", q="broken", expect=3)
    assert (done.matched, done.changed) == (3, 3)
    assert {app.get(id).state for id in jobs} == {"ready"}


def test_an_act_on_another_number_than_expected_changes_nothing(app: Face, make: Make) -> None:
    for _ in range(3):
        make.failed()

    for act in ("retry", "delete"):
        with nothing_written(app), pytest.raises(Refused, match="3 jobs match now, not 2"):
            app.change_matching(act, state="failed", expect=2)
    with pytest.raises(BadRequest, match="no act 'pause'"):
        app.change_matching("pause")
