"""What both faces share: settings, registry, store; here a call becomes a checked operation."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

from dibs import operations, payload, upkeep
from dibs.claims import Holding
from dibs.clock import SECOND, monotonic
from dibs.engines.stores import Operation, Store, connect
from dibs.engines.trouble import Tries
from dibs.errors import BadRequest
from dibs.events import Events
from dibs.failures import errors_text
from dibs.identity import worker_name
from dibs.ids import parse_id
from dibs.jobs import Job, NewJob
from dibs.leases import Keeper
from dibs.operations import Queue, Settled, Standing, Wish
from dibs.scripts import Script
from dibs.settings import Duration, Settings, lease_micros, span
from dibs.settling import Settler
from dibs.states import FINISHED, JobState, Outcome, settle
from dibs.tasks import DEFAULT_LEASE, Registry
from dibs.upkeep import Swept, WorkerInfo
from dibs.why import Why, explain

MOST_FOUND = 1000
SHORTLY = 60 * SECOND  # what is not to be kept stays this long, so that a repeated settle is recognised


class Core:
    """One app's inner half. Nothing in here waits for anything but through `store`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry(settings)
        self.store: Store = connect(settings)
        self.events = Events()
        self.keeper = Keeper(self.store, self.events)
        self.settler = Settler(self.store)

    # -- enqueue --------------------------------------------------------------------------------

    def enqueue(self, new_jobs: Sequence[NewJob]) -> Operation[list[Job]]:
        rows = [self.registry.prepare(new) for new in new_jobs]
        fresh = False not in [new.take_fresh() for new in new_jobs]
        if not rows:
            return _nothing
        return lambda tries: operations.enqueue(
            rows,
            fresh=fresh and tries.number == 0,
            ours={row[0] for row in rows} if fresh and tries.unsure else (),
        )

    # -- claim ----------------------------------------------------------------------------------

    def claim(
        self,
        queues: Sequence[str] | None,
        kinds: Sequence[str] | None,
        limit: int,
        worker: str | None,
        lease: Duration | None,
    ) -> Operation[list[Holding]]:
        payload.check_whole(limit, "limit", -(10**9), 10_000)
        queues, kinds = _names(queues, "queue"), _names(kinds, "kind")
        if limit <= 0 or queues == [] or kinds == []:
            return _nothing
        wish = self._wish(worker, lease, limit=limit, queues=queues, kinds=kinds)
        return lambda _: self._claimed(wish)

    def claim_job(
        self, id: UUID | str, worker: str | None, lease: Duration | None
    ) -> Operation[list[Holding]]:
        wish = self._wish(worker, lease, id=parse_id(id))
        return lambda _: self._claimed(wish)

    def _claimed(self, wish: Wish) -> Script[list[Holding]]:
        asked_at = monotonic()  # before this very try was sent: the lease can't have begun earlier
        return self.holdings((yield from operations.claim(wish)), asked_at)

    def holdings(self, jobs: Sequence[Job], asked_at: float) -> list[Holding]:
        self.events.claimed(jobs)
        return [Holding(self, job, asked_at) for job in jobs]

    def _wish(self, worker: str | None, lease: Duration | None, **what: Any) -> Wish:
        return Wish(
            worker=worker_name() if worker is None else payload.check_name(worker, "worker"),
            lease=lease_micros(DEFAULT_LEASE if lease is None else lease),
            leases=self.registry.leases() if lease is None else {},
            **what,
        )

    # -- settle, renew, progress ----------------------------------------------------------------

    def settlement(self, held: Holding, outcome: Outcome, then: Sequence[NewJob] = ()) -> Settled:
        job = held.job
        children = [self.registry.prepare(new, parent=job) for new in then]
        for new in then:
            new.take_fresh()
        retry = self.registry.options(job.kind).retry
        to = settle(job.attempts, job.max_attempts, outcome, retry, random.random())  # noqa: S311
        starts_pipeline = children and job.pipeline_id is None
        values = (
            *(job.id, held.token, to.state.value, to.settled_as, to.delay, to.refund, to.result),
            *(errors_text(job.errors, to.error), to.message, job.id if starts_pipeline else None),
        )
        return Settled(values=values, children=children)

    def settle(self, one: Settled) -> Operation[None]:
        return lambda _: _settle_one(one)

    def renew(self, held: Holding, lease: Duration | None) -> Operation[Standing]:
        length = self.lease_of(held.job) if lease is None else lease_micros(lease)
        return lambda _: _renew_one(held, length)

    def progress(self, held: Holding, fraction: float, message: str | None) -> Operation[Standing]:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise BadRequest(f"progress={fraction!r} must be a number from 0 to 1")
        checked = self._text(message, "message")
        return lambda _: operations.progress(held.job.id, held.token, float(fraction), checked)

    def encode_result(self, result: Any) -> str | None:
        return None if result is None else payload.encode(result, "result", self.settings.max_payload)

    def check_reason(self, reason: str | None) -> str | None:
        return self._text(reason, "reason")

    def _text(self, text: str | None, what: str) -> str | None:
        """Free text; an empty one says nothing."""
        return None if text is None else payload.check_text(text, what, self.settings.max_payload) or None

    def lease_of(self, job: Job) -> int:
        """The length of the lease that this job was claimed with."""
        if job.lease_until is None or job.claimed_at is None:
            return lease_micros(self.registry.options(job.kind).lease)
        return round((job.lease_until - job.claimed_at) / timedelta(microseconds=1))

    # -- look and act ---------------------------------------------------------------------------

    def get(self, id: UUID | str) -> Operation[Job | None]:
        parsed = parse_id(id)
        return lambda _: operations.get(parsed)

    def find(self, limit: int, after: UUID | str | None, **filter: Any) -> Operation[list[Job]]:
        payload.check_whole(limit, "limit", -(10**9), MOST_FOUND)
        if limit <= 0:
            return _nothing
        checked, start = self._filter(**filter), None if after is None else parse_id(after)
        return lambda _: operations.find(checked, limit=limit, after=start)

    def counts(self, queue: str | None) -> Operation[dict[str, int]]:
        if queue is not None:
            payload.check_name(queue, "queue")
        return lambda _: operations.counts(queue)

    def queues(self) -> Operation[list[Queue]]:
        return lambda _: operations.queues()

    def workers(self) -> Operation[list[WorkerInfo]]:
        silence = span(3 * self.settings.poll, what="poll")
        return lambda _: upkeep.workers(silence)

    def why(self, id: UUID | str) -> Operation[Why]:
        parsed, silence = parse_id(id), span(3 * self.settings.poll, what="poll")
        return lambda _: explain(parsed, silence)

    def cancel(self, id: UUID | str, reason: str | None) -> Operation[Job]:
        parsed, checked = parse_id(id), self.check_reason(reason)
        return lambda tries: operations.cancel(parsed, checked, unsure=tries.unsure)

    def retry(self, id: UUID | str) -> Operation[Job]:
        parsed = parse_id(id)
        return lambda _: operations.retry(parsed)

    def delete(self, id: UUID | str) -> Operation[bool]:
        parsed = parse_id(id)
        return lambda tries: operations.delete(parsed, unsure=tries.unsure)

    def change_many(self, question: str, **filter: Any) -> Operation[int]:
        checked = self._filter(**filter)
        return lambda _: operations.change_many(question, checked)

    def recover(self, id: UUID | str, stale_after: Duration | None) -> Operation[Job]:
        parsed = parse_id(id)
        stale = span(self.settings.stale_after if stale_after is None else stale_after, what="stale_after")
        return lambda tries: operations.recover(parsed, stale, unsure=tries.unsure)

    def pause(self, queue: str, paused: bool) -> Operation[None]:
        payload.check_name(queue, "queue")
        return lambda _: operations.set_queue(queue, paused=paused)

    def limit(self, queue: str, n: int | None) -> Operation[None]:
        payload.check_name(queue, "queue")
        most = None if n is None else payload.check_whole(n, "limit", 0, 1_000_000)
        return lambda _: operations.set_queue(queue, max_running=most, set_limit=True)

    def sweep(self) -> Operation[Swept]:
        return lambda _: upkeep.sweep()

    def swept(self, swept: Swept) -> Swept:
        self.events.swept(**asdict(swept))
        return swept

    def retention(self) -> list[Operation[int]]:
        """What the settings `keep` and `keep_for` ask to be removed by now."""
        short = {"all": frozenset(), "failed": FINISHED - {JobState.failed}, "none": FINISHED}[
            self.settings.keep
        ]
        kept_for = span(self.settings.keep_for, what="keep_for")
        return [
            lambda _: upkeep.prune(kept_for),
            *([lambda _: upkeep.prune(SHORTLY, short)] if short else []),
        ]

    def prune(self, older_than: Duration) -> Operation[int]:
        age = span(older_than, what="older_than")
        return lambda _: upkeep.prune(age)

    def _filter(
        self, state: Any = None, tags: Sequence[str] | str | None = None, **equal: Any
    ) -> Mapping[str, Any]:
        if unknown := set(equal) - {*_NAMES_TO_FIND, "pipeline_id"}:
            raise BadRequest(f"can't find jobs by {', '.join(sorted(unknown))}")
        given = {name: equal[name] for name in _NAMES_TO_FIND if equal.get(name) is not None}
        pipeline = equal.get("pipeline_id")
        states = operations.check_states(state)
        return {
            **dict.fromkeys(_NAMES_TO_FIND),
            **{name: payload.check_name(value, name) for name, value in given.items()},
            "pipeline_id": None if pipeline is None else parse_id(pipeline),
            "states": None if states is None else [one.value for one in states],
            "tags": _names(tags, "tag") or [],
        }


_NAMES_TO_FIND = ("queue", "kind", "train", "slot")


def _nothing(_: Tries) -> Script[list[Any]]:
    return []
    yield


def _settle_one(one: Settled) -> Script[None]:
    if (yield from operations.settle_if_held([one])):
        raise operations.lease_lost(one.id, one.token)


def _renew_one(held: Holding, lease: int) -> Script[Standing]:
    standing = yield from operations.renew([held.key], lease)
    if held.key not in standing:
        raise operations.lease_lost(held.job.id, held.token)
    return standing[held.key]


def _names(names: Sequence[str] | str | None, what: str) -> list[str] | None:
    if names is None:
        return None
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, Collection):
        raise BadRequest(f"{what}s must be a list of names, not {given!r}")
    return list(dict.fromkeys(payload.check_name(name, what) for name in given))
