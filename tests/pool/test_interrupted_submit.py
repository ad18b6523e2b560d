"""A signal handler that raises while a task is submitted or awaited leaves no lock behind and costs no other answer."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pool_tasks as tasks
import pytest
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_core.sharing import backend

INTERRUPTS = 300
MOST = 20_000  # tasks


class Interrupted(BaseException):
    """Raised by the signal handler."""


class Interrupts:
    """Raises in the main thread, at most once after each `arm`."""

    def __init__(self) -> None:
        self.armed = False
        self.count = 0

    def arm(self) -> None:
        self.armed = True

    def handle(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            self.count += 1
            raise Interrupted


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    chance, over, raised = random.Random(7), threading.Event(), Interrupts()
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        while not over.wait(chance.uniform(0.0002, 0.005)):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raised.handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield raised
    finally:
        raised.armed = False
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


# Raised in a finaliser, it is printed and ignored.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_submitted_task_is_answered_and_the_executor_goes_on_and_ends() -> None:
    with mp.ProcessPoolExecutor(2, mp.get_context("fork")) as executor:
        assert executor.submit(tasks.square, 1).result(tasks.PATIENCE) == 1  # an interrupted start costs a descriptor
        with interrupts() as raised:
            for number in range(MOST):
                future = None
                try:
                    raised.arm()
                    future = executor.submit(tasks.square, number)
                    result = future.result(tasks.PATIENCE)
                    raised.armed = False
                except Interrupted:
                    if future is None:
                        continue
                    result = future.result(tasks.PATIENCE)
                assert result == number * number
                if raised.count == INTERRUPTS:
                    break
        assert raised.count > 0
        assert list(executor.map(tasks.square, range(50))) == [number * number for number in range(50)]


# In a program of its own: an exception between the call that makes a descriptor and its variable costs the descriptor.
def test_an_executor_whose_start_was_interrupted_starts_again_and_leaves_no_process(tmp_path: Path) -> None:
    program = """
        import os, random, signal, sys, time
        from contextlib import suppress
        import mp_all as mp

        class Interrupted(BaseException): pass

        def handle(*_):
            global armed, count
            if armed:
                armed = False
                count += 1
                raise Interrupted

        if __name__ == "__main__":
            armed, count, chance = False, 0, random.Random(7)
            signal.signal(signal.SIGALRM, handle)
            sys.unraisablehook = lambda _: None
            for number in range(60):
                with mp.ProcessPoolExecutor(2, mp.get_context("fork")) as executor:
                    with suppress(Interrupted):
                        armed = True
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 0.01))
                        executor.submit(abs, -3)
                        armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    armed = False
                    assert executor.submit(abs, -number).result(60) == number
            assert count > 0
            give_up_at = time.monotonic() + 30
            with suppress(ChildProcessError):
                while time.monotonic() < give_up_at:
                    if os.waitpid(-1, os.WNOHANG) == (0, 0):
                        time.sleep(0.01)  # one lives
                print("a process is left")
    """
    assert succeeded(run_script(tmp_path, program)) == ""


@pytest.mark.parametrize("few", [1, 3])
def test_an_executor_that_had_too_few_descriptors_starts_with_the_next_task(
    tmp_path: Path, start_method: str, few: int
) -> None:
    program = """
        import os, resource, sys
        import mp_all as mp

        if __name__ == "__main__":
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            context = mp.get_context(sys.argv[1])
            with mp.ProcessPoolExecutor(2, context) as executor:
                view = executor.options(timeout=60)
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + few, hard))
                try:
                    executor.submit(abs, -1).result(60)
                except OSError as error:
                    print(error.errno)
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                print(executor.submit(abs, -1).result(60), list(view.map(abs, range(-3, 0))))
    """.replace("few", str(few))
    assert succeeded(run_script(tmp_path, program, start_method)) == "24\n1 [3, 2, 1]\n"


# A timer interrupts anywhere; a thread that sends signals, only where the main thread gives up the GIL.
UNFINISHED = """
    import signal, sys, time
    import mp_all as mp

    class Interrupted(BaseException):
        pass

    def handle(*_):
        global armed, count
        if armed:
            armed, count = False, count + 1
            if sys.argv[2] == "submits":
                more.append(executor.submit(abs, -1))
            else:
                raise Interrupted

    def submit(number):
        global armed
        try:
            armed = True
            return executor.submit(abs, -number)
        except Interrupted:
            return None
        finally:
            armed = False

    if __name__ == "__main__":
        armed, count, more = False, 0, []
        executor = mp.ProcessPoolExecutor(2, mp.get_context(sys.argv[1]))
        assert executor.submit(abs, -1).result(60) == 1  # an interrupted start ends the executor
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0004, 0.00037)
        while count < 1000:
            futures = {number: submit(number) for number in range(200)}
            for number, future in futures.items():
                assert future is None or future.result(30) == number
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert [future.result(30) for future in more] == [1] * len(more)
        executor.shutdown()
"""


@pytest.mark.parametrize("does", ["raises", "submits"])
def test_unfinished_tasks_are_done_although_a_handler_interrupts_submit_anywhere(
    start_method: str, does: str, tmp_path: Path
) -> None:
    succeeded(run_script(tmp_path, UNFINISHED, start_method, does))


def run_in_a_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_a_lock_is_left_by_the_block_that_has_it_and_refuses_a_second_one() -> None:
    lock, others = backend.TryLock(), []

    def enter() -> None:
        others.append((lock.acquire(), lock.is_mine()))
        lock.release()  # does nothing

    assert lock.acquire()
    assert not lock.acquire()
    lock.wait()
    for _ in range(3):
        run_in_a_thread(enter)
        assert lock.is_mine()
        lock.release()
    run_in_a_thread(enter)
    assert others == [(False, False)] * 3 + [(True, True)]
    assert not lock.is_mine()


def test_a_wait_for_a_lock_ends_with_the_exception_of_a_signal_handler() -> None:
    lock, holds, end = backend.TryLock(), threading.Event(), threading.Event()

    def hold() -> None:
        lock.wait()
        holds.set()
        end.wait()
        lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    with interrupts() as raised, pytest.raises(Interrupted):
        raised.arm()
        lock.wait()
    assert not lock.is_mine()
    lock.release()  # does nothing: the other thread still has it
    assert not lock.acquire()
    end.set()
    lock.wait()
    lock.release()
    thread.join()


def test_a_lock_is_free_after_each_block_that_a_handler_has_interrupted() -> None:
    lock = backend.TryLock()
    with interrupts() as raised:
        while raised.count < INTERRUPTS:
            with suppress(Interrupted):
                raised.arm()
                while True:
                    try:
                        lock.wait()
                    finally:
                        lock.release()
            assert not lock.is_mine()
