"""The site has every page once, and its reference every public name."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import String, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import dibs
from dibs import Context, Dibs, JobState
from dibs.outbox import Broker, Inbox, Message, Outbox
from dibs.tables import Claimable, Moment
from tools import reference, site

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
SHOWN = {name: one for page in reference.all_pages() for name, one in page.shown.items()}


class Base(DeclarativeBase):
    id: Mapped[int] = mapped_column(primary_key=True)


class Report(Base):
    __tablename__ = "report"
    state: Mapped[str] = mapped_column(String(20))
    due = mapped_column(Moment())


class Lent(Claimable, Base):
    __tablename__ = "lent"


class MyBroker(Broker):
    async def publish(self, message: Message) -> None:
        raise NotImplementedError


LIBRARIES: dict[str, Any] = {
    "Base": Base,
    "Report": Report,
    "Upload": Lent,
    "mapped_column": mapped_column,
    "update": update,
    "FastAPI": FastAPI,
    "Depends": Depends,
    "uuid4": uuid4,
    "MyBroker": MyBroker,
    **dict.fromkeys(("role_of", "may_read", "may_write"), lambda: None),
}


@pytest.fixture(scope="module")
def plan() -> dict[str, object]:
    return tomllib.loads((ROOT / "docs" / "site.toml").read_text())


def test_every_page_stands_in_the_navigation_once(plan: dict[str, object]) -> None:
    named = Counter(site.named_pages(plan))
    pages = {path.relative_to(site.DOCS) for path in site.DOCS.rglob("*.md")}

    assert pages - named.keys() == set(), "add it to docs/site.toml"
    assert [page for page, times in named.items() if times > 1] == []


def test_every_public_name_is_in_the_reference_with_a_docstring() -> None:
    assert set(dibs.__all__) - SHOWN.keys() == set()
    assert [name for name, one in SHOWN.items() if not one.__doc__] == []


def test_every_public_name_has_an_example() -> None:
    assert [name for name, one in SHOWN.items() if not reference.example(one)] == []


@pytest.mark.parametrize("name", SHOWN)
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path) -> None:
    """That of an error raises it or, where only a broken store would, is a clause that catches it."""
    code, shown = reference.example(SHOWN[name]) or "", SHOWN[name]
    if code.startswith("except "):
        assert compiled(f"try:\n    pass\n{code}")
    elif isinstance(shown, type) and issubclass(shown, BaseException):
        with pytest.raises(shown):
            asyncio.run(run_example(code, tmp_path))
    else:
        asyncio.run(run_example(code, tmp_path))


def compiled(code: str) -> Any:
    return compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run_example(code: str, folder: Path) -> None:
    """Run an example with the names that it takes for granted; one of a context in a handler."""
    app = Dibs("memory://")

    @app.job
    async def send_receipt(order_id: int) -> str:
        return f"sent receipt {order_id}"

    pipeline = app.pipeline("import")
    pipeline.add(send_receipt.new(1))
    [first] = await pipeline.enqueue()
    done = await app.run_job(first.id)
    held = await send_receipt.using(train="customer_7").enqueue(2)
    await app.claim_job(held.id)
    running = await send_receipt.using(slot="report_7").enqueue(3)
    names = SHOWN | {name: getattr(dibs, name) for name in dibs.__all__} | LIBRARIES
    names |= {
        "app": app,
        "send_receipt": send_receipt,
        "done": done,
        "claim": await app.claim_job(running.id),
        "job": await send_receipt.enqueue(42),
        "pipeline": await app.pipelines.get(pipeline.id),
        "web": FastAPI(),
    }
    if "ctx" in code:

        @app.job(queue="examples")
        async def handler(ctx: Context) -> None:
            await evaluated(code, names | {"ctx": ctx})

        [job] = await app.enqueue(handler.new())
        ended = await app.run_job(job.id)
        assert ended is not None
        assert ended.state == JobState.succeeded, ended.errors
    elif not re.search("engine|session|outbox|inbox|message", code):
        await evaluated(code, names)
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop.db")
        outbox, inbox = Outbox(engine), Inbox(engine)
        names |= {"engine": engine, "outbox": outbox, "inbox": inbox}
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await inbox.open()
        [names["message"]] = await outbox.get(await outbox.publish("orders", {"id": 1}))
        try:
            async with AsyncSession(engine) as session:
                await evaluated(code, names | {"session": session})
        finally:
            await engine.dispose()


async def evaluated(code: str, names: dict[str, Any]) -> None:
    """Run code, below which stands a function if it is a decorator."""
    code = f"{code}\nasync def handler() -> None: ..." if code.startswith("@") else code
    if inspect.iscoroutine(made := eval(compiled(code), names)):
        await made


def test_public_methods_have_docstrings() -> None:
    """All but those of `Moment`, which SQLAlchemy calls."""
    bare = [
        f"{name}.{method}"
        for page in reference.all_pages()
        for name, one in page.shown.items()
        if isinstance(one, type) and one.__module__.startswith("dibs.") and name != "Moment"
        for method in vars(one)
        if not method.startswith("_") and callable(getattr(one, method)) and not getattr(one, method).__doc__
    ]

    assert bare == []


def test_a_page_of_the_reference_shows_the_signature_a_caller_sees() -> None:
    [page] = [page for page in reference.pages() if page.file == "app.md"]

    drawn = reference.drawn(page)

    assert "async def get(id: UUID | str) -> Job | None" in drawn
    assert "| `pool_size` | `$DIBS_POOL_SIZE` | `int` | `10` |" in drawn


def test_the_reference_has_every_route_metric_and_log_event(tmp_path: Path) -> None:
    pages = "".join(path.read_text() for path in reference.write_pages(tmp_path))

    assert "## `POST /jobs/{id}/recover`" in pages
    assert "| `dibs_relay_published_total` | counter | Messages published by this process. |" in pages
    assert "| `failed` | ✗ | NOTICE |" in pages
    assert "ForwardRef" not in pages


def test_a_link_out_of_the_documents_leads_to_a_page_of_that_file() -> None:
    assert site.place_of(ROOT / "src" / "dibs" / "faces.py") == Path("source/src/dibs/faces.py.md")
    assert site.place_of(ROOT / "CHANGELOG.md") == Path("source/CHANGELOG.md")
    assert site.place_of(ROOT / "docs" / "tour.md") == Path("tour.md")


def test_a_page_is_summed_up_by_its_first_sentence() -> None:
    page = "# Heading\n\n```\ncode\n```\n\nWorkers claim jobs.\nThen they run `them`.\n"

    assert site.first_sentence(page) == "Workers claim jobs."


def test_alerts_and_the_dashboard_name_metrics_that_exist() -> None:
    texts = (
        (DEPLOY / "alerts.yaml").read_text(),
        json.dumps(json.loads((DEPLOY / "grafana.json").read_text())),
    )
    named = set(re.findall(r"\bdibs_\w+", "".join(texts)))
    source = "".join(path.read_text() for path in (ROOT / "src/dibs/integrations").rglob("*.py"))

    missing = {name for name in named if f'"{re.sub("^dibs_|_bucket$", "", name)}"' not in source}

    assert missing == set()


def test_the_image_that_the_guide_shows_is_the_example() -> None:
    guide = (ROOT / "docs" / "operate" / "containers.md").read_text()

    assert (DEPLOY / "Dockerfile").read_text() in guide
