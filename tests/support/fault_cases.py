"""Scenes: each sets a store up for one kind of trouble and says what went wrong, or None.

They are used twice: the fault tests expect None, and `test_mutants.py` expects that a statement
broken on purpose is found out by the scene that was made for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dibs import Dibs, DibsError, Job, LeaseLost, NewJob, Refused
from dibs.engines.sql.engine import LOOKS
from dibs.operations.claim import ClaimRequest, take
from dibs.operations.questions import Cursor
from dibs.operations.schedules import enqueue_due
from dibs.operations.scripts import Script
from tests.support.fault_stores import (
    Place,
    answers_within,
    exchange,
    renew,
    together,
    write_after_the_look,
)
from tests.support.internals import age, core_of, run_script
from tests.support.matrix import MYSQLS

AT_ONCE_SECONDS = 1.0

Scene = Callable[[Place], str | None]


def run_scene(scene: Scene, place: Place) -> str | None:
    """What went wrong, be it told, asserted by dibs itself, or an error that reached the caller."""
    try:
        return scene(place)
    except (AssertionError, DibsError, KeyError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


def enqueue(app: Dibs, many: int, kind: str = "work", **options: Any) -> list[Any]:
    return app.sync.enqueue(*(NewJob(kind, **options) for _ in range(many)))


# -- Claim --------------------------------------------------------------------------------------


def each_claimer_gets_a_job_of_its_own(place: Place, *, rounds: int = 6, **wish: Any) -> str | None:
    """N claimers at the same moment, N ready jobs of one line: N claims, no job twice."""
    apps = place.apps(8)
    for _ in range(rounds):
        enqueue(apps[0], len(apps))
        if wrong := _claimed_once_each(apps, **wish):
            return wrong
    return None


def each_taker_of_a_line_gets_jobs_of_its_own(place: Place, *, rounds: int = 6) -> str | None:
    """Workers that hear of one line at the same moment: together they get what there is, each job once."""
    apps = place.apps(8)
    for number in range(rounds):
        line = f"line-{number}"
        jobs = {job.id for job in enqueue(apps[0], 2 * len(apps), line)}
        answers = together(*((lambda app=app, line=line: _take(app, line, limit=3)) for app in apps))
        taken = Counter(job.id for answer in answers for job in answer)
        if twice := [id for id, times in taken.items() if times > 1]:
            return f"claimed twice: {twice}"
        if missing := jobs - taken.keys() - {job.id for job in _take(apps[0], line, limit=len(jobs))}:
            return f"starved: {missing}"
    return None


def a_taker_of_a_line_never_waits(place: Place) -> str | None:
    app = place.apps(1)[0]
    jobs = enqueue(app, 5)
    with locked(place, jobs[0].id) as free:
        answer = answers_within(AT_ONCE_SECONDS, lambda: _take(app, jobs[0].kind, limit=10), then=free)
    taken = {job.id for job in answer[0]} if answer else set()
    return None if taken == {job.id for job in jobs[1:]} else f"it waited, or took {taken}"


def _take(app: Dibs, kind: str, *, limit: int) -> list[Job]:
    """As a worker does that heard of this line."""
    line = {"queues": ["default"], "kinds": [kind]}
    wish = ClaimRequest(worker="taker", lease=60_000_000, leases={}, limit=limit, **line)
    return run_script(app, lambda: take(wish))


def each_who_goes_on_in_a_line_gets_jobs_of_its_own(place: Place) -> str | None:
    return each_who_goes_on_gets_jobs_of_its_own(place, lines=1)


def each_who_goes_on_gets_jobs_of_its_own(place: Place, *, rounds: int = 6, lines: int = 2) -> str | None:
    """Workers that settle and go on from the same marks: together they get what is behind, each job once."""
    apps = place.apps(8)
    for number in range(rounds):
        kinds = [f"{number}-{line}" for line in range(lines)]
        for kind in kinds:
            enqueue(apps[0], len(apps) // lines, kind)
        claims = apps[0].sync.claim(kinds=kinds, limit=len(apps))
        marks = [mark_of([claim.job for claim in claims if claim.job.kind == kind]) for kind in kinds]
        jobs = {job.id for kind in kinds for job in enqueue(apps[0], 10, kind)}
        answers = together(
            *((lambda app=app, held=held, marks=marks: exchange(app, [held], limit=3, marks=marks)[1])
              for app, held in zip(apps, claims, strict=True))
        )  # fmt: skip
        taken = Counter(job.id for answer in answers for job in answer)
        if twice := [id for id, times in taken.items() if times > 1]:
            return f"claimed twice: {twice}"
        left = {claim.job.id for claim in apps[0].sync.claim(kinds=kinds, limit=len(jobs))}
        if (taken.keys() | left) != jobs:
            return f"starved: {jobs - taken.keys() - left}"
    return None


def who_goes_on_never_waits(place: Place) -> str | None:
    app = place.apps(1)[0]
    enqueue(app, 1)
    held = app.sync.claim()
    mark = mark_of([held[0].job])
    jobs = enqueue(app, 5)
    with locked(place, jobs[0].id) as free:
        going_on = lambda: exchange(app, held, limit=10, marks=[mark])  # noqa: E731
        answer = answers_within(AT_ONCE_SECONDS, going_on, then=free)
    taken = {job.id for job in answer[0][1]} if answer else set()
    return None if taken == {job.id for job in jobs[1:]} else f"it waited, or took {taken}"


def mark_of(jobs: Sequence[Job]) -> Cursor:
    last = max(jobs, key=lambda job: (-job.priority, job.run_at, job.id))
    return Cursor(last.queue, last.kind, last.priority, last.run_at, last.id)


def each_claimer_gets_a_job_of_many_lines(place: Place, *, rounds: int = 6, **wish: Any) -> str | None:
    """The same where the N jobs are spread over two queues and two kinds."""
    apps = place.apps(8)
    for _ in range(rounds):
        for queue, kind in (("one", "red"), ("one", "blue"), ("two", "red"), ("two", "blue")):
            enqueue(apps[0], 2, kind, queue=queue)
        if wrong := _claimed_once_each(apps, **wish):
            return wrong
    return None


def _claimed_once_each(apps: Sequence[Dibs], **wish: Any) -> str | None:
    answers = together(*((lambda app=app: app.sync.claim(**wish)) for app in apps))
    claims = [claim for answer in answers for claim in answer]
    held = Counter(claim.job.id for claim in claims)
    if twice := [id for id, times in held.items() if times > 1]:
        return f"claimed twice: {twice}"
    if len(claims) < len(apps):
        return f"starved: {len(apps)} claimers and as many ready jobs, but {len(claims)} claims"
    for claim in claims:
        claim.succeed()
    return None


def one_of_many_wins_the_job(place: Place, *, rounds: int = 30) -> str | None:
    apps = place.apps(8)
    for _ in range(rounds):
        [job] = enqueue(apps[0], 1)
        claims = together(*((lambda app=app, job=job: app.sync.claim_job(job.id)) for app in apps))
        winners = [claim for claim in claims if claim is not None]
        if len(winners) != 1:
            return f"claimed twice: {len(winners)} of {len(apps)} won one job"
        if winners[0].job.attempts != 1:
            return f"the winner was given attempt {winners[0].job.attempts}"
        winners[0].succeed()
    return None


def a_claim_never_waits(place: Place) -> str | None:
    """Somebody's open transaction holds the first ready row; the others are there for the taking."""
    app = place.apps(1)[0]
    jobs = enqueue(app, 5)
    with locked(place, jobs[0].id) as free:
        return _others_at_once(lambda: app.sync.claim(limit=10), jobs[1:], free)


def a_claim_never_waits_for_another_line(place: Place) -> str | None:
    """The locked row is the only one of its line, and ahead of everything else."""
    app = place.apps(1)[0]
    [first] = enqueue(app, 1, "rare", priority=9)
    others = enqueue(app, 3, "common")
    with locked(place, first.id) as free:
        return _others_at_once(lambda: [*app.sync.claim(), *app.sync.claim(limit=2)], others, free)


def a_claim_by_id_waits_for_nobody_for_long(place: Place) -> str | None:
    app = place.apps(1)[0]
    [job] = enqueue(app, 1)
    with locked(place, job.id) as free:
        answer = answers_within(sum(LOOKS) + AT_ONCE_SECONDS, lambda: app.sync.claim_job(job.id), then=free)
    return None if answer == [None] else f"a claim of a locked job answered {answer}"


def _others_at_once(claim: Callable[[], list[Any]], others: Sequence[Any], free: Any) -> str | None:
    answer = answers_within(AT_ONCE_SECONDS, claim, then=free)
    if not answer:
        return "the claim waited for a row that somebody else has locked"
    missing = {job.id for job in others} - {claim.job.id for claim in answer[0]}
    return f"starved: {len(missing)} of {len(others)} free jobs were not given" if missing else None


@contextlib.contextmanager
def locked(place: Place, id: Any) -> Iterator[Callable[[], object]]:
    """Hold the row in an open transaction; answers how to let it go early."""
    connection = place.connect()
    try:
        connection.execute("begin")
        [held] = connection.execute("select id from dibs_jobs where id = %s for update", [id]).fetchall()
        assert held
        yield connection.rollback
    finally:
        connection.close()


def a_claim_is_never_larger_than_asked(place: Place) -> str | None:
    """The recipe of proof/pg_overclaim.sql: statistics say that nothing is ready, and 50 jobs are."""
    say_that_nothing_is_ready(place)
    app = place.app()
    enqueue(app, 50)
    claims = app.sync.claim(limit=3)
    return not_exactly(place, 3, claims)


def say_that_nothing_is_ready(place: Place) -> None:
    place.sql("alter table dibs_jobs set (autovacuum_enabled = off)")
    crowd(place, 2000, state="scheduled")
    place.sql("analyze dibs_jobs")


def not_exactly(place: Place, wanted: int, claims: Sequence[Any]) -> str | None:
    [(running,)] = place.sql("select count(*) from dibs_jobs where state = 'running'")
    if (len(claims), running) == (wanted, wanted):
        return None
    return f"over-claimed: asked for {wanted}, given {len(claims)}, {running} are leased in the store"


def crowd(
    place: Place, many: int, *, state: str, kind: str = "crowd", queue: str = "default",
    priority: int = 0, table: str = "dibs_jobs",
) -> None:  # fmt: skip
    """That many jobs in no time, by SQL; those that are scheduled are due in a year."""
    lease = state == "running"
    if place.kind == "redis":
        assert state == "ready"
        for _ in range(many // 1000):
            enqueue(place.app(), 1000, kind, queue=queue, priority=priority)
        return
    if place.kind == "postgresql":
        place.sql(
            f"""
            insert into {table} (id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at,
                attempts, token, worker, lease_until, finished_at)
            select gen_random_uuid(), %s, %s, '{{}}', %s, %s, 3,
                now() + case when %s then interval '1 year' else interval '-1 hour' end, now(),
                case when %s then 1 else 0 end, case when %s then 0 end, case when %s then 'crowd' end,
                case when %s then now() + interval '1 hour' end, case when %s then now() end
            from generate_series(1, {many})
            """,
            *(kind, queue, priority, state, state == "scheduled", *[lease] * 4, table == "dibs_finished"),
        )
        return
    if place.kind in MYSQLS:
        due = "1 year" if state == "scheduled" else "-1 hour"
        place.sql(
            f"""
            insert into {table} (id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at,
                attempts, token, worker, lease_until, finished_at)
            select random_bytes(16), %s, %s, '{{}}', %s, %s, 3,
                utc_timestamp(6) + interval {due}, utc_timestamp(6), if(%s, 1, 0), if(%s, 0, null),
                if(%s, 'crowd', null), if(%s, utc_timestamp(6) + interval 1 hour, null),
                if(%s, utc_timestamp(6), null)
            from json_table(
                concat('[0', repeat(',0', {many} - 1), ']'), '$[*]' columns (n for ordinality)
            ) numbers
            """,
            *(kind, queue, priority, state, *[lease] * 4, table == "dibs_finished"),
        )
        return
    with contextlib.closing(place.connect()) as connection:
        now = "cast(strftime('%s') as integer) * 1000000"
        due = f"{now} + 31536000000000" if state == "scheduled" else f"{now} - 3600000000"
        connection.execute(
            f"""
            with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {many})
            insert into {table} (id, kind, queue, args, priority, state, attempts, max_attempts, run_at,
                enqueued_at, token, worker, lease_until, on_cancelled, on_failed, progress, errors, tags,
                meta)
            select lower(hex(randomblob(4)) || '-0000-4000-8000-' || hex(randomblob(6))), ?, ?, '{{}}', ?, ?,
                {int(lease)}, 3, {due}, {now}, iif({int(lease)}, 0, null), iif({int(lease)}, 'crowd', null),
                iif({int(lease)}, {now} + 3600000000, null), 'advance', 'advance', 0, '[]', '[]', '{{}}'
            from numbers
            """,
            (kind, queue, priority, state),
        )


def a_limit_holds_under_race(place: Place, *, limit: int = 1) -> str | None:
    """Ten claimers on a queue where three may run: three do, at any moment, until all are done."""
    apps = place.apps(10)
    apps[0].sync.limit("narrow", 3)
    enqueue(apps[0], 30, queue="narrow")
    done = 0
    while done < 30:
        answers = together(*((lambda app=app: app.sync.claim(limit=limit)) for app in apps))
        claims = [claim for answer in answers for claim in answer]
        running = apps[0].sync.counts("narrow")["running"]
        if running > 3 or len(claims) > 3:
            return f"over the limit: {running} running, {len(claims)} claimed where 3 may be"
        if not claims:
            return f"starved: {30 - done} are ready, none is running, and ten claimers got nothing"
        for claim in claims:
            claim.succeed()
        done += len(claims)
    return None


# -- Settle, renew, progress --------------------------------------------------------------------


def _zombie(place: Place, **options: Any) -> tuple[Any, Any]:
    """(a claim whose lease ran out, the claim of the one who has the job now)."""
    old, new = place.app(), place.app()
    enqueue(old, 1, **options)
    [zombie] = old.sync.claim(lease=60, worker="zombie")
    age(old, 61)
    [holder] = new.sync.claim(lease=60, worker="holder")
    assert holder.job.id == zombie.job.id
    assert holder.token > zombie.token, f"the later claim has token {holder.token}, not a greater one"
    return zombie, holder


def _refused(verb: str, zombie: Any, *given: Any, **options: Any) -> bool:
    try:
        getattr(zombie, verb)(*given, **options)
    except LeaseLost:
        return True
    return False


def _nothing_changed(place: Place, zombie: Any, holder: Any, verb: str, *given: Any) -> str | None:
    before = place.app().sync.get(holder.job.id)
    refused = _refused(verb, zombie, *given)
    after = place.app().sync.get(holder.job.id)
    if before != after:
        return f"a zombie's {verb} changed the job of another holder: {after}"
    return None if refused else f"a zombie's {verb} was not refused"


def a_zombie_succeeds_at_nothing(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place), "succeed", "stale")


def a_zombie_fails_nothing(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place), "fail", "stale")


def a_zombie_gives_nothing_back(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place), "release")


def a_zombie_renews_nothing(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place), "renew", 600)


def a_zombie_reports_nothing(place: Place) -> str | None:
    return _nothing_changed(place, *_zombie(place), "progress", 0.9)


def a_released_claim_settles_nothing(place: Place) -> str | None:
    """The job waits again and still has the token of its last holder."""
    app = place.app()
    [job] = enqueue(app, 1)
    [claim] = app.sync.claim()
    claim.release()
    refused = _refused("succeed", claim, "too late")
    if app.sync.get(job.id).state != "ready" or not refused:
        return "a claim that had given its job back could still finish it"
    return None


def children_come_only_with_success(place: Place) -> str | None:
    zombie, holder = _zombie(place)
    refused = _refused("succeed", zombie, then=[NewJob("child")])
    children = place.app().sync.find(kind="child")
    if children or not refused:
        return f"a zombie's success left {len(children)} children"
    holder.succeed(then=[NewJob("child")])
    children = place.app().sync.find(kind="child")
    return None if len(children) == 1 else f"a success with one child left {len(children)}"


def an_exchange_of_a_zombie_settles_nothing(place: Place) -> str | None:
    app = place.app()
    zombie, holder = _zombie(place)
    lost, taken = exchange(app, [zombie], limit=1)
    if lost != [zombie.job.id] or app.sync.get(holder.job.id).token != holder.token:
        return "an exchange settled a job that was no longer held"
    return None if taken == [] else "an exchange claimed what another holds"


# -- Upkeep -------------------------------------------------------------------------------------


def a_live_lease_is_not_swept(place: Place) -> str | None:
    app = place.app()
    [job] = enqueue(app, 1)
    [claim] = app.sync.claim(lease=60)
    app.sync.sweep()
    if app.sync.get(job.id).state != "running":
        return "the sweep took a job back whose lease had a minute to go"
    claim.succeed()
    return None


def poison_runs_out_of_attempts(place: Place) -> str | None:
    """Every holder dies with the job; it must not go round for ever."""
    app = place.app()
    [job] = enqueue(app, 1, max_attempts=3)
    for _ in range(3):
        if len(app.sync.claim(lease=60)) != 1:
            return "the job did not come back after its holder died"
        age(app, 61)
    if app.sync.claim():
        return "poison was claimed more often than it has attempts"
    ended = app.sync.get(job.id)
    died = [error.message for error in ended.errors]
    if (ended.state, ended.attempts, died) != ("failed", 3, ["worker died"] * 3):
        return f"poison ended as {ended.state}, {ended.attempts} attempts, {died}"
    return None


def a_locked_row_does_not_stall_renewals(place: Place) -> str | None:
    app = place.apps(1)[0]
    enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    with locked(place, claims[4].job.id) as free:
        answer = answers_within(AT_ONCE_SECONDS, lambda: renew(app, claims, 600), then=free)
    if not answer:
        return "ten renewals waited for one locked row"
    if lost := {claim.job.id for claim in claims} - set(answer[0]):
        return f"{len(lost)} held claims were reported lost"
    pushed = [
        id
        for id, standing in answer[0].items()
        if (standing.lease_until - claims[0].lease_until).seconds > 60
    ]
    return None if len(pushed) == 9 and claims[4].job.id not in pushed else f"{len(pushed)} of 9 were renewed"


def a_locked_row_does_not_stall_the_sweep(place: Place) -> str | None:
    app = place.apps(1)[0]
    enqueue(app, 10)
    claims = app.sync.claim(limit=10, lease=30)
    age(app, 31)
    with locked(place, claims[4].job.id) as free:
        answer = answers_within(AT_ONCE_SECONDS, app.sync.sweep, then=free)
    if not answer:
        return "the sweep waited for one locked row"
    return None if answer[0].returned == 9 else f"{answer[0].returned} of 9 corpses were taken back"


# -- Enqueue, retry -----------------------------------------------------------------------------


def an_enqueue_repeated_stores_nothing_new(place: Place) -> str | None:
    """While the first copy is live, and after it has finished."""
    app = place.app()
    new = NewJob("work")
    app.sync.enqueue(new)
    [again] = app.sync.enqueue(new)
    if again.is_new or sum(app.sync.counts().values()) != 1:
        return "a job enqueued again while it was live was stored twice"
    app.sync.claim()[0].succeed("done")
    [later] = app.sync.enqueue(new)
    if later.is_new or later.state != "succeeded" or app.sync.claim():
        return "a job enqueued again after it had finished came back to life"
    return None


def an_enqueue_overtaken_by_its_twin_stores_nothing_new(place: Place) -> str | None:
    """The same, where the twin came between the look and the write: only the statement can know."""
    app = place.app()
    new = NewJob("work")
    app.sync.enqueue(new)
    if write_after_the_look(app, new)["is_new"] or sum(app.sync.counts().values()) != 1:
        return "a job enqueued again while it was live was stored twice"
    app.sync.claim()[0].succeed("done")
    if write_after_the_look(app, new)["is_new"] or app.sync.claim():
        return "a job enqueued again after it had finished came back to life"
    return None


def a_unique_key_that_is_taken_names_its_holder(place: Place) -> str | None:
    app = place.app()
    [holder] = enqueue(app, 1, unique="key")
    [named] = enqueue(app, 1, unique="key")
    if (named.id, named.is_new) != (holder.id, False):
        return f"a taken key named {named.id}, new {named.is_new}, and not its holder {holder.id}"
    return None


def a_job_enqueued_by_many_is_stored_once(place: Place, *, rounds: int = 8) -> str | None:
    """The very same NewJob, from several threads at the same moment."""
    apps = place.apps(6)
    for _ in range(rounds):
        new = NewJob("work")
        answers = together(*((lambda app=app, new=new: app.sync.enqueue(new)[0]) for app in apps))
        if (stored := len(apps[0].sync.find(state="ready", limit=100))) != 1:
            return f"one job enqueued by many was stored {stored} times"
        if (news := sum(job.is_new for job in answers)) != 1:
            return f"is_new was told {news} times for one job"
        if {job.id for job in answers} != {new.id}:
            return "an enqueue answered another job than its own"
        apps[0].sync.delete(new.id)
    return None


def a_unique_key_is_held_once(place: Place, *, rounds: int = 6) -> str | None:
    apps = place.apps(16)
    for number in range(rounds):
        key = f"key-{number}"
        answers = together(
            *((lambda app=app, key=key: app.sync.enqueue(NewJob("work", unique=key))[0]) for app in apps)
        )
        if (news := sum(job.is_new for job in answers)) != 1:
            return f"is_new was told {news} times for one key"
        if len({job.id for job in answers}) != 1:
            return f"one key named {len({job.id for job in answers})} jobs"
    return None


def a_unique_key_is_never_answered_by_nobody(place: Place, *, finishes: int = 40) -> str | None:
    """Enqueue one key again and again while its holders finish: each call gets a job."""
    apps = place.apps(5)
    over = threading.Event()

    def finish() -> list[Any]:
        done: list[Any] = []
        try:
            while len(done) < finishes:
                for claim in apps[0].sync.claim():
                    claim.succeed()
                    done.append(claim.job.id)
        finally:
            over.set()
        return done

    def enqueue_all(app: Dibs) -> list[Any]:
        got = []
        while not over.is_set():
            got += app.sync.enqueue(NewJob("work", unique="key"))
        return got

    done, *answers = together(finish, *((lambda app=app: enqueue_all(app)) for app in apps[1:]))
    told = [job for answer in answers for job in answer]
    news, named = [job.id for job in told if job.is_new], {job.id for job in told}
    if len(set(news)) != len(news) or set(news) != named:
        return f"{len(news)} were told new, {len(set(news))} different ones, {len(named)} jobs were named"
    live = apps[0].sync.find(state=["ready", "running"])
    if len(live) > 1 or len(done) + len(live) != len(news):
        return f"{len(news)} new jobs, but {len(done)} finished and {len(live)} live"
    return None


def a_retry_by_many_leaves_one_copy(place: Place, *, rounds: int = 6) -> str | None:
    apps = place.apps(6)
    for _ in range(rounds):
        [job] = enqueue(apps[0], 1)
        apps[0].sync.claim()[0].fail("broken", retry=False)
        answers = together(*((lambda app=app, job=job: app.sync.retry(job.id)) for app in apps))
        if {answer.id for answer in answers} != {job.id}:
            return "a retry answered another job"
        copies = apps[0].sync.find(limit=100)
        if [(copy.id, copy.state) for copy in copies] != [(job.id, "ready")]:
            return f"one job retried by many left {[(copy.id, copy.state) for copy in copies]}"
        apps[0].sync.delete(job.id)
    return None


def a_retry_respects_the_unique_key(place: Place) -> str | None:
    app = place.app()
    [old] = enqueue(app, 1, unique="key")
    app.sync.claim()[0].fail("broken", retry=False)
    [new] = enqueue(app, 1, unique="key")
    try:
        app.sync.retry(old.id)
    except Refused:
        states = {job.id: job.state for job in app.sync.find()}
        return None if states == {old.id: "failed", new.id: "ready"} else f"a refused retry left {states}"
    return "two jobs wait with one unique key"


# -- Schedules ----------------------------------------------------------------------------------

MORNING = datetime(2026, 5, 1, 6, tzinfo=UTC)


def a_tick_is_enqueued_once(place: Place, *, rounds: int = 5) -> str | None:
    """Workers whose ideas of the time differ by a second; all of them have looked before one writes."""
    apps = place.apps(4)
    for app in {id(app): app for app in apps}.values():
        app.every("* * * * * *")(app.job(lambda: None, name="work"))
    _look_at_schedules(apps[0], MORNING)
    for number in range(1, rounds + 1):
        looked = threading.Barrier(len(apps))
        nows = [MORNING + timedelta(seconds=2 * number - late) for late in (0, 1, 0, 1)]
        together(
            *(
                (lambda app=app, now=now, looked=looked: _look_at_schedules(app, now, looked))
                for app, now in zip(apps, nows, strict=True)
            )
        )
        for claim in apps[0].sync.claim(limit=100):
            claim.succeed()
        for now in nows:
            _look_at_schedules(apps[-1], now)
    ticks = Counter(job.meta["tick"] for job in apps[0].sync.find(limit=1000))
    if twice := sorted(tick for tick, times in ticks.items() if times > 1):
        return f"enqueued twice: {twice}"
    if len(ticks) != 2 * rounds:
        return f"{len(ticks)} of {2 * rounds} ticks were enqueued"
    return None


def _look_at_schedules(app: Dibs, now: datetime, looked: threading.Barrier | None = None) -> None:
    """As a worker does; with a barrier, nobody writes before all have looked."""
    core = core_of(app)

    def script() -> Script[None]:
        inner = enqueue_due(core.schedules.definitions, now)
        with contextlib.suppress(StopIteration):
            step = next(inner)
            while True:
                rows = yield step
                if looked is not None and step.question == "schedules":
                    looked.wait(10)
                step = inner.send(rows)

    core.store.run(lambda _: script())
