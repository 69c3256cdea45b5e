"""The protocol of the outbox (ADR 13) as a small model, to be explored state by state.

Producers write messages in transactions that commit or roll back; relays claim them under a lock, publish
them to a broker one after the other, and mark them. A relay dies or freezes between any two of its steps: a
frozen one goes on when its lock has long run out. A broker takes a message and says so, takes it and the word
is lost, or refuses it. Each step is one statement, or one call of the broker.

A mutant is the protocol with one guard left out, caught by the promise it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from dibs.outbox.messages import Status
from tests.model.explorer import Explored, Rule, explore_all
from tests.model.protocol import replaced

OPEN = (Status.pending, Status.processing, Status.failed)

# -- what there is ------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message as the table has it; the last three are what only an all-seeing judge knows."""

    status: Status | None = None  # None: it is not there
    token: int = 0
    attempts: int = 0
    expired: bool = False  # its lock
    fate: str = ""  # written | committed | rolled back
    before: frozenset[int] = frozenset()  # those of its key that were committed when it was written
    disturbed: bool = False  # a lock ran out, a relay died or a word was lost: it may come twice


class Holding(NamedTuple):
    """A message in the hands of a relay; `said` is what the broker told it, and nobody has marked yet."""

    message: int
    token: int
    said: str = ""  # taken | refused


class Relay(NamedTuple):
    lane: tuple[Holding, ...] = ()  # in the order in which they are published
    saw: tuple[int, ...] = ()  # what a mutant looked at before it takes it
    last: int = -1  # how far a mutant believes that it got


class World(NamedTuple):
    messages: tuple[Message, ...]
    relays: tuple[Relay, ...]
    delivered: tuple[int, ...] = ()  # what the broker took, in its order
    newest_token: int = 0
    losses: int = 0
    redriven: int = 0


class Deed(NamedTuple):
    verb: str
    message: int = -1
    relay: int = -1
    token: int = 0
    applied: bool = False


Steps = Iterator[tuple[Deed, World]]


# -- what is promised ---------------------------------------------------------------------------------


class Promise(StrEnum):
    none_of_the_rolled_back = "nothing is delivered that was not committed"
    in_order = "the first deliveries of a key come in the order of its transactions"
    once_undisturbed = "a message comes twice only after a death, a lost word or an expired lock"
    one_holder = "a message is held by one relay at a time"
    holder_marks = "only the holder marks"
    attempts_count = "a message is tried at most max_attempts times"
    abandoned_is_kept = "an abandoned message stays until a person redrives it"
    at_least_once = "from everywhere each committed message can still be delivered, or is abandoned and kept"


class Mutant(StrEnum):
    mark_before_publish = "a message is marked before it is published"
    claim_unguarded = "claim looks for messages and then takes them unguarded"
    claim_by_force = "claim does not ask whether a lock has run out"
    claim_any = "claim takes messages whose key somebody else holds"
    lane_goes_on = "after a message that failed the next one of its key is published"
    failed_overtaken = "a key goes on while its first message waits out a back-off"
    mark_unfenced = "mark does not ask for the token"
    reads_uncommitted = "a relay sees what has not been committed"
    polls_by_position = "a relay remembers how far it got, and looks only behind that"
    attempts_at_failure = "attempts are counted when one fails, not when it is claimed"
    abandoned_forgotten = "what is abandoned is deleted"
    lock_for_ever = "a lock does not run out"


CAUGHT_BY = {
    Mutant.mark_before_publish: Promise.at_least_once,
    Mutant.claim_unguarded: Promise.once_undisturbed,
    Mutant.claim_by_force: Promise.one_holder,
    Mutant.claim_any: Promise.in_order,
    Mutant.lane_goes_on: Promise.in_order,
    Mutant.failed_overtaken: Promise.in_order,
    Mutant.mark_unfenced: Promise.holder_marks,
    Mutant.reads_uncommitted: Promise.none_of_the_rolled_back,
    Mutant.polls_by_position: Promise.at_least_once,
    Mutant.attempts_at_failure: Promise.attempts_count,
    Mutant.abandoned_forgotten: Promise.abandoned_is_kept,
    Mutant.lock_for_ever: Promise.at_least_once,
}


# -- what can happen ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxProtocol:
    """The keys of the messages, in the order of their positions, and how much may go wrong."""

    keys: tuple[str, ...] = ("k", "k")
    relays: int = 2
    batch: int = 2
    max_attempts: int = 2
    losses: int = 1
    redrives: int = 0
    mutant: Mutant | None = None

    by_a_person: ClassVar[frozenset[str]] = frozenset({"redrive"})

    def start(self) -> World:
        return World(messages=(Message(),) * len(self.keys), relays=(Relay(),) * self.relays)

    def is_done(self, world: World) -> bool:
        """Nothing is on its way any more, and all that was committed has been delivered, or is kept."""
        return all(
            message.fate == "rolled back"
            or (message.fate == "committed" and (id in world.delivered or message.status == Status.abandoned))
            for id, message in enumerate(world.messages)
        )

    def steps(self, world: World) -> Steps:
        yield from self._produces(world)
        for number, relay in enumerate(world.relays):
            if relay.lane:
                yield from self._relays(world, number, relay.lane[0])
                yield from self._deaths(world, number)
            else:
                yield from self._claims(world, number)
        yield from self._time(world)
        yield from self._redrives(world)

    # -- publish, in the caller's transaction

    def _produces(self, world: World) -> Steps:
        """Positions are given out at the write: those who write later may commit earlier."""
        for id, message in enumerate(world.messages):
            if message.fate == "written":
                yield (
                    Deed("commit", id),
                    with_message(world, id, message._replace(status=Status.pending, fate="committed")),
                )
                yield Deed("roll back", id), with_message(world, id, Message(fate="rolled back"))
        unwritten = [id for id, message in enumerate(world.messages) if not message.fate]
        if unwritten:
            id = unwritten[0]
            before = frozenset(
                other
                for other, message in enumerate(world.messages)
                if self.keys[other] == self.keys[id] and message.fate == "committed"
            )
            yield Deed("write", id), with_message(world, id, Message(fate="written", before=before))

    # -- claim

    def _claims(self, world: World, number: int) -> Steps:
        relay = world.relays[number]
        if relay.saw:
            taken = self._taken(with_relay(world, number, relay._replace(saw=())), number, relay.saw)
            yield Deed("claim", relay.saw[0], number), taken
            return
        found = self._claimable(world, relay)
        if not found:
            return
        if self.mutant == Mutant.claim_unguarded:
            yield Deed("look", found[0], number), with_relay(world, number, relay._replace(saw=found))
        else:
            yield Deed("claim", found[0], number), self._taken(world, number, found)

    def _claimable(self, world: World, relay: Relay) -> tuple[int, ...]:
        """The first key whose oldest open message is free: that one, and those right behind that are free."""
        for key in dict.fromkeys(self.keys):
            line = [id for id in range(len(self.keys)) if self.keys[id] == key and self._is_open(world, id)]
            if self.mutant == Mutant.polls_by_position:
                line = [id for id in line if id > relay.last or world.messages[id].status != Status.pending]
            if self.mutant == Mutant.claim_any:
                line = [id for id in line if self._is_free(world.messages[id])]
            if self.mutant == Mutant.failed_overtaken:
                line = [id for id in line if world.messages[id].status != Status.failed] or line
            free: list[int] = []
            for id in line[: self.batch]:
                if not self._is_free(world.messages[id]):
                    break
                free.append(id)
            if free:
                return tuple(free)
        return ()

    def _is_open(self, world: World, id: int) -> bool:
        message = world.messages[id]
        return message.status in OPEN or (
            self.mutant == Mutant.reads_uncommitted and message.fate == "written"
        )

    def _is_free(self, message: Message) -> bool:
        by_force = self.mutant == Mutant.claim_by_force
        return message.status != Status.processing or message.expired or by_force

    def _taken(self, world: World, number: int, ids: tuple[int, ...]) -> World:
        """Who was tried as often as allowed and never came back is not tried again."""
        lane: list[Holding] = []
        for id in ids:
            message = world.messages[id]
            if message.attempts >= self.max_attempts:
                world = with_message(world, id, self._abandoned(message))
                continue
            token = world.newest_token + 1
            counts = self.mutant != Mutant.attempts_at_failure
            leased = message._replace(
                status=message.status and Status.processing,
                token=token,
                attempts=message.attempts + counts,
                expired=False,
            )
            world = with_message(world, id, leased)._replace(newest_token=token)
            lane.append(Holding(id, token))
        last = max(ids) if self.mutant == Mutant.polls_by_position else -1
        return with_relay(world, number, Relay(tuple(lane), last=max(last, world.relays[number].last)))

    def _abandoned(self, message: Message) -> Message:
        status = None if self.mutant == Mutant.abandoned_forgotten else Status.abandoned
        return message._replace(status=status, expired=False)

    # -- publish to the broker, and mark

    def _relays(self, world: World, number: int, first: Holding) -> Steps:
        if self.mutant == Mutant.mark_before_publish:
            yield from self._marks_and_publishes(world, number, first)
        elif first.said:
            yield from self._marks(world, number, first)
        else:
            yield from self._publishes(world, number, first)

    def _publishes(self, world: World, number: int, first: Holding) -> Steps:
        relay = world.relays[number]
        taken = world._replace(delivered=(*world.delivered, first.message))
        said = relay._replace(lane=(first._replace(said="taken"), *relay.lane[1:]))
        yield Deed("publish", first.message, number, first.token), with_relay(taken, number, said)
        refused = relay._replace(lane=(first._replace(said="refused"), *relay.lane[1:]))
        yield Deed("refuse", first.message, number, first.token), with_relay(world, number, refused)
        if world.losses < self.losses:
            lost = disturbed(with_relay(taken, number, refused), first.message)
            deed = Deed("publish", first.message, number, first.token)
            yield deed, lost._replace(losses=world.losses + 1)

    def _marks(self, world: World, number: int, first: Holding) -> Steps:
        """Fenced; whoever fails keeps those behind it from being published before it."""
        relay, message = world.relays[number], world.messages[first.message]
        held = message.status == Status.processing and message.token == first.token
        applied = held or self.mutant == Mutant.mark_unfenced
        deed = Deed("mark", first.message, number, first.token, applied and message.status is not None)
        rest = relay.lane[1:]
        if first.said == "refused" and self.mutant != Mutant.lane_goes_on:
            world, rest = self._given_back(world, rest), ()
        if deed.applied:
            world = with_message(world, first.message, self._marked(message, first.said))
        yield deed, with_relay(world, number, relay._replace(lane=rest))

    def _marked(self, message: Message, said: str) -> Message:
        if said == "taken":
            return message._replace(status=Status.published, expired=False)
        attempts = message.attempts + (self.mutant == Mutant.attempts_at_failure)
        if attempts >= self.max_attempts:
            return self._abandoned(message._replace(attempts=attempts))
        return message._replace(status=Status.failed, attempts=attempts, expired=False)

    def _given_back(self, world: World, lane: tuple[Holding, ...]) -> World:
        """Untried, with their attempt."""
        for held in lane:
            message = world.messages[held.message]
            if (message.status, message.token) == (Status.processing, held.token):
                counts = self.mutant != Mutant.attempts_at_failure
                back = message._replace(
                    status=Status.pending, attempts=message.attempts - counts, expired=False
                )
                world = with_message(world, held.message, back)
        return world

    def _marks_and_publishes(self, world: World, number: int, first: Holding) -> Steps:
        relay, message = world.relays[number], world.messages[first.message]
        if first.said:
            taken = world._replace(delivered=(*world.delivered, first.message))
            after = with_relay(taken, number, relay._replace(lane=relay.lane[1:]))
            yield Deed("publish", first.message, number, first.token), after
        elif (message.status, message.token) == (Status.processing, first.token):
            marked = with_message(world, first.message, message._replace(status=Status.published))
            said = relay._replace(lane=(first._replace(said="taken"), *relay.lane[1:]))
            yield Deed("mark", first.message, number, first.token, True), with_relay(marked, number, said)
        else:
            yield (
                Deed("mark", first.message, number, first.token),
                with_relay(world, number, relay._replace(lane=())),
            )

    # -- time, people, and what happens to relays

    def _time(self, world: World) -> Steps:
        for id, message in enumerate(world.messages):
            if message.status == Status.processing and not message.expired:
                if self.mutant == Mutant.lock_for_ever:
                    continue
                yield (
                    Deed("expire", id),
                    disturbed(with_message(world, id, message._replace(expired=True)), id),
                )

    def _deaths(self, world: World, number: int) -> Steps:
        if world.losses < self.losses:
            relay = world.relays[number]
            dead = with_relay(world, number, relay._replace(lane=(), saw=()))
            for held in relay.lane:
                dead = disturbed(dead, held.message)
            yield Deed("die", relay.lane[0].message, number), dead._replace(losses=world.losses + 1)

    def _redrives(self, world: World) -> Steps:
        if world.redriven == self.redrives:
            return
        for id, message in enumerate(world.messages):
            if message.status == Status.abandoned:
                again = disturbed(
                    with_message(world, id, message._replace(status=Status.pending, attempts=0)), id
                )
                yield Deed("redrive", id), again._replace(redriven=world.redriven + 1)


def with_message(world: World, id: int, message: Message) -> World:
    return world._replace(messages=replaced(world.messages, id, message))


def with_relay(world: World, number: int, relay: Relay) -> World:
    return world._replace(relays=replaced(world.relays, number, relay))


def disturbed(world: World, id: int) -> World:
    return with_message(world, id, world.messages[id]._replace(disturbed=True))


# -- which promise a step broke -----------------------------------------------------------------------


def _none_of_the_rolled_back(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    return all(after.messages[id].fate == "committed" for id in after.delivered)


def _in_order(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    """A message that was abandoned lets its key go on."""
    if deed.verb != "publish" or deed.message in before.delivered:
        return True
    earlier = [id for id in after.messages[deed.message].before if id not in before.delivered]
    return all(before.messages[id].status == Status.abandoned for id in earlier) or bool(after.redriven)


def _once_undisturbed(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    twice = after.delivered.count(deed.message) > 1
    return deed.verb != "publish" or not twice or before.messages[deed.message].disturbed


def _one_holder(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    if deed.verb != "claim":
        return True
    for held in after.relays[deed.relay].lane:
        was = before.messages[held.message]
        if was.status == Status.processing and not was.expired:
            return False
    return True


def _holder_marks(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    was = before.messages[deed.message]
    return not deed.applied or (was.status, was.token) == (Status.processing, deed.token)


def _counts_attempts(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    """However often its relay dies; `token` stands for each time that it was claimed."""
    tries = [message.attempts for message in after.messages]
    return all(0 <= many <= outbox.max_attempts for many in tries) and not _is_tried_again(
        outbox, before, deed
    )


def _is_tried_again(outbox: OutboxProtocol, before: World, deed: Deed) -> bool:
    """One whose relay died is claimed, and its attempt was not counted."""
    was = before.messages[deed.message]
    return deed.verb == "claim" and was.status == Status.processing and was.attempts == 0


def _abandoned_is_kept(outbox: OutboxProtocol, before: World, deed: Deed, after: World) -> bool:
    for was, message in zip(before.messages, after.messages, strict=True):
        gone = was.fate == "committed" and message.status is None
        left = was.status == Status.abandoned and message.status != Status.abandoned
        if gone or (left and deed.verb != "redrive"):
            return False
    return True


RULES: dict[Promise, Rule[World, Deed]] = {
    Promise.none_of_the_rolled_back: _none_of_the_rolled_back,
    Promise.in_order: _in_order,
    Promise.once_undisturbed: _once_undisturbed,
    Promise.one_holder: _one_holder,
    Promise.holder_marks: _holder_marks,
    Promise.attempts_count: _counts_attempts,
    Promise.abandoned_is_kept: _abandoned_is_kept,
}


def explore(outbox: OutboxProtocol, promises: frozenset[Promise] = frozenset(Promise)) -> Explored[Deed]:
    """Every world that can be reached, until one of these promises is broken."""
    rules = {promise: RULES[promise] for promise in promises & RULES.keys()}
    return explore_all(outbox, rules, Promise.at_least_once if Promise.at_least_once in promises else None)
