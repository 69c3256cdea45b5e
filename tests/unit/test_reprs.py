"""What a debugger and a log line show of an app, its tasks, workers and jobs: short, and no secrets."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import BadRequest, Dibs, NewJob, Worker


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "<Dibs memory:// (2 kinds)>"),
        ("postgresql://ann:secret@db/shop?password=secret", "<Dibs postgresql://ann@db/shop (2 kinds)>"),
        ("redis://:secret@cache/0", "<Dibs redis://cache/0 (2 kinds)>"),
    ],
)
def test_an_app_shows_its_store_without_the_password(url: str, shown: str) -> None:
    app = Dibs(url)
    app.job(name="a")(lambda: None)
    app.job(name="b")(lambda: None)

    assert repr(app) == shown
    assert repr(app.sync) == shown.replace("<Dibs", "<SyncDibs")


def test_a_task_shows_its_kind_and_what_was_chosen_for_it() -> None:
    app = Dibs("memory://")

    @app.job(queue="mail")
    def send(order_id: int, note: str = "") -> None: ...

    assert repr(send) == "<Task 'send'>"
    assert repr(send.sync) == "<SyncTask 'send'>"
    assert repr(send.using(priority=5, tags=["a"])) == "<Task 'send' using priority=5, tags=['a']>"


def test_a_worker_shows_its_name_and_what_it_does() -> None:
    app = Dibs("memory://")
    app.job(name="a")(lambda: None)
    worker = Worker(app, queues=["mail", "slow"], concurrency=3)

    assert repr(worker) == f"<Worker {worker.name}: 0 of 3 running, queues mail, slow>"
    assert repr(Worker(app)).endswith(": 0 of 10 running, all queues>")


def test_a_job_and_its_claim_are_a_line_without_arguments() -> None:
    app = Dibs("memory://").sync
    [job] = app.enqueue(NewJob("send", {"card": "4111" * 100}, meta={"token": "x" * 100}))
    [claim] = app.claim()

    assert repr(job) == f"<Job {job.id} 'send': ready, attempt 0 of 3>"
    assert repr(claim) == f"<SyncClaim of job {job.id} 'send', token {claim.token}>"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_attemps": 3}, r"max_attemps=3.*did you mean max_attempts\?"),
        ({"retry_no": ()}, r"did you mean retry_on\?"),
        ({"colour": "red"}, r"colour='red'.*options are .*queue.*timeout"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_that_does_not_exist_is_named_with_the_one_that_was_meant(wrong: Any, words: str) -> None:
    app = Dibs("memory://")

    with pytest.raises(BadRequest, match=rf"@app\.job\(.*{words}"):
        app.job(**wrong)


def test_the_same_goes_for_using() -> None:
    task = Dibs("memory://").job(name="a")(lambda: None)

    with pytest.raises(BadRequest, match=r"using\(priorty=5\).*did you mean priority\?"):
        task.using(priorty=5)  # type: ignore[call-arg]
