"""A signal handler that raises while the program waits for results ends that wait, and keeps nothing else waiting."""

from __future__ import annotations

import itertools
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script, succeeded

from mp_pool.scheduling.condition import Condition


class AlarmError(Exception):
    """As a time limit of the program raises."""


def raises_at(step: int, condition: Condition) -> bool:
    """Wait, with an exception at that point of the code of `wait`; return whether there is such a point."""
    count, raised = itertools.count(), []  # type: ignore[var-annotated]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not Condition.wait.__code__:
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode") and next(count) == step:
            raised.append(True)
            raise AlarmError
        return trace

    sys.settrace(trace)
    try:
        with suppress(AlarmError, RuntimeError), condition:  # RuntimeError: it was released already
            condition.wait(0.001)
    finally:
        sys.settrace(None)
    return bool(raised)


def try_to_take(condition: Condition, free: list[bool]) -> None:
    free.append(condition.acquire(timeout=10))


def test_a_condition_is_free_after_an_exception_at_any_point_of_a_wait() -> None:
    tracer, condition = sys.gettrace(), Condition()
    try:
        for step in itertools.count():
            free: list[bool] = []
            is_over = not raises_at(step, condition)
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


PROGRAM = """
    import itertools, signal, sys, time
    import mp_all as mp

    class AlarmError(Exception):
        pass

    def same(item):
        return item

    WAYS = {
        "map": lambda pool, _: pool.map(same, [1, 2, 3]),
        "imap": lambda pool, _: list(pool.imap(same, [1, 2, 3])),
        "submit": lambda _, executor: executor.submit(same, 1).result(),
        "executor's map": lambda _, executor: list(executor.map(same, [1, 2, 3])),
    }
    armed = []

    def interrupt(*_):
        if armed:
            armed.clear()
            raise AlarmError

    if __name__ == "__main__":
        signal.signal(signal.SIGALRM, interrupt)
        forking = mp.get_context("fork")
        with forking.Pool(1) as pool, mp.ProcessPoolExecutor(1, mp_context=forking) as executor:
            executor.submit(same, 1).result()
            until = time.monotonic() + 2.0
            for n in itertools.count():
                try:
                    try:
                        armed.append(True)
                        signal.setitimer(signal.ITIMER_REAL, 1e-4 + n % 53 * 3e-5)
                        WAYS[sys.argv[1]](pool, executor)
                    finally:
                        armed.clear()
                except AlarmError:
                    pass
                if time.monotonic() > until:
                    break
            print(pool.apply_async(same, (5,)).get(60), executor.submit(same, 5).result(60))
"""


@pytest.mark.parametrize("way", ["map", "imap", "submit", "executor's map"])
def test_alarms_that_raise_stop_no_pool(tmp_path: Path, way: str) -> None:
    assert succeeded(run_script(tmp_path, PROGRAM, way)) == "5 5\n"
