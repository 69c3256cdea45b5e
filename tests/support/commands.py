"""Commands as people type them, run in this process, and jobs for them to find."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dibs import Job, NewJob, SyncDibs
from dibs.cli import app
from tests.support.internals import age

UNKNOWN = "01980c4e-7d60-7c52-b5c4-1f2a3b4c5d6e"
CLOSED = "postgresql://127.0.0.1:1/none"


def dibs(*words: object, input: str | bytes | None = None, **environment: str) -> Result:
    done = CliRunner().invoke(app, list(map(str, words)), input=input, env=environment, prog_name="dibs")
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def answer(*words: object, **more: Any) -> Any:
    """What a command that must succeed says with --json."""
    done = dibs(*words, "--json", **more)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def lines(text: str) -> list[str]:
    return text.splitlines()


def enqueue(store: SyncDibs, kind: str = "greet", **options: Any) -> Job:
    [job] = store.enqueue(NewJob(kind, **options))
    return job


def running(store: SyncDibs, worker: str = "pod-a", **options: Any) -> Job:
    claim = store.claim_job(enqueue(store, **options).id, worker=worker)
    assert claim is not None
    return claim.job


def failed(store: SyncDibs, error: Exception | None = None, **options: Any) -> Job:
    claim = store.claim_job(enqueue(store, max_attempts=1, **options).id, worker="pod-a")
    assert claim is not None
    with pytest.raises(ValueError), claim:
        raise error or ValueError("no such order")
    return claim.job


def let_pass(store: SyncDibs, seconds: int) -> None:
    age(store, seconds)
