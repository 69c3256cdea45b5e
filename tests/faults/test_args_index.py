"""An index of arguments, made by an operator on PostgreSQL, is used by a search as soon as it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dibs import NewJob
from dibs.operations import search
from tests.support.fault_stores import Place

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "find-jobs.md"


def _statements() -> list[str]:
    return re.findall(r"create index concurrently [^;]+;", GUIDE.read_text())


def test_a_search_by_arguments_uses_the_index_of_the_guide(
    postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = postgres.app().sync
    oldest, text = app.enqueue(NewJob("work", {"a": {"n": 42}}), NewJob("work", {"a": {"n": "42"}}))
    ended = app.claim_job(oldest.id)
    assert ended is not None
    ended.succeed()
    app.enqueue(*(NewJob("work", {"a": {"n": n}}) for n in range(43, 2043)))
    monkeypatch.setattr(search, "MOST_SEARCHED", 100)
    assert (app.search("args.a.n:42").jobs, app.search("args.a.n:42").complete) == ([], False)

    for statement in _statements():
        postgres.sql(statement)

    found = app.search("args.a.n:42 kind:w*")
    assert [job.id for job in found.jobs] == [text.id, oldest.id]
    assert (found.complete, found.next) == (True, None)
    assert [job.id for job in app.find(q='args.a.n:"42"')] == [text.id]
    assert [job.id for job in app.find(q="args.a.n:42 state:succeeded")] == [oldest.id]
    assert [job.id for job in app.find(q="args.a.n:42.0")] == [oldest.id]
    assert app.find(q="args.a.n:42", after=oldest.id) == []
    assert app.find(q='args.a.n:"\x00"') == app.find(q="args.a.n:\ud800") == []
    assert app.count(q="args.a.n:1000").number == 1
    assert app.delete_many(q="args.a.n:42") == 2
    assert not app.search("args.a.n:4*").complete


def test_the_index_is_what_finds_them(postgres: Place) -> None:
    app = postgres.app().sync
    app.enqueue(*(NewJob("work", {"n": n}) for n in range(20_000)))
    for statement in _statements():
        postgres.sql(statement)
    postgres.sql("analyze dibs_jobs")

    plan = postgres.sql(
        "explain select id from dibs_jobs where cast(args as jsonb) @> cast('{\"n\": 7}' as jsonb)"
        " order by id desc limit 50"
    )

    assert "dibs_jobs_args" in str(plan)
