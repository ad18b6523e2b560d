"""A condition and a gate work on after a signal handler has raised at any point of their code."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.waiting import until

from mp_core.system.waits import Condition, Gate


class AlarmError(Exception):
    """As a time limit of the program raises."""


def raises_at(step: int, code: Any, call: Callable[[], Any]) -> bool:
    """Call, with an exception at that point of the *code* of a method; return whether there is such a point."""
    count, raised = itertools.count(), []  # type: ignore[var-annotated]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode") and next(count) == step:
            raised.append(True)
            raise AlarmError
        return trace

    sys.settrace(trace)
    try:
        with suppress(AlarmError):
            call()
    finally:
        sys.settrace(None)
    return bool(raised)


def wait_a_moment(condition: Condition) -> None:
    with suppress(RuntimeError), condition:  # it was released already
        condition.wait(0.001)


def try_to_take(condition: Condition, free: list[bool]) -> None:
    free.append(condition.acquire(timeout=10))


def test_a_condition_is_free_after_an_exception_at_any_point_of_a_wait() -> None:
    tracer, condition = sys.gettrace(), Condition()
    try:
        for step in itertools.count():
            free: list[bool] = []
            is_over = not raises_at(step, Condition.wait.__code__, partial(wait_a_moment, condition))
            other = threading.Thread(target=try_to_take, args=(condition, free))
            other.start()
            other.join()
            assert free == [True], step
            condition = Condition()
            if is_over:
                break
        assert step > 5
    finally:
        sys.settrace(tracer)


def test_a_condition_wakes_as_many_as_are_asked_for() -> None:
    condition, woken = Condition(), threading.Semaphore(0)

    def wait() -> None:
        with condition:
            ready.release()
            assert condition.wait(60)
        woken.release()

    ready = threading.Semaphore(0)
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
        ready.acquire()
    with condition:
        condition.notify(2)
    assert woken.acquire(timeout=60) and woken.acquire(timeout=60) and not woken.acquire(timeout=0.05)
    with condition:
        condition.notify_all()
        assert not condition.wait(0.01)  # nobody else notifies
    assert woken.acquire(timeout=60)
    for thread in threads:
        thread.join()


def test_a_wait_that_an_exception_has_ended_takes_nobodys_notification() -> None:
    tracer = sys.gettrace()
    try:
        for step in itertools.count():
            condition = Condition()
            is_over = not raises_at(step, Condition.wait.__code__, partial(wait_a_moment, condition))

            def notify(condition: Condition = condition) -> None:
                with condition:
                    condition.notify()

            with condition:
                threading.Timer(0.001, notify).start()
                woken = condition.wait(10)
            assert woken, step
            if is_over:
                break
        assert step > 5
    finally:
        sys.settrace(tracer)


def pass_through(gate: Gate, passed: threading.Event) -> None:
    if gate.wait(60):
        passed.set()


@pytest.mark.parametrize("method, arguments", [(Gate.wait, (0.001,)), (Gate.set, ())])
def test_a_gate_opens_after_an_exception_at_any_point_of_its_code(
    method: Callable[..., Any], arguments: tuple[float, ...]
) -> None:
    tracer = sys.gettrace()
    try:
        for step in itertools.count():
            gate, passed = Gate(), threading.Event()
            other = threading.Thread(target=pass_through, args=(gate, passed))
            other.start()
            assert until(partial(vars(gate).get, "_waiters"), 60)
            is_over = not raises_at(step, method.__code__, partial(method, gate, *arguments))
            gate.set()
            assert passed.wait(10) and gate.wait(10), step
            other.join()
            if is_over:
                break
        assert step > 5
    finally:
        sys.settrace(tracer)
