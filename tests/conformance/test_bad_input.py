"""Bad input: one clear error each, before anything is written."""

import pickle
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NewType
from uuid import UUID

import pytest

from dibs import BadRequest, Context, Dibs, DibsError, NewJob, StoreUnavailable, UnknownEngine
from tests.support import servers
from tests.support.faces import Face, Make, nothing_written, open_face
from tests.support.param_names import named

NAIVE = datetime(2026, 1, 1)
LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]

BAD_VALUES = {
    "object": object(),
    "function": len,
    "generator": (n for n in range(3)),
    "complex": 1j,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "decimal nan": Decimal("NaN"),
    "nul": "a\x00b",
    "nul as key": {"a\x00b": 1},
    "nul in depth": [{"x": ("a\x00",)}],
    "lone surrogate": "\ud800",
    "lone surrogate as key": {"\udfff": 1},
    "naive datetime": NAIVE,
    "naive time": NAIVE.time(),
    "naive in depth": {"x": [NAIVE]},
    "odd key": {(1, 2): 3},
    "loop": LOOP,
    "deep": DEEP,
}

BAD_NAMES = {
    "empty": "",
    "too long": "x" * 201,
    "newline": "a\nb",
    "nul": "a\x00",
    "delete": "a\x7f",
    "c1": "a\x85b",
    "lone surrogate": "a\ud800",
    "number": 5,
    "bytes": b"send",
    "none in a list": ["send"],
}

GOOD_NAMES = [
    "x",
    "x" * 200,
    "🦊" * 200,
    "it's",
    'say "hi"',
    "{braces}",
    "a b",
    "%s %(x)s :y $1",
    "\\",
    "ä" * 200,
]


# What is checked before the store is asked is the same on both faces.
one_face = pytest.mark.parametrize("face", ["sync"], indirect=True)


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_arguments_that_can_not_be_stored_are_refused(app: Face, value: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="args of 'send'"):
        app.enqueue(NewJob("send", args={"x": value}))


@one_face
@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_meta_that_can_not_be_stored_is_refused(app: Face, value: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="meta"):
        app.enqueue(NewJob("send", meta={"x": value}))


@one_face
@pytest.mark.parametrize("args", [[1], "x", 5, {1: 2}, {None: 1}], ids=named)
@pytest.mark.parametrize("field", ["args", "meta"])
def test_arguments_and_meta_must_be_mappings_of_names(app: Face, field: str, args: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match=field):
        app.enqueue(NewJob("send", **{field: args}))


class Colour(Enum):
    red = "red"


TEXT_LIKE = [
    b"x",
    bytearray(b"x"),
    datetime(2026, 1, 1, tzinfo=UTC),
    date(2026, 1, 1),
    timedelta(days=1),
    UUID(int=7),
    Decimal("1.5"),
    Colour.red,
]
Name = NewType("Name", str)


@pytest.mark.parametrize("value", TEXT_LIKE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("hint", [str, str | None, Annotated[str, "a name"], Name, "str"], ids=str)
@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
def test_what_would_become_text_is_refused_for_an_argument_that_is_text(
    app: Face, hint: Any, value: Any
) -> None:
    def hello(name, n=1): ...  # type: ignore[no-untyped-def]

    hello.__annotations__["name"] = hint
    task = app.job(hello)

    words = rf"argument 'name' of 'hello' is a str.*{type(value).__name__}"
    with nothing_written(app), pytest.raises(BadRequest, match=words):
        app.enqueue_task(task, value)
    with nothing_written(app), pytest.raises(BadRequest, match=words):
        app.enqueue(NewJob("hello", {"name": value}))
    assert app.enqueue_task(task, "ann").args == {"name": "ann"}


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_what_the_annotation_names_beside_text_is_taken(app: Face) -> None:
    @app.job
    def hello(
        name: str | UUID, when: datetime | str | None = None, any: Any = None, parts: str | list[str] = ""
    ) -> None: ...

    job = app.enqueue_task(hello, UUID(int=7), datetime(2026, 1, 1, tzinfo=UTC), b"x", ("a", "b"))

    assert job.args["name"] == str(UUID(int=7))
    with nothing_written(app), pytest.raises(BadRequest, match=r"'name'.*bytes"):
        app.enqueue_task(hello, b"x")


@pytest.mark.parametrize("number", [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30, 1e300, -0.0, 5e-324])
def test_a_number_comes_back_as_it_was_or_is_refused(app: Face, number: float) -> None:
    try:
        [job] = app.enqueue(NewJob("send", args={"x": number}))
    except BadRequest:
        return

    found = app.get(job.id).args["x"]
    assert (found, type(found)) == (number, type(number))


def test_ten_megabytes_of_arguments_are_refused_with_the_size_allowed(app: Face) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match=r"10,000,\d+ bytes.*1,048,576"):
        app.enqueue(NewJob("send", args={"x": "x" * 10_000_000}))


@pytest.mark.parametrize("option", ["args", "tags", "priority", "delay", "id"])
@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_an_error_quotes_no_megabytes(app: Face, option: str) -> None:
    with pytest.raises(BadRequest) as refused:
        app.enqueue(NewJob("send", **{option: "x" * 10_000_000}))

    assert len(str(refused.value)) < 2_000
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_what_is_allowed_may_be_set(open_app) -> None:
    app = open_app(max_payload=20)

    assert app.enqueue(NewJob("send", args={"x": "x" * 10}))[0].is_new
    with nothing_written(app), pytest.raises(BadRequest, match="max_payload"):
        app.enqueue(NewJob("send", args={"x": "x" * 13}))


def test_the_largest_payload_allowed_fits(app: Face) -> None:
    text = "ä" * ((1024 * 1024 - len('{"x":""}')) // 2)

    [job] = app.enqueue(NewJob("send", args={"x": text}))

    assert app.get(job.id).args == {"x": text}


@one_face
@pytest.mark.parametrize("jobs", [[NewJob("send")], (NewJob("send"),), (NewJob("send") for _ in range(2))])
def test_jobs_that_were_not_unpacked_are_refused_with_the_way_to_write_it(app: Face, jobs: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match=r"\(\*jobs\)") as refusal:
        app.enqueue(jobs)

    assert "NewJob(" not in str(refusal.value)


@one_face
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
@pytest.mark.parametrize("field", ["kind", "queue", "unique", "tag"])
def test_a_name_that_can_not_be_is_refused(app: Face, field: str, name: Any) -> None:
    options = {"tags": ["ok", name]} if field == "tag" else {field: name}

    with nothing_written(app), pytest.raises(BadRequest, match=field):
        app.enqueue(NewJob(**{"kind": "send"} | options))


@one_face
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_claim_by_a_name_that_can_not_be_is_refused(app: Face, make: Make, name: Any) -> None:
    job = make.ready()

    for call in (
        lambda: app.claim(worker=name),
        lambda: app.claim_job(job.id, worker=name),
        lambda: app.claim(queues=["ok", name]),
        lambda: app.claim(kinds=[name]),
    ):
        with nothing_written(app), pytest.raises(BadRequest, match=r"worker|queue|kind"):
            call()


@pytest.mark.parametrize("name", GOOD_NAMES, ids=len)
def test_any_other_name_works_everywhere(app: Face, name: str) -> None:
    [new] = app.enqueue(NewJob(name, queue=name, unique=name, tags=[name]))

    [claim] = app.claim(queues=[name], kinds=[name], worker=name)
    app.pause(name)
    app.limit(name, 1)

    job = claim.job
    assert (job.id, job.kind, job.queue, job.unique) == (new.id, name, name, name)
    assert (job.tags, job.worker, app.queues()[0].name) == ([name], name, name)
    assert [one.id for one in app.find(queue=name, kind=name, tags=[name])] == [new.id]


@one_face
@pytest.mark.parametrize("tags", ["red", 5, [None], ["x"] * 101], ids=named)
def test_tags_must_be_a_list_of_names(app: Face, tags: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="tag"):
        app.enqueue(NewJob("send", tags=tags))


@one_face
@pytest.mark.parametrize(
    "options",
    [
        {"priority": 32_768},
        {"priority": -32_768},
        {"priority": 1.5},
        {"priority": "high"},
        {"priority": True},
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": 2**31},
        {"max_attempts": "3"},
        {"delay": -1},
        {"delay": timedelta(seconds=-1)},
        {"delay": "soon"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e300},
        {"delay": True},
        {"run_at": NAIVE},
        {"run_at": "tomorrow"},
        {"run_at": 1_700_000_000},
        {"run_at": NAIVE.date()},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"run_at": datetime(1969, 12, 31, tzinfo=UTC)},
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"delay": 1, "run_at": datetime.now(UTC)},
        {"train": "t", "slot": "s"},
        {"pipeline_id": "x"},
        {"pipeline_id": 5},
        {"id": "x"},
        {"on_failed": "explode"},
        {"on_cancelled": "explode"},
    ],
    ids=named,
)
def test_an_option_that_can_not_be_is_refused(app: Face, options: dict[str, Any]) -> None:
    with nothing_written(app), pytest.raises(BadRequest):
        app.enqueue(NewJob("good"), NewJob("send", **options))


@one_face
@pytest.mark.parametrize("new", ["send", None, {"kind": "send"}, 5, NewJob], ids=named)
def test_what_is_no_new_job_is_refused(app: Face, new: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="NewJob"):
        app.enqueue(new)


@pytest.mark.parametrize(
    "id", ["", "x", "0" * 31, "0" * 33, 5, None, b"x" * 16, "\ud800", "a\x00b", ()], ids=named
)
def test_a_malformed_id_is_refused_by_every_verb(app: Face, id: Any) -> None:
    for verb in ("get", "claim_job", "run_job", "cancel", "retry", "delete", "recover", "why", "wait"):
        with pytest.raises(BadRequest, match="not a job id"):
            getattr(app, verb)(id)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\nb"},
        {"name": 5},
        {"queue": ""},
        {"priority": 40_000},
        {"max_attempts": 0},
        {"lease": 0.01},
        {"lease": "x"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "x"},
        {"unique": "{nobody}"},
        {"unique": "{"},
        {"unique": "{}"},
        {"on_failed": "explode"},
        {"isolation": "planet"},
        {"retry": 5},
    ],
    ids=named,
)
def test_a_kind_with_an_option_that_can_not_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Dibs("memory://").job(**options)(lambda order_id=1: None)


def _positional(a: int, /) -> None: ...
def _starred(*args: int) -> None: ...
def _two_contexts(one: Context, other: Context) -> None: ...
def _positional_context(ctx: Context, /) -> None: ...


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "function",
    [
        *(_positional, _starred, _two_contexts, _positional_context, _generator, _async_generator),
        *(partial(_generator), int, 5, "send"),
    ],
    ids=named,
)
def test_what_can_not_be_a_handler_is_refused(function: Any) -> None:
    with pytest.raises(BadRequest):
        Dibs("memory://").job(name="odd")(function)


def test_a_handler_without_a_name_needs_one() -> None:
    with pytest.raises(BadRequest, match="name="):
        Dibs("memory://").job(partial(int, 5))


# -- Stores -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "oracle://x/y",
        "nonsense",
        "",
        "http://x",
        "://",
        "sqlit:///x.db",
        "postgresql",
        "redis",
        "memory",
        "sqlite:x",
    ],
    ids=named,
)
def test_an_unknown_scheme_names_what_is_known(url: str) -> None:
    with pytest.raises(UnknownEngine, match="sqlite"):
        Dibs(url)


@pytest.mark.parametrize(
    "settings",
    [
        {"pool_size": 0},
        {"pool_size": "many"},
        {"poll": -1},
        {"poll": "x"},
        {"stale_after": 0},
        {"keep": "some"},
        {"keep_for": "x"},
        {"keep_for": -1},
        {"keep_for": float("nan")},
        {"keep_for": float("inf")},
        {"keep_for": timedelta.max},
        {"max_payload": 0},
        {"url": 5},
    ],
    ids=named,
)
def test_a_setting_that_can_not_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(DibsError):
        Dibs(**{"url": "memory://"} | settings)


def test_a_store_that_is_down_says_which_and_soon(face: str) -> None:
    port = servers.free_port()
    began = time.monotonic()

    with open_face(face, f"postgresql://user:secret@127.0.0.1:{port}/shop") as app:
        with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{port}") as caught:
            app.enqueue(NewJob("work"))

    assert "secret" not in str(caught.value)
    assert time.monotonic() - began < 6


def test_a_database_that_does_not_exist_says_so(face: str, postgresql: servers.PostgreSQL) -> None:
    with open_face(face, postgresql.url("nowhere")) as app:
        with pytest.raises(StoreUnavailable, match="nowhere"):
            app.counts()


def test_a_file_that_can_not_be_opened_says_which(face: str, tmp_path: Path) -> None:
    with open_face(face, f"sqlite:///{tmp_path}/no/such/folder/jobs.db") as app:
        with pytest.raises(StoreUnavailable, match="no/such/folder"):
            app.counts()


def test_a_file_that_is_no_database_says_so(face: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("this is a letter, not a database " * 100)

    with open_face(face, f"sqlite:///{tmp_path}/jobs.db") as app:
        with pytest.raises(StoreUnavailable, match=r"jobs\.db"):
            app.counts()


@pytest.mark.parametrize("path", ["jobs", "1x", "-1", "0/1"])
def test_a_redis_address_with_a_database_that_is_no_number_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match=f"{path}.*redis://host/0"):
        Dibs(f"redis://127.0.0.1/{path}")


@pytest.mark.parametrize("url", ["sqlite://jobs.db", "sqlite:///jobs%00.db"])
def test_a_sqlite_address_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="sqlite:///"):
        Dibs(url)


@one_face
@pytest.mark.parametrize(
    "value", [{1: 1, "1": 2}, [{"x": {"1": 2, 1: 1}}], {7.5: 1, "7.5": 2}], ids=["int", "in depth", "float"]
)
def test_keys_that_json_can_not_tell_apart_are_refused(app: Face, make: Make, value: Any) -> None:
    with nothing_written(app), pytest.raises(BadRequest, match="the same in JSON"):
        app.enqueue(NewJob("send", args={"x": value}))
    claim = make.running()
    with pytest.raises(BadRequest, match=r"result.*the same in JSON"):
        claim.succeed(value)


@one_face
def test_keys_that_are_no_strings_become_such(app: Face) -> None:
    [job] = app.enqueue(NewJob("send", args={"x": {1: "a", 2: "b", "c": {}}}))

    assert app.get(job.id).args == {"x": {"1": "a", "2": "b", "c": {}}}


@one_face
def test_what_follows_a_job_can_not_be_of_another_pipeline(app: Face, make: Make) -> None:
    parent, other = make.running(), make.ready()

    with pytest.raises(BadRequest, match=f"pipeline_id={other.id}.*{parent.job.id}"):
        parent.succeed(then=[NewJob("child", pipeline_id=other.id)])
    assert app.get(parent.job.id).state == "running"

    child = NewJob("child", pipeline_id=str(parent.job.id))
    parent.succeed(then=[child])
    assert app.get(child.id).pipeline_id == parent.job.id
