"""A worker's wait for its next task: when it spins, and for how long."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mp_pool import _patience
from mp_pool._patience import Patience

LOOK = 10e-6  # seconds that a look takes in these tests


class World:
    """A clock and a descriptor: it becomes readable so many looks after the begin of a wait, or in a sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.comes_after: int | None = None
        self.looks: list[int] = []  # in each wait
        self.slept: list[bool] = []
        self.look_takes: Callable[[], float] = lambda: LOOK

    def poll(self, timeout: int | None = None) -> list[Any]:
        if timeout is None:
            self.slept[-1] = True
            return [1]
        self.looks[-1] += 1
        self.now += self.look_takes()
        return [1] if self.comes_after is not None and self.looks[-1] > self.comes_after else []

    def wait(self, patience: Patience, times: int = 1) -> None:
        for _ in range(times):
            self.looks.append(0)
            self.slept.append(False)
            patience.wait(True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.delenv("MP_SPIN_US", raising=False)
    monkeypatch.setattr(_patience, "processors", lambda: 2)
    monkeypatch.setattr(time, "perf_counter", lambda: world.now)
    return world


def patience_in(world: World) -> Patience:
    patience = Patience(0)
    patience._poll = world  # type: ignore[assignment]
    return patience


def test_a_task_that_comes_soon_is_found_without_a_sleep(world: World) -> None:
    world.comes_after = 8
    world.wait(patience_in(world), 3)
    assert world.slept == [False] * 3
    assert world.looks == [9] * 3


def test_waits_without_a_task_spin_less_and_then_seldom(world: World) -> None:
    world.wait(patience_in(world), 100)
    assert all(world.slept)
    spun = [at for at, looks in enumerate(world.looks) if looks]
    assert world.looks[:6] == [15, 4, 1, 0, 0, 15]
    # Three spins each, with 2, 6, 14, 30 and 62 waits between.
    assert spun == [first + at for first in (0, 5, 14, 31, 64) for at in range(3)]


def test_a_success_brings_back_the_whole_spin(world: World) -> None:
    patience = patience_in(world)
    world.wait(patience, 5)
    world.comes_after = 3
    world.wait(patience)
    assert not world.slept[-1]
    world.comes_after = 12
    world.wait(patience)
    assert not world.slept[-1]


def test_a_worker_that_lost_its_processor_in_a_spin_sleeps(world: World) -> None:
    world.look_takes = lambda: 1e-3 if world.looks[-1] == 2 else LOOK
    world.comes_after = 5
    world.wait(patience_in(world))
    assert world.looks == [2]
    assert world.slept == [True]


@pytest.mark.parametrize(("text", "looks"), [("0", 0), ("20", 6), ("", 15), ("nonsense", 15), ("-1", 15), ("nan", 15)])
def test_the_variable_sets_a_third_of_the_longest_spin(
    world: World, monkeypatch: pytest.MonkeyPatch, text: str, looks: int
) -> None:
    monkeypatch.setenv("MP_SPIN_US", text)
    world.wait(patience_in(world))
    assert world.looks == [looks]


def test_a_worker_whose_task_was_not_the_only_one_sleeps_at_once(world: World) -> None:
    patience = patience_in(world)
    world.looks, world.slept = [0], [False]
    patience.wait(False)
    assert (world.looks, world.slept) == ([0], [True])


def test_the_processor_is_given_away_between_two_looks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(_patience, "_give_way", lambda: given.append(world.looks[-1]))
    world.comes_after = 3
    world.wait(patience_in(world))
    assert given == [1, 2, 3]


def test_nothing_spins_with_one_processor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patience, "processors", lambda: 1)
    world.wait(patience_in(world), 10)
    assert world.looks == [0] * 10


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("spin", ["0", "1000000"])
def test_a_wait_ends_when_a_byte_comes_and_takes_none(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, spin: str
) -> None:
    monkeypatch.setenv("MP_SPIN_US", spin)
    reader, writer = pipe
    patience = Patience(reader)
    later = threading.Timer(0.02, os.write, [writer, b"x"])
    later.start()
    patience.wait(True)
    assert select.select([reader], [], [], 0)[0] == [reader]
    later.join()
