"""Conditions, events and barriers: a process that is killed while it waits stops nobody."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from multiprocessing import synchronize
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
from support import lock_users as users
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp

WITHIN = 60.0


class Child:
    """A process with a pipe to it."""

    def __init__(self, ctx: BaseContext, target: Any, *args: Any) -> None:
        self.here, self.there = ctx.Pipe()
        self.process = ctx.Process(target=target, args=(*args, self.there))  # type: ignore[attr-defined]
        self.process.start()

    def says(self) -> Any:
        """Receive one message."""
        assert self.here.poll(WITHIN)
        return self.here.recv()

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.process.kill()
        self.process.join(WITHIN)

    def close(self) -> None:
        self.kill()
        self.process.close()
        self.here.close()
        self.there.close()


@contextmanager
def children(*made: Child) -> Iterator[tuple[Child, ...]]:
    """Kill them all at the end."""
    with ExitStack() as stack:
        for one in made:
            stack.callback(one.close)
        yield made


def waiting(condition: Any) -> int:
    return int(condition._sleeping_count.get_value() - condition._woken_count.get_value())


def test_a_killed_waiter_swallows_no_notification(ctx: BaseContext, strategy: str) -> None:
    condition = ctx.Condition()
    dead = Child(ctx, users.wait_for_notification, condition)
    dead.says()
    assert until(lambda: waiting(condition) == 1)
    alive = Child(ctx, users.wait_for_notification, condition)
    with children(dead, alive):
        alive.says()
        assert until(lambda: waiting(condition) == 2)
        dead.kill()
        with condition:
            condition.notify()
        assert alive.says() is True


def test_notify_does_not_wait_for_killed_waiters(ctx: BaseContext) -> None:
    condition = ctx.Condition(ctx.Lock())
    with children(*(Child(ctx, users.wait_for_notification, condition) for _ in range(3))) as all_of_them:
        for one in all_of_them:
            one.says()
        assert until(lambda: waiting(condition) == 3)
        for one in all_of_them[:2]:
            one.kill()
        with condition:
            condition.notify_all()
        assert all_of_them[2].says() is True
        with condition:
            condition.notify_all()
            assert condition.wait(0.05) is False
        assert waiting(condition) == 0


# A notified waiter has the lock for a moment.
@pytest.mark.filterwarnings("ignore::mp_core.system.errors.OwnerDiedWarning")
def test_random_kills_of_waiters_keep_nobody_waiting(ctx: BaseContext, start_method: str) -> None:
    condition = ctx.Condition()
    for _ in range(15 if start_method == "fork" else 2):
        with children(*(Child(ctx, users.wait_for_notification, condition) for _ in range(3))) as (first, second, last):
            for one in (first, second, last):
                one.says()
            assert until(lambda: waiting(condition) == 3)
            with condition:
                condition.notify(2)
            first.process.kill()
            second.process.kill()
            with condition:
                condition.notify()
            assert last.says() is True
        with condition:
            condition.notify_all()


def test_a_condition_is_used_as_the_standard_one(ctx: BaseContext) -> None:
    condition = ctx.Condition()
    assert isinstance(condition, synchronize.Condition)
    assert repr(condition) == repr(synchronize.Condition(ctx=ctx))
    with pytest.raises(AssertionError):
        condition.wait()
    with pytest.raises(AssertionError):
        condition.notify()
    with condition, condition:
        begun = time.monotonic()
        assert condition.wait(0.1) is False
        assert time.monotonic() - begun >= 0.1
        assert condition.wait_for(lambda: False, 0.1) is False
        assert condition.wait_for(lambda: True) is True
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(condition)


def test_a_program_can_wait_for_an_event_by_the_names_of_the_standard_class(ctx: BaseContext, strategy: str) -> None:
    def set_within(timeout: float) -> bool:
        with event._cond:
            return not event._flag._semlock._is_zero() or event._cond.wait(timeout)

    event = ctx.Event()
    assert event._flag.get_value() == 0 and not set_within(0.01)
    with children(Child(ctx, users.wait_for_event, event)) as (other,):
        other.says()
        event.set()
        assert set_within(0) and event._flag.get_value() == 1
        assert other.says() is True


def test_an_event_wakes_the_others_of_a_killed_waiter(ctx: BaseContext, strategy: str) -> None:
    event = ctx.Event()
    assert isinstance(event, synchronize.Event)
    assert not event.is_set()
    assert event.wait(0.05) is False
    with children(*(Child(ctx, users.wait_for_event, event) for _ in range(3))) as (dead, *others):
        for one in (dead, *others):
            one.says()
        dead.kill()
        event.set()
        assert [one.says() for one in others] == [True, True]
    assert event.is_set() and event.wait() is True
    assert repr(event).endswith(" set>")
    event.clear()
    assert not event.is_set()
    assert repr(event).endswith(" unset>")
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(event)


def test_a_killed_party_breaks_a_barrier(ctx: BaseContext, strategy: str) -> None:
    barrier = ctx.Barrier(3)
    assert isinstance(barrier, synchronize.Barrier)
    parties = (Child(ctx, users.pass_barrier, barrier, 1, False) for _ in range(2))
    with children(*parties) as (dead, alive):
        assert until(lambda: barrier.n_waiting == 2)
        dead.kill()
        assert alive.says() == "broken"
    assert barrier.broken
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait()
    barrier.reset()
    assert not barrier.broken
    with children(*(Child(ctx, users.pass_barrier, barrier, 1, False) for _ in range(2))) as others:
        barrier.wait(WITHIN)
        assert [one.says() for one in others] == [0, 0]


def test_the_last_party_finds_a_death_that_nobody_saw(ctx: BaseContext, strategy: str) -> None:
    barrier = ctx.Barrier(2)
    with children(Child(ctx, users.pass_barrier, barrier, 1, False)) as (dead,):
        assert until(lambda: barrier.n_waiting == 1)
        dead.kill()
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(WITHIN)
    assert barrier.broken


def test_a_party_that_is_killed_between_two_rounds_breaks_the_next(ctx: BaseContext, strategy: str) -> None:
    barrier = ctx.Barrier(2)
    with children(Child(ctx, users.pass_barrier, barrier, 1, True)) as (party,):
        barrier.wait(WITHIN)
        assert party.says() == 0
        party.kill()
        begun = time.monotonic()
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(WITHIN)
        assert time.monotonic() - begun < WITHIN / 2


def test_a_party_that_ends_in_order_breaks_nothing(ctx: BaseContext) -> None:
    barrier = ctx.Barrier(2)
    for _ in range(2):
        with children(Child(ctx, users.pass_barrier, barrier, 2, False)) as (party,):
            barrier.wait(WITHIN)
            barrier.wait(WITHIN)
            assert (party.says(), party.says()) == (0, 1)
            party.process.join(WITHIN)
            assert party.process.exitcode == 0
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(0.3)  # nobody has died: it breaks by the timeout


def test_a_party_that_ends_by_an_exception_breaks_the_next_round(ctx: BaseContext) -> None:
    barrier = ctx.Barrier(2)
    process = ctx.Process(target=users.pass_barrier_and_raise, args=(barrier,))  # type: ignore[attr-defined]
    process.start()
    barrier.wait(WITHIN)
    process.join(WITHIN)
    assert process.exitcode == 1
    process.close()
    begun = time.monotonic()
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(WITHIN)
    assert time.monotonic() - begun < WITHIN / 2


def test_the_last_party_runs_the_action_and_its_error_breaks_the_barrier() -> None:
    barrier = mp.Barrier(1, action=lambda: 1 / 0)
    assert (barrier.parties, barrier.n_waiting) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        barrier.wait()
    assert barrier.broken
    with pytest.raises(ValueError, match="parties"):
        mp.Barrier(0)


def test_waits_end_at_ctrl_c(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal, threading
        import mp_all as mp

        condition, barrier = mp.Condition(), mp.Barrier(2)

        def wait():
            with condition:
                condition.wait()

        for what in (mp.Event().wait, wait, barrier.wait):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                what()
            except KeyboardInterrupt:
                print("interrupted")
        print(condition._sleeping_count.get_value(), barrier.n_waiting, barrier.broken)
        """,
    )
    assert succeeded(done).split() == ["interrupted"] * 3 + ["0", "0", "False"]


@pytest.mark.parametrize("timeout", [-1, -1e300, float("-inf"), 0])
def test_a_timeout_that_is_over_does_not_wait(timeout: float) -> None:
    ctx = mp.get_context("spawn")
    assert not ctx.Event().wait(timeout)
    with (condition := ctx.Condition()):
        assert not condition.wait(timeout) and not condition.wait_for(lambda: False, timeout)
    with pytest.raises(threading.BrokenBarrierError):
        ctx.Barrier(2).wait(timeout)


def test_a_timeout_may_be_a_decimal() -> None:
    assert not mp.Event().wait(Decimal("0.01"))  # type: ignore[arg-type]
    with (condition := mp.Condition()):
        assert not condition.wait(Decimal("0.01"))  # type: ignore[arg-type]


def test_a_timeout_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="a timeout is a number of seconds, not nan"):
        mp.Event().wait(float("nan"))
