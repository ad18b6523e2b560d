"""Arguments of a process that does not start, or is killed before it receives them, are freed."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import leaks
from support.scripts import run_script
from support.waiting import until

import mp_all as mp
from mp_core.children import child_descriptors
from mp_core.installation import contexts
from mp_core.sharing import backend

WITHIN = 60


@pytest.fixture
def shared() -> Any:
    """
    A shared array that is an argument of each process, beside nothing in flight; all memory returns.
    """
    assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0)
    before = mp.memory_stats()["live_bytes"]
    arrays = [mp.shared.zeros(100_000)]
    yield arrays
    arrays.clear()
    gc.collect()
    assert until(lambda: mp.memory_stats()["live_bytes"] == before)


def nothing_is_in_flight() -> bool:
    return until(lambda: mp.memory_stats()["in_flight_bytes"] == 0)


@pytest.mark.parametrize("more", [0, 70_000])
@pytest.mark.timeout(90)
def test_a_process_that_is_killed_while_it_starts_leaves_no_argument_in_flight(
    ctx: Any, strategy: str, shared: Any, more: int
) -> None:
    for delay in (0, 0.02, 0.05, 0.1, 0.2):
        process = ctx.Process(target=wait_for_ever, args=(shared[0], np.ones(50_000), [*range(more)]))
        killer = threading.Thread(target=kill_soon, args=(process, delay))
        killer.start()
        process.start()
        killer.join()
        process.join(WITHIN)
        assert process.exitcode in (-signal.SIGKILL, 255)  # a fork server does not always know
        assert nothing_is_in_flight()


@pytest.mark.parametrize("end", ["is killed", "does not import the program"])
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_program_without_a_connection_leaves_no_argument_of_a_process_in_flight(
    tmp_path: Path, start_method: str, strategy: str, end: str
) -> None:
    program = f"""
        import sys, time
        if __name__ == "__mp_main__" and {end!r} != "is killed":
            sys.exit(3)
        import numpy as np
        import mp_all as mp

        if __name__ == "__main__":
            ctx = mp.get_context({start_method!r})
            for _ in range(2):
                process = ctx.Process(target=time.sleep, args=(3600,), kwargs=dict(unused=np.ones(50_000)))
                process.start()
                if {end!r} == "is killed":
                    process.kill()
                process.join()
                while mp.memory_stats()["in_flight_bytes"]:
                    time.sleep(0.01)
    """
    run = run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)
    assert run.returncode == 0, run.stderr


def test_a_reader_that_is_killed_between_two_parts_leaves_no_argument_in_flight(strategy: str, shared: Any) -> None:
    parts = [*range(400_000)]  # more than the ring takes at once: the reader has begun when it is sent
    for scenes in until_killed_in_the_middle(5, [shared[0], np.ones(50_000), parts]):
        assert nothing_is_in_flight(), scenes


def until_killed_in_the_middle(times: int, arguments: list[Any]) -> Any:
    """
    Kill readers, until so many have died between two parts of the arguments; yield after each reader.
    """
    scenes = 0
    while scenes < times:
        message = backend.pickled(ForkingPickler.dumps, arguments)
        handles = message.handles
        reader, writer = contexts.default_context.Pipe(False)  # of channels, whatever MP_CHANNEL says
        pid = os.fork()
        if pid == 0:
            writer.close()
            reader.recv()
            os._exit(0)
        reader.close()
        writer._send_unless(message, [])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        scenes += writer._has_rest()
        assert child_descriptors.is_done((writer, [*handles], backend.TryLock()), True)
        yield scenes


def kill_soon(process: Any, delay: float) -> None:
    """
    Kill a process so many seconds after it has a pid; its start may not have returned.
    """
    assert until(lambda: process._popen is not None and getattr(process._popen, "pid", None))
    time.sleep(delay)
    os.kill(process._popen.pid, signal.SIGKILL)


def wait_for_ever(*arguments: Any) -> None:
    while True:
        signal.pause()


def keep_first(*arguments: Any) -> None:
    """
    Do nothing with the arguments.
    """


def say_sum(results: Any, *arguments: Any) -> None:
    """
    Send the sum of the arrays and lists, and wait if there is something to wait for.
    """
    results.put(int(sum(np.sum(each) for each in arguments if isinstance(each, (np.ndarray, list)))))
    for each in arguments:
        if hasattr(each, "get"):
            each.get()


class Dies:
    """
    Ends the process that unpickles it.
    """

    EXITCODE = 17

    def __reduce__(self) -> Any:
        return os._exit, (self.EXITCODE,)


@pytest.mark.timeout(90)
def test_two_arguments_of_one_kind_are_both_received(ctx: Any, strategy: str, shared: Any) -> None:
    results = ctx.SimpleQueue()
    process = ctx.Process(target=say_sum, args=(results, shared[0], shared[:10], np.ones(50_000)))
    process.start()
    assert results.get() == 50_000
    process.join(WITHIN)
    assert nothing_is_in_flight()
    results.close()
    assert nothing_is_in_flight()


@pytest.mark.timeout(90)
def test_a_process_that_dies_between_two_arguments_leaves_none_in_flight(
    ctx: Any, start_method: str, strategy: str, shared: Any
) -> None:
    if start_method == "fork":
        pytest.skip("fork pickles no arguments")
    process = ctx.Process(target=keep_first, args=(shared[0], np.ones(50_000), Dies(), np.ones(60_000)))
    process.start()
    process.join(WITHIN)
    assert process.exitcode == Dies.EXITCODE
    assert nothing_is_in_flight()


@pytest.mark.parametrize("more", [0, 70_000])
@pytest.mark.timeout(90)
def test_a_process_that_cannot_be_started_leaves_no_argument_in_flight(
    ctx: Any, start_method: str, strategy: str, shared: Any, more: int
) -> None:
    if start_method == "fork":
        pytest.skip("fork pickles no arguments")
    process = ctx.Process(target=keep_first, args=(shared[0], np.ones(50_000), [*range(more)]))
    warm = ctx.Process(target=keep_first, args=(shared[0],))  # and the fork server runs
    warm.start()
    warm.join(WITHIN)
    limits, held, failed = resource.getrlimit(resource.RLIMIT_NOFILE), [], 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(1 if start_method == "forkserver" else 7):  # multiprocessing loses a pipe at its third
            try:
                process.start()
                break
            except OSError:
                failed += 1
            assert nothing_is_in_flight()
            if held:
                os.close(held.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
    assert failed
    if process.pid is not None:
        process.join(WITHIN)
    assert nothing_is_in_flight()


@pytest.mark.parametrize("more", [0, 70_000])
@pytest.mark.timeout(90)
def test_a_missing_interpreter_leaves_no_argument_in_flight(strategy: str, shared: Any, more: int) -> None:
    ctx, executable, before = mp.get_context("spawn"), spawn.get_executable(), leaks.processes().keys()
    spawn.set_executable("/no/such/python")
    try:
        process = ctx.Process(target=keep_first, args=(shared[0], [*range(more)]))
        process.start()
        process.join(WITHIN)
    except OSError:  # as multiprocessing reports it, which waits for no child then
        for pid in leaks.processes().keys() - before:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        spawn.set_executable(executable)
    assert nothing_is_in_flight()


@pytest.mark.timeout(90)
def test_arguments_arrive_that_the_ring_has_no_room_for(ctx: Any, strategy: str, shared: Any) -> None:
    results = ctx.SimpleQueue()
    process = ctx.Process(target=say_sum, args=(results, shared[0], np.ones(50_000), [1] * 100_000))
    process.start()
    assert results.get() == 150_000
    process.join(WITHIN)
    assert nothing_is_in_flight()
    results.close()


@pytest.mark.timeout(90)
def test_a_started_process_keeps_no_descriptor_once_it_has_its_arguments(ctx: Any, shared: Any) -> None:
    ready, go = ctx.SimpleQueue(), ctx.SimpleQueue()
    process = ctx.Process(target=say_sum, args=(ready, shared[0], go))
    process.start()
    assert ready.get() == 0
    assert process.is_alive()
    count = len(os.listdir("/proc/self/fd"))
    others = [ctx.Process(target=say_sum, args=(ready, shared[0], go)) for _ in range(3)]
    for other in others:
        other.start()
        assert ready.get() == 0
        assert other.is_alive()
    assert len(os.listdir("/proc/self/fd")) <= count + 3 * 2  # as in multiprocessing
    for _ in range(4):
        go.put(None)
    for other in (process, *others):
        other.join(WITHIN)
    ready.close()
    go.close()
