"""Claim: who gets which jobs, in which order, for how long."""

from datetime import UTC, datetime, timedelta

import pytest

from dibs import BadRequest, NewJob
from tests.support.faces import Face, Make


def _ids(claims: list) -> list:
    return [claim.job.id for claim in claims]


def test_an_empty_store_gives_nothing(app: Face) -> None:
    assert app.claim() == []


def test_a_claimed_job_is_running_and_says_who_holds_it(app: Face, make: Make) -> None:
    job = make.ready()
    before = app.now()

    [claim] = app.claim(worker="pod-a", lease=60)

    assert claim.job.id == job.id
    assert (claim.job.state, claim.job.worker, claim.job.attempts) == ("running", "pod-a", 1)
    assert before <= claim.job.claimed_at <= app.now()
    assert claim.job == app.get(job.id)


def test_a_claim_shows_its_token_and_lease(app: Face, make: Make) -> None:
    make.ready()

    [claim] = app.claim(lease=60)

    assert claim.token == claim.job.token
    assert claim.lease_until == claim.job.lease_until
    assert claim.lease_until - claim.job.claimed_at == timedelta(seconds=60)


def test_nobody_gets_a_job_that_somebody_holds(app: Face, make: Make) -> None:
    make.running()

    assert app.claim(limit=10) == []


def test_one_job_is_claimed_unless_more_are_asked_for(app: Face, make: Make) -> None:
    make.ready()
    make.ready()

    assert len(app.claim()) == 1


def test_never_more_than_the_limit_are_claimed(app: Face, make: Make) -> None:
    for kind in ("a", "b", "c"):
        app.enqueue(*(NewJob(kind, queue=queue) for queue in ("x", "y") for _ in range(4)))

    claims = app.claim(limit=5)

    assert len(claims) == 5
    assert app.counts()["running"] == 5


def test_fewer_are_claimed_when_there_are_no_more(app: Face, make: Make) -> None:
    make.ready()
    make.ready()

    assert len(app.claim(limit=10)) == 2


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_claims_nothing(app: Face, make: Make, limit: int) -> None:
    make.ready()

    assert app.claim(limit=limit) == []
    assert app.counts()["ready"] == 1


@pytest.mark.parametrize("limit", ["1", 1.5, None, True, 10_001])
def test_a_limit_that_is_no_number_is_refused(app: Face, limit: object) -> None:
    with pytest.raises(BadRequest, match="limit"):
        app.claim(limit=limit)


# -- Order --------------------------------------------------------------------------------------


def test_higher_priority_goes_first(app: Face, make: Make) -> None:
    low, high, usual = make.ready(priority=-1), make.ready(priority=1), make.ready()

    claims = app.claim(limit=3)

    assert _ids(claims) == [high.id, usual.id, low.id]


def test_among_equals_the_earlier_run_at_goes_first(app: Face, make: Make) -> None:
    now = datetime.now(UTC)
    later = make.ready(run_at=now - timedelta(minutes=1))
    earlier = make.ready(run_at=now - timedelta(minutes=2))

    claims = app.claim(limit=2)

    assert _ids(claims) == [earlier.id, later.id]


def test_priority_comes_before_run_at(app: Face, make: Make) -> None:
    earlier = make.ready(run_at=datetime.now(UTC) - timedelta(days=1))
    urgent = make.ready(priority=1)

    claims = app.claim(limit=2)

    assert _ids(claims) == [urgent.id, earlier.id]


def test_of_one_moment_the_smaller_id_goes_first(app: Face) -> None:
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    first, second, third = (NewJob("work", run_at=moment) for _ in range(3))
    app.enqueue(third, first, second)

    claims = app.claim(limit=3)

    assert _ids(claims) == [first.id, second.id, third.id]


def test_without_a_run_at_the_time_of_enqueueing_counts(app: Face, make: Make) -> None:
    first, second = make.ready(), make.ready()

    assert _ids(app.claim() + app.claim()) == [first.id, second.id]


def test_order_holds_across_queues_and_kinds(app: Face, make: Make) -> None:
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    jobs = [
        make.ready(kind, queue=queue, priority=priority, run_at=moment + timedelta(seconds=second))
        for kind, queue, priority, second in [
            ("a", "x", 0, 5), ("b", "y", 3, 4), ("a", "y", 3, 3), ("c", "x", 0, 2), ("b", "x", 9, 1),
            ("c", "z", -1, 0),
        ]
    ]  # fmt: skip
    wanted = [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))]

    first, rest = app.claim(limit=4), app.claim(limit=4)

    assert _ids(first) + _ids(rest) == wanted


def test_the_extremes_of_priority_are_in_order(app: Face, make: Make) -> None:
    least, most = make.ready(priority=-32_767), make.ready(priority=32_767)

    assert _ids(app.claim(limit=2)) == [most.id, least.id]


# -- Which --------------------------------------------------------------------------------------


def test_only_the_named_queues_are_claimed_from(app: Face, make: Make) -> None:
    make.ready(queue="slow")
    mail, post = make.ready(queue="mail"), make.ready(queue="post")

    claims = app.claim(queues=["mail", "post", "empty"], limit=10)

    assert _ids(claims) == [mail.id, post.id]


def test_only_the_named_kinds_are_claimed(app: Face, make: Make) -> None:
    make.ready("other")
    send, print_ = make.ready("send"), make.ready("print")

    claims = app.claim(kinds=["send", "print", "unknown"], limit=10)

    assert _ids(claims) == [send.id, print_.id]


def test_queues_and_kinds_narrow_together(app: Face, make: Make) -> None:
    make.ready("send", queue="slow")
    make.ready("other", queue="mail")
    wanted = make.ready("send", queue="mail")

    claims = app.claim(queues=["mail"], kinds=["send"], limit=10)

    assert _ids(claims) == [wanted.id]


def test_many_names_narrow_like_few(app: Face, make: Make) -> None:
    names = [f"q{n}" for n in range(40)]
    make.ready("k50", queue="q1")
    wanted = make.ready("k3", queue="q39")

    claims = app.claim(queues=names, kinds=[f"k{n}" for n in range(40)], limit=10)

    assert _ids(claims) == [wanted.id]


def test_a_name_given_twice_counts_once(app: Face, make: Make) -> None:
    job, other = make.ready(queue="mail"), make.ready(queue="mail")

    claims = app.claim(queues=["mail", "mail"], kinds=["work", "work"], limit=10)

    assert _ids(claims) == [job.id, other.id]


@pytest.mark.parametrize("names", [{"queues": []}, {"kinds": []}], ids=repr)
def test_no_names_give_nothing(app: Face, make: Make, names: dict) -> None:
    make.ready()

    assert app.claim(**names, limit=10) == []


def test_scheduled_and_finished_jobs_are_not_claimed(app: Face, make: Make) -> None:
    make.scheduled()
    make.succeeded()
    make.failed()
    make.cancelled()

    assert app.claim(limit=10) == []


def test_a_paused_queue_gives_nothing(app: Face, make: Make) -> None:
    make.ready(queue="mail")
    other = make.ready(queue="other")
    app.pause("mail")

    assert _ids(app.claim(limit=10)) == [other.id]


def test_a_paused_queue_gives_nothing_when_named_either(app: Face, make: Make) -> None:
    make.ready("send", queue="mail")
    app.pause("mail")

    assert app.claim(queues=["mail"], limit=10) == []
    assert app.claim(queues=["mail"], kinds=["send"], limit=10) == []


def test_names_may_be_anything_a_person_types(app: Face, make: Make) -> None:
    odd = 'it\'s "{odd}" :name %s $1 \\ 🦊'
    job = make.ready(odd, queue=odd, unique=odd, tags=[odd])

    [claim] = app.claim(queues=[odd], kinds=[odd], worker=odd)

    assert claim.job.id == job.id
    assert (claim.job.kind, claim.job.queue, claim.job.worker) == (odd, odd, odd)
    assert (claim.job.unique, claim.job.tags) == (odd, [odd])


# -- Upkeep that a claim does by itself ---------------------------------------------------------


def test_a_due_job_is_claimed_though_nobody_swept(app: Face, make: Make) -> None:
    job = make.scheduled(delay=60)
    app.age(61)

    assert _ids(app.claim()) == [job.id]


def test_a_job_whose_holder_died_is_claimed_though_nobody_swept(app: Face, make: Make) -> None:
    dead = make.expired()

    [claim] = app.claim()

    assert claim.job.id == dead.job.id
    assert claim.job.attempts == 2
    assert [error.message for error in claim.job.errors] == ["worker died"]


# -- Lease, token, worker -----------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0.1, 0.123, 2, timedelta(milliseconds=1_500), timedelta(days=30)])
def test_leases_are_kept_to_the_millisecond(app: Face, make: Make, lease: float | timedelta) -> None:
    make.ready()
    span = lease if isinstance(lease, timedelta) else timedelta(seconds=lease)

    [claim] = app.claim(lease=lease)

    assert claim.lease_until - claim.job.claimed_at == span
    assert app.get(claim.job.id).lease_until == claim.lease_until


@pytest.mark.parametrize("lease", [0, -1, 0.0999, timedelta(milliseconds=99), "60", float("nan"), True])
def test_a_lease_too_short_or_no_time_span_is_refused(app: Face, make: Make, lease: object) -> None:
    job = make.ready()

    with pytest.raises(BadRequest, match="lease"):
        app.claim(lease=lease)
    with pytest.raises(BadRequest, match="lease"):
        app.claim_job(job.id, lease=lease)

    assert app.get(job.id).state == "ready"


def test_without_a_lease_the_kinds_own_is_taken(app: Face, make: Make) -> None:
    app.job(name="quick", lease=0.5)(lambda: None)
    app.job(name="slow", lease=timedelta(hours=1))(lambda: None)
    for kind in ("quick", "slow", "unknown"):
        make.ready(kind)

    claims = app.claim(limit=3)

    leases = {claim.job.kind: (claim.lease_until - claim.job.claimed_at).total_seconds() for claim in claims}
    assert leases == {"quick": 0.5, "slow": 3600, "unknown": 60}


def test_a_lease_that_was_asked_for_beats_the_kinds_own(app: Face, make: Make) -> None:
    app.job(name="slow", lease=3600)(lambda: None)
    make.ready("slow")

    [claim] = app.claim(lease=1)

    assert claim.lease_until - claim.job.claimed_at == timedelta(seconds=1)


def test_without_a_worker_this_process_claims_by_its_own_name(app: Face, make: Make) -> None:
    make.ready()
    make.ready()

    first, second = app.claim(limit=2)

    assert first.job.worker == second.job.worker
    assert first.job.worker


def test_attempts_are_counted_when_claimed(app: Face, make: Make) -> None:
    claim = make.running()

    assert claim.job.attempts == app.get(claim.job.id).attempts == 1


def test_of_two_claims_of_a_job_the_later_has_the_greater_token(app: Face, make: Make) -> None:
    first = make.running()
    first.release()

    second = app.claim_job(first.job.id)

    assert second.token > first.token > 0


def test_tokens_come_from_one_counter_of_the_store(app: Face, make: Make) -> None:
    app.enqueue(*(NewJob("work", queue=f"q{n % 3}") for n in range(6)))

    tokens = [claim.token for _ in range(3) for claim in app.claim(limit=2)]

    assert len(set(tokens)) == 6
    assert max(tokens[:2]) < min(tokens[2:4]) <= max(tokens[2:4]) < min(tokens[4:])


def test_a_token_survives_retry_and_stays_the_greatest(app: Face, make: Make) -> None:
    failed = make.failed()
    app.retry(failed.id)

    claim = app.claim_job(failed.id)

    assert claim.token > failed.token


def test_those_who_claim_at_once_never_get_the_same_job(app: Face) -> None:
    app.enqueue(*(NewJob("work") for _ in range(40)))

    answers = app.race(8, "claim", limit=5)

    ids = [claim.job.id for claims in answers for claim in claims]
    assert len(ids) == len(set(ids)) == app.counts()["running"]
