"""When a supervisor replaces a process, and when it gives up."""

from __future__ import annotations

import signal

import pytest

from dibs.cli._support import supervisor
from dibs.cli._support.supervisor import TRIES, Supervisor


class Child:
    """A process that does as the test says."""

    started: list[Child]

    def __init__(self, *_: object) -> None:
        self.came_up = False
        self.code: int | None = None
        self.age = 0.0
        self.signals: list[int] = []
        self.process = self
        Child.started.append(self)

    def ends(self, code: int = 1) -> None:
        self.code = code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.code = 0

    def close(self) -> None: ...


class Watched:
    """A supervisor whose looks the test makes."""

    def __init__(self, processes: int) -> None:
        self.supervisor = Supervisor([None] * processes, [])
        for place in self.supervisor._kept:
            place.start()

    def look(self) -> int | None:
        codes = [self.supervisor._check(place) for place in self.supervisor._kept]
        codes += [self.supervisor._check(place) for place in self.supervisor._kept]  # and what is due
        return next((code for code in codes if code is not None), None)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    Child.started = []
    monkeypatch.setattr(supervisor, "SupervisedProcess", Child)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)


def test_processes_that_never_come_up_are_given_up() -> None:
    watched = Watched(1)

    for _ in range(TRIES - 1):
        Child.started[-1].ends()
        assert watched.look() is None
    Child.started[-1].ends()

    assert watched.look() == 1


def test_bad_usage_is_not_tried_again() -> None:
    watched = Watched(2)

    Child.started[0].ends(2)

    assert watched.look() == 2


def test_a_process_that_came_up_is_replaced_as_often_as_it_takes() -> None:
    watched = Watched(1)

    for _ in range(3 * TRIES):
        Child.started[-1].came_up = True
        assert watched.look() is None
        Child.started[-1].ends(-signal.SIGKILL)
        assert watched.look() is None

    assert len(Child.started) == 3 * TRIES + 1


def test_one_that_works_is_not_taken_down_with_those_that_never_come_up() -> None:
    watched = Watched(2)
    working, _ = Child.started
    working.came_up = True

    for _ in range(3 * TRIES):
        Child.started[-1].ends()
        assert watched.look() is None

    assert working.signals == []
    working.ends()  # now nobody is left
    assert watched.look() is None
    Child.started[-1].ends()
    Child.started[-2].ends()
    codes = [watched.look() for _ in range(TRIES) if [child.ends() for child in Child.started]]
    assert 1 in codes


def test_who_dies_again_and_again_is_replaced_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 1.0)
    [place] = Watched(1).supervisor._kept

    def pause(*, age: float = 1.0) -> float:
        child = Child()
        child.came_up, child.age = True, age
        return place.schedule_next(child)  # type: ignore[arg-type]

    assert [pause() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pause(age=3600.0) == 1
    assert pause() == 2
