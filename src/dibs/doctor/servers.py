"""How a server is set up: durability, whether it can be written to, isolation, clock, wake-ups, schema."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dibs.clock import monotonic
from dibs.doctor.facts import (
    ClockDifference,
    Finding,
    HintCheck,
    Level,
    StoreFacts,
    note,
    ok,
    problem,
    warning,
)
from dibs.engines.store import Operation, SchemaProblem, Store
from dibs.operations.questions import ECHO_HINT
from dibs.operations.scripts import Script, Step
from dibs.text import spoken


@dataclass(frozen=True, slots=True)
class Setting:
    """Which values of a setting keep what was acknowledged, and what the others mean."""

    good: frozenset[str]
    level: Level
    otherwise: str
    advice: str
    tolerable: frozenset[str] = frozenset()
    """Values that lose so little that they are only worth a note."""

    def judge(self, name: str, value: str | None) -> Finding:
        level = Level.note if value in self.tolerable else self.level
        return Finding(level, "durability", f"{name} is {value}: {self.otherwise}", self.advice)


SETTINGS: Mapping[str, Setting] = {
    "fsync": Setting(
        frozenset({"on"}),
        Level.problem,
        "a crash of the machine can lose or corrupt everything",
        "set fsync = on and restart the server",
    ),
    "full_page_writes": Setting(
        frozenset({"on"}),
        Level.problem,
        "a crash of the machine can corrupt tables",
        "set full_page_writes = on, unless the file system never tears a page",
    ),
    "synchronous_commit": Setting(
        frozenset({"on", "local", "remote_write", "remote_apply"}),
        Level.warning,
        "a crash of the server can lose the last jobs it acknowledged",
        "set synchronous_commit = on, if that matters to you",
    ),
    "journal_mode": Setting(
        frozenset({"wal"}),
        Level.problem,
        "readers and the writer block each other",
        "let no other program change the file's journal mode",
    ),
    "synchronous": Setting(
        frozenset({"2", "3"}),
        Level.warning,
        "a power cut can lose the last jobs that were acknowledged",
        "leave pragma synchronous at full",
    ),
    "appendonly": Setting(
        frozenset({"yes"}),
        Level.warning,
        "a crash or restart of the server loses all jobs since its last snapshot",
        "config set appendonly yes, and the same in its redis.conf",
    ),
    "save": Setting(
        frozenset(),
        Level.warning,
        "it takes no snapshots either, so a restart loses every job",
        "config set appendonly yes, and the same in its redis.conf",
    ),
    "appendfsync": Setting(
        frozenset({"always"}),
        Level.warning,
        "a power cut can lose the last jobs that were acknowledged",
        "config set appendfsync always, if that matters to you",
        tolerable=frozenset({"everysec"}),
    ),
    "innodb_flush_log_at_trx_commit": Setting(
        frozenset({"1", "3"}),
        Level.warning,
        "a crash of the machine can lose what was acknowledged in the last second",
        "set innodb_flush_log_at_trx_commit = 1, if that matters to you",
    ),
    "sync_binlog": Setting(
        frozenset({"1"}),
        Level.warning,
        "a crash of the machine can leave replicas without jobs that were acknowledged",
        "set sync_binlog = 1",
    ),
    "innodb_doublewrite": Setting(
        frozenset({"on", "1", "fast", "detect_and_recover"}),
        Level.problem,
        "a crash of the machine can corrupt tables",
        "set innodb_doublewrite = ON, unless the file system never tears a page",
    ),
}


def durability(examined: StoreFacts) -> Iterator[Finding]:
    if ("kept", "jobs") in examined.facts:
        yield note(
            "durability",
            "all jobs are in memory and gone when this process ends",
            "use sqlite:///file.db or a server for work that must survive",
        )
        return
    known = [(name, value) for name, value in examined.about("setting") if name in SETTINGS]
    weak = [(name, value) for name, value in known if value not in SETTINGS[name].good]
    yield from (SETTINGS[name].judge(name, value) for name, value in weak)
    if known and not weak:
        said = ", ".join(f"{name} {value}" for name, value in known)
        yield ok("durability", f"what is acknowledged survives a crash ({said})")


def writable(examined: StoreFacts) -> Iterator[Finding]:
    if examined.facts.get(("standby", "server")) == "on":
        yield problem(
            "writable", "this server is a standby and can't be written to", "use the URL of the primary"
        )
    if examined.facts.get(("setting", "default_transaction_read_only")) == "on":
        yield problem(
            "writable",
            "transactions here are read-only by default",
            "set default_transaction_read_only = off for this database and user",
        )
    for what, _ in examined.about("failing"):
        yield problem(
            "writable",
            f"the server could not write its last {what} to disk, and refuses to be changed",
            "make room on its disk; its log says what went wrong",
        )
    if examined.facts.get(("setting", "read_only"), "off") not in ("off", "0"):
        yield problem(
            "writable",
            "this server is read-only, as replicas are",
            "use the URL of the primary, or set read_only = OFF",
        )


def isolation(examined: StoreFacts) -> Iterator[Finding]:
    value = examined.facts.get(("isolation", "own connections"))
    if value in ("repeatable read", "serializable"):
        yield warning(
            "isolation",
            f"our connections run at {value}: claims of the same jobs will fail and be tried again",
            "let the connection pooler pass default_transaction_isolation on, or set it to read committed",
        )
    elif value is not None:
        default = examined.facts.get(("isolation", "by default"), value)
        yours = "" if default == value else f"; transactions of your own begin at {default}"
        yield ok("isolation", f"{value}{yours}")


def judge_clock(clock: ClockDifference) -> Finding:
    """Compare the clocks: dibs uses only the store's, but people compare its times with their own."""
    off = abs(clock.ahead)
    apart = f"this machine is {spoken(off)} {'behind' if clock.ahead > 0 else 'ahead of'} the store"
    advice = "keep both clocks with NTP: times in run_at= are read by the store's clock"
    if off <= max(0.5, 2 * clock.unsure):
        return ok("clock", f"the same here and there, within {spoken(max(off, clock.unsure, 0.001))}")
    return Finding(Level.note if off < 5 else Level.warning, "clock", apart, advice)


def wake_ups(examined: StoreFacts, hints: HintCheck | None) -> Iterator[Finding]:
    if ("hints", "commits of others") in examined.facts:
        yield ok("wake-ups", "workers poll for new commits many times a second")
    elif ("hints", "new jobs") in examined.facts:
        yield ok("wake-ups", "idle workers poll for new jobs at least once a second")
    elif hints is None:
        return
    elif hints.seconds is None:
        yield warning(
            "wake-ups",
            f"a hint that was sent did not come back{f' ({hints.error})' if hints.error else ''}: "
            "idle workers find new jobs only when they poll",
            "give workers a direct connection; a pooler in transaction mode does not support LISTEN",
        )
    else:
        level = Level.ok if hints.seconds < 0.5 else Level.note
        yield Finding(level, "wake-ups", f"a hint comes back after {spoken(hints.seconds)}")


def drifted(problems: Sequence[SchemaProblem]) -> list[Finding]:
    """Return a finding per table, column or index that is wrong; the version has a finding of its own."""
    return [
        problem("schema", str(one), "make it again, by hand or from a backup")
        for one in problems
        if one.what != "version"
    ]


def uncompared(error: Exception) -> Finding:
    """Return a note: on a standby, or for a user without temporary tables, the check is not possible."""
    sentence = f"the tables were not compared with what they should be ({str(error).splitlines()[0]})"
    return note("schema", sentence, "run `dibs migrate --check` as a user with the privilege")


# -- Does a hint come back? Measured on the connection that workers listen on --------------------

# Seconds to wait after each send: a listener needs some time to connect, mostly a few milliseconds.
PAUSES = (0.01, 0.02, 0.05, 0.1, *[0.25] * 11)


class _SentHints:
    """The times at which hints were sent, and how long the first that came back took."""

    def __init__(self) -> None:
        self._name = f"{ECHO_HINT}doctor:{secrets.token_hex(4)}"  # a name that workers ignore
        self._sent: dict[str, float] = {}
        self.seconds: float | None = None
        self.error: str | None = None

    def next_hint(self) -> str:
        hint = f"{self._name}:{len(self._sent)}"
        self._sent[hint] = monotonic()
        return hint

    def hear(self, hint: str) -> bool:
        if hint in self._sent and self.seconds is None:
            self.seconds = monotonic() - self._sent[hint]
        return self.seconds is not None

    def result(self) -> HintCheck:
        return HintCheck(self.seconds, None if self.seconds is not None else self.error)


async def echo_async(store: Store) -> HintCheck | None:
    """Send hints until one comes back; None for a store that has none."""
    if not store.traits.wakes:
        return None
    hints, heard = _SentHints(), asyncio.Event()
    listening = asyncio.create_task(_listen(store, hints, heard.set))
    try:
        for pause in PAUSES:
            await store.run_async(_sending(hints.next_hint()))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await heard.wait()
            if heard.is_set() or listening.done():
                break
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return hints.result()


def echo(store: Store) -> HintCheck | None:
    """Do the same in sync code; only the listener, which is always async, has an event loop."""
    if not store.traits.wakes:
        return None
    hints, heard = _SentHints(), threading.Event()
    with _beside(lambda: _listen(store, hints, heard.set)) as listening:
        for pause in PAUSES:
            store.run(_sending(hints.next_hint()))
            if heard.wait(pause) or listening.done():
                break
    return hints.result()


def _sending(hint: str) -> Operation[None]:
    return lambda _: _send(hint)


def _send(hint: str) -> Script[None]:
    yield Step("echo", {"hint": hint})


async def _listen(store: Store, hints: _SentHints, heard: Callable[[], object]) -> None:
    def hear(hint: str) -> None:
        if hints.hear(hint):
            heard()

    try:
        await store.listen(hear)
    except Exception as error:  # any: hints that can't be heard are a finding, not a failure
        hints.error = " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> Iterator["asyncio.Task[None]"]:
    """Run this while the body runs, in a thread with an event loop."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])), name="dibs-echo")
    thread.start()
    try:
        yield task
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
