"""`within=` a Redis pipeline: what is asked happens with the caller's own EXEC."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from dibs import Context as JobContext
from dibs import Dibs, LeaseLost, NewJob, UnsupportedConnection, Worker
from tests.support.faces import Face, Make, nothing_written
from tests.support.servers.failover import primary_url

pytestmark = pytest.mark.parametrize("engine", ["redis"], indirect=True)

Open = Callable[..., Any]


@pytest.fixture
def pipeline(app: Face, url: str) -> Iterator[Open]:
    """Opens a pipeline of the face's own colour."""
    module: Any = redis if app.colour == "sync" else redis.asyncio
    client = module.Redis.from_url(primary_url(url))
    yield client.pipeline
    app.wait_for(client.close() if app.colour == "sync" else client.aclose())


def test_a_job_is_stored_when_the_pipeline_is_executed(app: Face, pipeline: Open) -> None:
    pipe = pipeline()

    with nothing_written(app):
        [job] = app.enqueue(NewJob("work", {"n": 1}), within=pipe)
    pipe.set("yours", "too")
    app.wait_for(pipe.execute())

    stored = app.get(job.id)
    assert (stored.state, stored.args) == ("ready", {"n": 1})
    assert app.claim()[0].job.id == job.id


def test_a_pipeline_that_is_never_executed_stores_nothing(app: Face, pipeline: Open) -> None:
    pipe = pipeline()
    with nothing_written(app):
        app.enqueue(NewJob("work"), within=pipe)
        app.wait_for(pipe.reset())


def test_the_job_is_answered_as_it_was_asked_for(app: Face, pipeline: Open) -> None:
    pipe = pipeline()

    now, later = app.enqueue(NewJob("work", priority=3), NewJob("work", delay=3600), within=pipe)
    app.wait_for(pipe.execute())

    assert (now.state, now.priority, now.is_new) == ("ready", 3, True)
    assert later.state == "scheduled"
    for job in (now, later):
        stored = app.get(job.id)
        assert abs((stored.run_at - job.run_at).total_seconds()) < 60
        assert (stored.kind, stored.args, stored.state) == (job.kind, job.args, job.state)


def test_the_same_job_in_two_pipelines_is_stored_once(app: Face, pipeline: Open) -> None:
    new = NewJob("work")

    for _ in range(2):
        pipe = pipeline()
        app.enqueue(new, within=pipe)
        app.wait_for(pipe.execute())

    assert [job.id for job in app.find()] == [new.id]


def test_a_unique_key_that_is_taken_stores_nothing(app: Face, make: Make, pipeline: Open) -> None:
    holder = make.ready(unique="key")
    pipe = pipeline()

    app.enqueue(NewJob("work", unique="key"), within=pipe)
    app.wait_for(pipe.execute())

    assert [job.id for job in app.find()] == [holder.id]


def test_more_jobs_than_one_script_stores_go_along_too(app: Face, pipeline: Open) -> None:
    pipe = pipeline()

    jobs = app.enqueue(*(NewJob("work") for _ in range(1500)), within=pipe)
    app.wait_for(pipe.execute())

    assert len(jobs) == app.counts()["ready"] == 1500


def test_a_script_that_the_server_never_saw_runs_all_the_same(app: Face, pipeline: Open, url: str) -> None:
    with redis.Redis.from_url(primary_url(url)) as client:
        client.script_flush()
    pipe = pipeline()

    [job] = app.enqueue(NewJob("work"), within=pipe)
    app.wait_for(pipe.execute())

    assert app.get(job.id) is not None


def test_a_job_ends_when_the_pipeline_is_executed(app: Face, make: Make, pipeline: Open) -> None:
    claim, child = make.running(), NewJob("child")
    pipe = pipeline()

    with nothing_written(app):
        claim.succeed("well", then=[child], within=pipe)
    app.wait_for(pipe.execute())

    done = app.get(claim.job.id)
    assert (done.state, done.result) == ("succeeded", "well")
    assert app.get(child.id).parent_id == claim.job.id


def test_a_claim_that_was_lost_makes_the_pipeline_fail_and_changes_nothing(
    app: Face, make: Make, pipeline: Open
) -> None:
    zombie = make.expired()
    app.sweep()
    holder = app.claim_job(zombie.job.id)
    pipe = pipeline()
    zombie.succeed("late", then=[NewJob("child")], within=pipe)

    with nothing_written(app), pytest.raises(redis.ResponseError, match="LEASELOST"):
        app.wait_for(pipe.execute())

    holder.succeed("good")
    with pytest.raises(LeaseLost):
        zombie.fail("late again")


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_worker_lets_a_handler_complete_its_job_in_a_pipeline(app: Face, url: str) -> None:
    """And an attempt whose pipeline was never executed has failed."""
    owner = Dibs(url)

    @owner.job(max_attempts=1)
    async def work(ctx: JobContext, execute: bool) -> None:
        async with redis.asyncio.Redis.from_url(primary_url(url)) as client, client.pipeline() as pipe:
            pipe.set("yours", "too")
            await ctx.complete("by hand", within=pipe)
            if execute:
                await pipe.execute()

    async def story() -> None:
        jobs = [await work.enqueue(execute) for execute in (True, False)]
        await Worker(owner).run(until_idle=True)
        done, forgotten = [await owner.get(job.id) for job in jobs]
        await owner.close()

        assert done is not None
        assert forgotten is not None
        assert (done.state, done.result) == ("succeeded", "by hand")
        assert forgotten.state == "failed"
        assert "not committed" in forgotten.errors[0].message

    app.wait_for(story())


def test_a_drawn_pipeline_is_stored_when_yours_is_executed(app: Face, pipeline: Open) -> None:
    drawn, pipe = app.pipeline("nightly"), pipeline()
    first = drawn.add(NewJob("first"))
    second = drawn.add(NewJob("second"), after=[first])

    with nothing_written(app):
        jobs = drawn.enqueue(within=pipe)
    app.wait_for(pipe.execute())

    assert [job.state for job in jobs] == ["ready", "blocked"]
    assert [app.get(job.id).state for job in jobs] == ["ready", "blocked"]
    claim, pipe = app.claim_job(first.id), pipeline()
    claim.succeed("well", within=pipe)
    assert app.get(second.id).state == "blocked"
    app.wait_for(pipe.execute())
    assert app.get(second.id).state == "ready"


def test_a_drawn_pipeline_of_more_jobs_than_one_script_stores_goes_along_too(
    app: Face, pipeline: Open
) -> None:
    drawn, pipe = app.pipeline("wide"), pipeline()
    first = drawn.add(NewJob("first"))
    for _ in range(1100):
        drawn.add(NewJob("second"), after=[first])

    drawn.enqueue(within=pipe)
    app.wait_for(pipe.execute())

    assert (app.counts()["ready"], app.counts()["blocked"]) == (1, 1100)


# -- What can't be ------------------------------------------------------------------------------


def test_a_pipeline_that_is_no_transaction_is_refused(app: Face, pipeline: Open) -> None:
    with nothing_written(app), pytest.raises(UnsupportedConnection, match="transaction=False"):
        app.enqueue(NewJob("work"), within=pipeline(transaction=False))


def test_a_pipeline_that_watches_needs_its_multi_first(app: Face, pipeline: Open) -> None:
    pipe = pipeline()
    app.wait_for(pipe.watch("yours"))

    with pytest.raises(UnsupportedConnection, match="multi"):
        app.enqueue(NewJob("work"), within=pipe)
    pipe.multi()
    [job] = app.enqueue(NewJob("work"), within=pipe)
    app.wait_for(pipe.execute())

    assert app.get(job.id) is not None


def test_a_pipeline_of_another_database_is_refused(app: Face, url: str) -> None:
    with redis.Redis.from_url(primary_url(f"{url.rpartition('/')[0]}/5")) as client:
        asynchronous = redis.asyncio.Redis.from_url(primary_url(f"{url.rpartition('/')[0]}/5"))
        given = client.pipeline() if app.colour == "sync" else asynchronous.pipeline()
        with nothing_written(app), pytest.raises(UnsupportedConnection, match="database 5"):
            app.enqueue(NewJob("work"), within=given)


def test_a_pipeline_of_the_other_colour_says_where_it_belongs(app: Face, url: str) -> None:
    with redis.Redis.from_url(primary_url(url)) as client:
        asynchronous = redis.asyncio.Redis.from_url(primary_url(url))
        given = client.pipeline() if app.colour == "async" else asynchronous.pipeline()
        says = r"app\.sync" if app.colour == "async" else "the async app"
        with nothing_written(app), pytest.raises(UnsupportedConnection, match=says):
            app.enqueue(NewJob("work"), within=given)


@pytest.mark.parametrize("nonsense", [object(), "pipe", 5], ids=["object", "text", "number"])
def test_what_is_no_pipeline_is_refused_naming_what_fits(app: Face, make: Make, nonsense: Any) -> None:
    claim = make.running()

    for call in (
        lambda: app.enqueue(NewJob("work"), within=nonsense),
        lambda: claim.succeed(within=nonsense),
    ):
        with nothing_written(app), pytest.raises(UnsupportedConnection, match="pipeline of redis-py"):
            call()
