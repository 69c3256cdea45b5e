"""Server-sent events, over real sockets: snapshot, changes, end; and a thousand clients that only wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Header

from dibs import Dibs, NewJob
from dibs.app.watching import MOST_PENDING, Subscription
from dibs.engines.memory.engine import Memory
from dibs.integrations.fastapi import lifespan, streams
from dibs.integrations.fastapi.streams import EventEncoder, encode_summary
from dibs.jobs.ids import new_id
from dibs.operations.scripts import Rows, Step
from dibs.operations.watch import FIRST_SIGHT, Change, watch_target
from tests.support.internals import core_of
from tests.support.web_apps import EventReader, make_web, on_a_port


@pytest.fixture
def port(app: Dibs, web: FastAPI) -> Iterator[int]:
    with on_a_port(web) as port:
        yield port
        core_of(app).watching.end_all()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_job_is_sent_as_it_is_then_as_it_changes_until_its_end(app: Dibs, port: int) -> None:
    async def follow() -> list[dict[str, Any]]:
        [job] = app.sync.enqueue(NewJob("work", args={"n": 1}))
        stream = await EventReader.open(port, f"/jobs/{job.id}/events")
        heard = [await stream.next()]
        claim = app.sync.claim_job(job.id)
        assert claim is not None
        heard.append(await stream.next())
        claim.progress(0.5, "line\nbreak")
        heard.append(await stream.next())
        claim.succeed({"rows": 3})
        return [*heard, *await stream.rest()]

    first, taken, half, done, end = asyncio.run(follow())

    assert (first["event"], first["data"]["state"], first["data"]["args"]) == ("snapshot", "ready", {"n": 1})
    assert (taken["event"], taken["data"]["state"]) == ("change", "running")
    assert (half["data"]["progress"], half["data"]["message"]) == (0.5, "line\nbreak")
    assert (done["data"]["state"], done["data"]["result"]) == ("succeeded", {"rows": 3})
    assert end["event"] == "end"
    assert len({event["id"] for event in (first, taken, half, done)}) == 4


def test_a_pipeline_is_sent_with_the_jobs_that_join_it(app: Dibs, port: int) -> None:
    async def follow() -> list[dict[str, Any]]:
        [_job] = app.sync.enqueue(NewJob("first", pipeline_id=(pipeline := new_id())))
        stream = await EventReader.open(port, f"/pipelines/{pipeline}/events")
        heard = [await stream.next()]
        [claim] = app.sync.claim()
        claim.succeed(then=[NewJob("second")])
        while not (heard[-1]["event"] == "change" and heard[-1]["data"]["kind"] == "second"):
            heard.append(await stream.next())
        [claim] = app.sync.claim()
        claim.succeed()
        return [*heard, *await stream.rest()]

    heard = asyncio.run(follow())

    assert [job["kind"] for job in heard[0]["data"]["jobs"]] == ["first"]
    assert heard[0]["data"]["jobs"][0]["args"] == {}
    assert [event["event"] for event in heard[-2:]] == ["change", "end"]
    assert (heard[-2]["data"]["kind"], heard[-2]["data"]["state"]) == ("second", "succeeded")


def test_the_whole_store_is_followed_or_one_queue_of_it(app: Dibs, port: int) -> None:
    async def follow() -> tuple[dict[str, Any], dict[str, Any]]:
        app.sync.enqueue(NewJob("old", queue="mail"))
        all_of_it = await EventReader.open(port, "/events")
        mail = await EventReader.open(port, "/events?queue=mail")
        await all_of_it.next()
        await mail.next()
        app.sync.enqueue(NewJob("a", queue="other"))
        first = await all_of_it.next()
        app.sync.enqueue(NewJob("b", queue="mail"))
        second = await mail.next()
        await all_of_it.close()
        await mail.close()
        return first, second

    first, second = asyncio.run(follow())

    assert first["data"]["kind"] == "a"
    assert second["data"]["kind"] == "b"


@pytest.mark.parametrize("path", ["/events", "/events?queue=nosuch"])
def test_an_empty_snapshot_is_sent_and_the_first_job_as_a_change(app: Dibs, port: int, path: str) -> None:
    async def follow() -> list[dict[str, Any]]:
        stream = await EventReader.open(port, path)
        heard = [await stream.next()]
        app.sync.enqueue(NewJob("work", queue="nosuch"))
        heard.append(await stream.next())
        await stream.close()
        return heard

    nothing, first = asyncio.run(follow())

    assert (nothing["event"], nothing["data"]) == ("snapshot", {"jobs": []})
    assert (first["event"], first["data"]["kind"]) == ("change", "work")


def test_a_client_that_reconnects_gets_only_what_is_new(app: Dibs, port: int) -> None:
    async def follow() -> list[Any]:
        [job] = app.sync.enqueue(NewJob("work"))
        path = f"/jobs/{job.id}/events"
        stream = await EventReader.open(port, path)
        seen = (await stream.next())["id"]
        await stream.close()

        again = await EventReader.open(port, path, last_event_id=seen)
        await until(lambda: [each.is_new for each in core_of(app).watching._subscriptions] == [False])
        claim = app.sync.claim_job(job.id)
        assert claim is not None
        news = await again.next()
        await again.close()

        claim.succeed()
        late = await EventReader.open(port, path, last_event_id=news["id"])
        told, end = await late.rest()
        nothing = await EventReader.open(port, path, last_event_id=told["id"])
        await nothing.close()
        return [news, told, end, nothing.status]

    news, told, end, status = asyncio.run(follow())

    assert (news["event"], news["data"]["state"]) == ("change", "running")
    assert (told["event"], told["data"]["state"]) == ("snapshot", "succeeded")
    assert (end["event"], status) == ("end", 204)


def test_a_client_that_leaves_is_forgotten_at_once(app: Dibs, port: int) -> None:
    async def leave() -> None:
        [job] = app.sync.enqueue(NewJob("work"))
        clients = [await EventReader.open(port, f"/jobs/{job.id}/events") for _ in range(5)]
        await until(lambda: core_of(app).watching.watchers == 5)
        for client in clients:
            await client.close()
        await until(lambda: core_of(app).watching.watchers == 0)

    asyncio.run(leave())


def test_silence_is_broken_now_and_then(app: Dibs, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)

    async def listen() -> bytes:
        [job] = app.sync.enqueue(NewJob("work"))
        stream = await EventReader.open(port, f"/jobs/{job.id}/events")
        await stream.next()
        heard = await asyncio.wait_for(stream._reader.readuntil(b"keep-alive"), 60)
        await stream.close()
        return heard

    assert b": keep-alive" in asyncio.run(listen())


def test_a_client_connected_for_very_long_has_to_reconnect(
    app: Dibs, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    monkeypatch.setattr(streams, "LONGEST", 0.2)

    async def listen() -> list[dict[str, Any]]:
        [job] = app.sync.enqueue(NewJob("work"))
        stream = await EventReader.open(port, f"/jobs/{job.id}/events")
        return await stream.rest()

    assert [event["event"] for event in asyncio.run(listen())] == ["snapshot", "resync"]


def test_a_reader_that_is_too_slow_is_sent_away_to_come_again() -> None:
    topic = watch_target(None, None, "mail")
    subscription, teller = (
        Subscription(topic, lambda: None),
        EventEncoder(topic, encode_summary, lambda _: True, None),
    )

    for _ in range(MOST_PENDING + 2):
        subscription.put([Change(name="gone", id=new_id(), job=None)])

    assert teller.next_events(subscription) == ([streams.RESYNC], True)


def test_a_job_deleted_before_it_was_sent_is_not_sent() -> None:
    topic = watch_target(id := new_id(), None, None)
    subscription, teller = (
        Subscription(topic, lambda: None),
        EventEncoder(topic, encode_summary, lambda _: True, None),
    )

    subscription.begin([Change(name="gone", id=id, job=None)])

    assert teller.next_events(subscription) == ([], False)


def test_a_client_that_takes_nothing_is_dropped(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_LIMIT", 0.05)

    async def stall() -> None:
        [job] = app.sync.enqueue(NewJob("work"))
        topic = watch_target(job.id, None, None)
        stream = streams.EventStream(
            core_of(app).watching,
            topic,
            encode=encode_summary,
            allows=lambda _: True,
            counted=nullcontext(),
        )

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async with asyncio.timeout(60):
            await stream({}, lambda: asyncio.Event().wait(), send)  # type: ignore[arg-type, return-value]

    asyncio.run(stall())
    assert core_of(app).watching.watchers == 0


def test_a_server_that_is_stopped_does_not_wait_for_its_streams(app: Dibs) -> None:
    async def ends(stop: Callable[[], Awaitable[None]]) -> list[str]:
        [job] = app.sync.enqueue(NewJob("work"))
        stream = await EventReader.open(port, f"/jobs/{job.id}/events")
        first = await stream.next()
        await stop()
        return [first["event"], *(event["event"] for event in await stream.rest())]

    async def end_all() -> None:
        core_of(app).watching.end_all()

    web: FastAPI = make_web(app, lifespan=lifespan(app, worker=False))
    with on_a_port(web) as port:
        assert asyncio.run(ends(end_all)) == ["snapshot", "resync"]


# -- some people's jobs ---------------------------------------------------------------------------


async def of_tenant(tenant: str = Header()) -> dict[str, Any]:
    return {"tags": [tenant]}


@pytest.fixture
def tenants(app: Dibs) -> Iterator[int]:
    with on_a_port(make_web(app, scope=Depends(of_tenant))) as port:
        yield port
        core_of(app).watching.end_all()


def test_a_tenant_gets_its_own_jobs_however_many_newer_ones_others_have(app: Dibs, tenants: int) -> None:
    async def follow() -> list[dict[str, Any]]:
        [mine] = app.sync.enqueue(NewJob("mine", tags=["a"]))
        app.sync.enqueue(*(NewJob("theirs", tags=["b"]) for _ in range(FIRST_SIGHT + 1)))
        stream = await EventReader.open(tenants, "/events", tenant="a")
        heard = [await stream.next()]
        app.sync.enqueue(NewJob("theirs", tags=["b"]))
        app.sync.cancel(mine.id)
        heard.append(await stream.next())
        await stream.close()
        return heard

    first, second = asyncio.run(follow())

    assert [job["kind"] for job in first["data"]["jobs"]] == ["mine"]
    assert (second["event"], second["data"]["kind"], second["data"]["state"]) == (
        "change",
        "mine",
        "cancelled",
    )


def test_a_tenant_without_jobs_gets_an_empty_snapshot(app: Dibs, tenants: int) -> None:
    async def follow() -> list[dict[str, Any]]:
        app.sync.enqueue(NewJob("theirs", tags=["b"]))
        stream = await EventReader.open(tenants, "/events", tenant="a")
        heard = [await stream.next()]
        app.sync.enqueue(NewJob("mine", tags=["a"]))
        heard.append(await stream.next())
        await stream.close()
        return heard

    nothing, first = asyncio.run(follow())

    assert (nothing["event"], nothing["data"]) == ("snapshot", {"jobs": []})
    assert (first["event"], first["data"]["kind"]) == ("change", "mine")


@pytest.mark.parametrize("path", ["/events", "/pipelines/{id}/events"])
def test_a_tenant_does_not_hear_when_jobs_of_others_are_deleted(app: Dibs, tenants: int, path: str) -> None:
    async def follow() -> list[dict[str, Any]]:
        pipeline = new_id()
        jobs = app.sync.enqueue(*(NewJob("work", tags=[tag], pipeline_id=pipeline) for tag in "aab"))
        stream = await EventReader.open(tenants, path.format(id=pipeline), tenant="a")
        heard = [await stream.next()]
        app.sync.delete(jobs[2].id)
        looks = core_of(app).watching.polls
        await until(lambda: core_of(app).watching.polls >= looks + 2)
        app.sync.delete(jobs[1].id)
        heard.append(await stream.next())
        await stream.close()
        return [*heard, {"id": str(jobs[1].id)}]

    first, second, gone = asyncio.run(follow())

    assert len(first["data"]["jobs"]) == 2
    assert (second["event"], second["data"]) == ("gone", gone)


def test_waiting_tenants_cost_the_store_no_more_than_one(
    app: Dibs, tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    answer = Memory.execute

    def counted(self: Memory, step: Step) -> Rows:
        asked[step.question] += 1
        return answer(self, step)

    async def wait() -> None:
        monkeypatch.setattr(Memory, "execute", counted)
        streams = [await EventReader.open(tenants, "/events", tenant=f"t{n}") for n in range(20)]
        await asyncio.gather(*(stream.next() for stream in streams))
        assert asked.pop("find") == 20
        looks = core_of(app).watching.polls
        await until(lambda: core_of(app).watching.polls >= looks + 3)
        assert set(asked) == {"glance_at_queue"}
        assert asked["glance_at_queue"] <= core_of(app).watching.polls + 1
        for stream in streams:
            await stream.close()

    asyncio.run(wait())


# -- many -----------------------------------------------------------------------------------------


def test_many_waiting_clients_cost_the_store_no_more_than_one(
    app: Dibs, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    answer = Memory.execute

    def counted(self: Memory, step: Step) -> Rows:
        asked[step.question] += 1
        return answer(self, step)

    async def wait() -> None:
        jobs = app.sync.enqueue(*(NewJob("work") for _ in range(50)))
        streams = [await EventReader.open(port, f"/jobs/{job.id}/events") for job in [*jobs, *jobs]]
        await asyncio.gather(*(stream.next() for stream in streams))
        monkeypatch.setattr(Memory, "execute", counted)
        looks = core_of(app).watching.polls
        await until(lambda: core_of(app).watching.polls >= looks + 3)
        assert set(asked) == {"glance"}
        assert asked["glance"] <= core_of(app).watching.polls - looks + 1
        app.sync.cancel_many(queue="default")
        ends = await asyncio.gather(*(stream.rest() for stream in streams))
        assert all([event["event"] for event in end] == ["change", "end"] for end in ends)

    asyncio.run(wait())
