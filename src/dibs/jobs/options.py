"""What may be said of a kind, and of one job otherwise; each option checked where it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from dibs.errors import BadRequest
from dibs.jobs import payload
from dibs.jobs.gates import SLOT_POLICIES
from dibs.jobs.outcomes import ErrorClasses, check_error_classes
from dibs.jobs.states import Isolation, OnConflict, Retry, SlotPolicy, TrainPolicy
from dibs.settings import MIB, Duration, lease_micros, micros
from dibs.text import meant

DEFAULT_LEASE = 60
MOST_IN_SLOT = 1000


class Using(TypedDict, total=False):
    """What one job has unlike its kind. Example: `send_receipt.using(priority=5, train="customer_7")`"""

    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    max_attempts: int | None
    train: str | None
    slot: str | tuple[Any, ...] | None
    slot_policy: SlotPolicy | None
    slot_limit: int | None
    unique: str | None
    unique_for: Duration | None
    on_conflict: OnConflict | None
    pipeline_id: UUID | str | None
    tags: Sequence[str]
    meta: Mapping[str, Any] | None
    on_cancelled: TrainPolicy | None
    on_failed: TrainPolicy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How jobs of a kind are enqueued and run by default. Example: `@app.job(queue="mail", timeout=30)`"""

    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    retry: Retry = field(default_factory=Retry.exponential)
    timeout: Duration | None = None
    lease: Duration = DEFAULT_LEASE
    train: str | None = None
    slot: str | tuple[Any, ...] | None = None
    slot_policy: SlotPolicy | None = None
    slot_limit: int | None = None
    unique: str | None = None
    unique_for: Duration | None = None
    on_conflict: OnConflict | None = None
    on_cancelled: TrainPolicy = "advance"
    on_failed: TrainPolicy = "advance"
    isolation: Isolation | None = None
    retry_on: ErrorClasses | None = None
    give_up_on: ErrorClasses = ()

    def __post_init__(self) -> None:
        self._set("queue", payload.check_name(self.queue, "queue"))
        self._set("priority", check_priority(self.priority))
        self._set("max_attempts", check_attempts(self.max_attempts))
        lease_micros(self.lease)
        if not isinstance(self.retry, Retry):
            raise BadRequest(f"retry={self.retry!r}: use Retry.exponential(), Retry.fixed() or Retry.never()")
        if self.timeout is not None and micros(self.timeout, what="timeout") <= 0:
            raise BadRequest(f"timeout={self.timeout!r} must be more than 0")
        self._set("on_cancelled", check_policy(self.on_cancelled))
        self._set("on_failed", check_policy(self.on_failed))
        gate_columns(self.train, self.slot, self.slot_policy, self.slot_limit)
        if self.unique is not None:
            self._set("unique", payload.check_name(self.unique, "unique"))
        unique_columns(self.unique_for, self.on_conflict)
        if self.retry_on is not None:
            self._set("retry_on", check_error_classes(self.retry_on, "retry_on"))
        self._set("give_up_on", check_error_classes(self.give_up_on, "give_up_on"))
        if self.isolation not in (None, "process"):
            raise BadRequest(f"isolation={self.isolation!r} is unknown: use 'process' or leave it out")

    def _set(self, name: str, checked: Any) -> None:
        object.__setattr__(self, name, checked)


def with_options(options: Options, **changes: Any) -> Options:
    """Return the options with the given ones changed; None is not given."""
    for name, value in changes.items():
        if name not in _NAMES:
            raise BadRequest(f"@app.job({name}={value!r}) is unknown: {meant(name, _NAMES)}")
    return replace(options, **{name: value for name, value in changes.items() if value is not None})


_NAMES = ("name", *(one.name for one in fields(Options)))
NO_GATE = (None, None, None, None)


def gate_columns(train: Any, slot: Any, policy: Any, limit: Any) -> tuple[Any, ...]:
    """Return the checked columns train, slot, slot_policy, slot_limit."""
    if train is not None and slot is not None:
        raise BadRequest("a job has a train or a slot, not both: each decides alone which job may go")
    if slot is None and (policy, limit) != (None, None):
        raise BadRequest("slot_policy= and slot_limit= need a slot=; without one there is nothing to share")
    if policy is not None and policy not in SLOT_POLICIES:
        raise BadRequest(f"slot_policy={policy!r} is unknown: use {', '.join(map(repr, SLOT_POLICIES))}")
    if slot is None:
        return NO_GATE if train is None else (payload.check_name(train, "train"), None, None, None)
    most = 1 if limit is None else payload.check_whole(limit, "slot_limit", 1, MOST_IN_SLOT)
    return None, slot_name(slot), "wait" if policy is None else str.__str__(policy), most


def unique_columns(lasts: Any, conflict: Any) -> tuple[int | None, bool]:
    """Return the checked columns unique_for, replaces."""
    if conflict not in (None, "keep", "replace"):
        raise BadRequest(f"on_conflict={conflict!r} is unknown: use 'keep' or 'replace'")
    period = None if lasts is None else micros(lasts, what="unique_for")
    if period is not None and period <= 0:
        raise BadRequest(f"unique_for={lasts!r} must be more than 0")
    return period, conflict == "replace"


def slot_name(slot: object) -> str:
    """Return a slot's key as text: a string as it is, a tuple as JSON (so None equals None)."""
    if not isinstance(slot, str | tuple):
        raise BadRequest(f"slot must be a string or a tuple, not {type(slot).__name__}")
    if isinstance(slot, str):
        return payload.check_name(slot, "slot")
    if not slot:
        raise BadRequest("slot=() has no parts; name at least one, or leave slot= out")
    text = payload.encode(list(slot), "slot", MIB)
    if len(text) > payload.LONGEST_NAME:
        raise BadRequest(f"slot must have at most {payload.LONGEST_NAME} characters as JSON, not {len(text)}")
    return text


def slot_from_text(text: str) -> str | tuple[Any, ...]:
    """Return a slot's key from what people write: a name, or its parts as a JSON array."""
    if not text.startswith("["):
        return text
    try:
        return tuple(msgspec.json.decode(text, type=list[Any]))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"{text!r} can't be read as a JSON array: {error}") from None


def check_priority(priority: object) -> int:
    return payload.check_whole(priority, "priority", payload.LOWEST_PRIORITY, payload.HIGHEST_PRIORITY)


def check_attempts(attempts: object) -> int:
    return payload.check_whole(attempts, "max_attempts", 1, payload.MOST_ATTEMPTS)


def check_policy(policy: str) -> str:
    if policy not in ("advance", "hold"):
        raise BadRequest(f"{policy!r} is not a policy for on_cancelled or on_failed: use 'advance' or 'hold'")
    return "hold" if policy == "hold" else "advance"


DEFAULTS = Options()
USUAL_LEASE = lease_micros(DEFAULT_LEASE)
