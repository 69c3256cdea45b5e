"""`dibs verify` can fail: a store whose statements forget the token is found out by what it does last."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs import Dibs
from dibs.cli.trial import worker
from dibs.cli.trial.records import Record, Recorder, RecordFile, Verdict, judge
from tests.faults.test_mutants import FENCE, HELD
from tests.support.fault_stores import mutate

MUTANTS = {
    "sqlite-settle": ("settle_ended", "and job.token = :token", ""),
    "sqlite-give-back": ("settle_returned", "and token = :token", ""),
    "sqlite-renew": ("renew", "and token = :token", "and :token > 0"),
    "sqlite-progress": ("progress", "and token = :token", "and :token > 0"),
    "postgresql-settle": ("settle", FENCE, ""),
    "postgresql-renew": ("renew", FENCE, ""),
    "postgresql-progress": ("progress", "and token = :token", "and :token > 0"),
    "mariadb-settle": ("held", HELD, ""),
    "mariadb-renew": ("held_and_free", HELD, ""),
}
LEASE = 0.1


def verdict_on(app: Dibs, folder: Path) -> Verdict:
    file = folder / "late.jsonl"
    ids = worker.write_late(app.sync, "late", Recorder(str(file)))
    enqueued = [Record("enqueued", 0, id) for id in ids]
    succeeded = [Record("succeeded", 0, job.id) for job in app.sync.find(state="succeeded", queue="late")]
    return judge([*enqueued, *RecordFile(file).read(), *succeeded])


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Dibs:
    monkeypatch.setattr(worker, "SHORT_LEASE", LEASE)
    return Dibs(url)


@pytest.mark.parametrize(
    "engine", ["memory", "sqlite", "postgresql", "mariadb", "mysql", "redis"], indirect=True
)
def test_who_comes_late_changes_nothing(app: Dibs, tmp_path: Path) -> None:
    verdict = verdict_on(app, tmp_path)
    app.sync.close()

    assert verdict.is_good, verdict
    assert verdict.refused == len(worker.SETTLES) + len(worker.WRITES)


@pytest.mark.parametrize(
    ("engine", "name"),
    [(name.partition("-")[0], name) for name in MUTANTS],
    indirect=["engine"],
    ids=list(MUTANTS),
)
def test_a_statement_without_its_fence_is_found_out(app: Dibs, name: str, tmp_path: Path) -> None:
    app.sync.open()
    mutate(app, *MUTANTS[name])

    verdict = verdict_on(app, tmp_path)
    app.sync.close()

    assert verdict.late_writes > 0, verdict
