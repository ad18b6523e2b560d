"""Ranks end with the process that started them, not with its threads, and `join` and `terminate` end them."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import rank_functions as ranks
from descendants import Watched, printed_pids, program
from support.waiting import until

import mp_all as mp
from mp_core.children import death_pipe, one_reader
from mp_spawn import ProcessContext, ProcessExitedException, start_processes
from mp_spawn.jobs import context
from mp_spawn.ranks import process_handle

Pipe = tuple[Connection, Connection]


def started(fn: Any, *args: Any, nprocs: int = 2, **options: Any) -> ProcessContext:
    """
    Start ranks and return their context.
    """
    context = start_processes(fn, args, nprocs, join=False, **options)
    assert context is not None
    return context


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Callable[[list[int]], Watched]:
    def watch(pids: list[int]) -> Watched:
        watched = Watched(pids)
        request.addfinalizer(watched.close)
        return watched

    return watch


GRANDCHILDREN = """
    import sys, time
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        mp_spawn.start_processes(rank_functions.start_descendants, (1, sys.argv[1]), 2, start_method=sys.argv[1])
"""


def test_a_killed_parent_leaves_no_descendant(
    tmp_path: Path, start_method: str, watched: Callable[[list[int]], Watched]
) -> None:
    with program(tmp_path, GRANDCHILDREN, start_method) as process:
        descendants = watched(printed_pids(process, 2 + 2 * 2))
        assert len(descendants.alive()) == 6
        process.kill()
        assert descendants.wait(2) == []


DEEP_IN_C = """
    import sys
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        mp_spawn.start_processes(rank_functions.hold_the_interpreter, nprocs=2, start_method=sys.argv[1])
"""


def test_a_rank_that_never_releases_the_interpreter_ends_with_its_parent(
    tmp_path: Path, start_method: str, watched: Callable[[list[int]], Watched]
) -> None:
    with program(tmp_path, DEEP_IN_C, start_method) as process:
        pair = watched(printed_pids(process, 2))
        process.kill()
        assert pair.wait(2) == []


BYSTANDER = """
    import os, sys, time
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        context = mp_spawn.start_processes(
            rank_functions.print_pid, nprocs=2, join=False, start_method=sys.argv[1]
        )
        if os.fork() == 0:
            os.write(1, b"%d\\n" % os.getpid())  # at once; print() may write the end of the line later
            time.sleep(300)
        context.join()
"""


def test_another_child_of_the_parent_does_not_keep_ranks_alive(
    tmp_path: Path, start_method: str, watched: Callable[[list[int]], Watched]
) -> None:
    with program(tmp_path, BYSTANDER, start_method) as process:
        trio = watched(printed_pids(process, 3))
        process.kill()
        assert len(trio.wait(2, but=1)) == 1
        trio.close()


NEVER_JOINS = """
    import sys
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        daemon = sys.argv[2] == "daemon"
        seconds = 60.0 if daemon else 0.5
        context = mp_spawn.start_processes(
            rank_functions.wait_and_print, (seconds,), 1, False, daemon, start_method=sys.argv[1]
        )
"""


@pytest.mark.parametrize("kind", ["daemon", "patient"])
def test_a_program_that_does_not_join_ends_as_with_multiprocessing(
    tmp_path: Path, start_method: str, kind: str
) -> None:
    with program(tmp_path, NEVER_JOINS, start_method, kind) as process:
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out.splitlines()[-1:] == ([] if kind == "daemon" else ["done"])


def test_ranks_outlive_the_thread_that_started_them(start_method: str, pipe: Pipe, back: Pipe) -> None:
    contexts: list[ProcessContext] = []

    def start() -> None:
        contexts.append(started(ranks.tell_and_wait_for_byte, pipe[1], back[0], nprocs=3, start_method=start_method))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(60)
    for _ in range(3):
        pipe[0].recv()
    assert contexts[0].join(timeout=0.2) is False
    os.write(back[1].fileno(), b"123")
    assert contexts[0].join(timeout=60) is True


def test_ranks_outlive_a_context_that_is_dropped(start_method: str, pipe: Pipe, back: Pipe) -> None:
    others = mp.active_children()
    started(ranks.tell_and_wait_for_byte, pipe[1], back[0], start_method=start_method)
    for _ in range(2):
        pipe[0].recv()
    gc.collect()
    os.write(back[1].fileno(), b"12")
    # They send goodbye, so they have not been killed.
    assert [pipe[0].recv(), pipe[0].recv()] == ["goodbye", "goodbye"]
    for process in set(mp.active_children()).difference(others):
        process.join(30)
    gc.collect()


def test_a_rank_whose_death_pipe_is_closed_already_ends_at_once() -> None:
    read, write = os.pipe()
    os.close(write)
    child = mp.get_context("fork").Process(target=hold_and_sleep, args=(read,))
    child.start()
    os.close(read)
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    child.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_thread_watches_the_death_pipe_where_fcntl_has_no_setsig(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fcntl, "F_SETSIG")
    line = death_pipe.DeathPipe()
    read = os.dup(line.fd)
    if when == "before":
        line.close()
    child = mp.get_context("fork").Process(target=hold_and_sleep, args=(read,))
    child.start()
    os.close(read)
    line.close()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    child.close()


def hold_and_sleep(fd: int) -> None:
    death_pipe.arm(fd)
    time.sleep(ranks.LONG)


def test_join_is_bounded_even_if_a_rank_ignores_sigterm(
    start_method: str, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(context, "TERM_TO_KILL", 0.2)
    job = started(ranks.ignore_sigterm_or_fail, *pipe, start_method=start_method)
    begin = time.monotonic()
    with pytest.raises(Exception, match="Process 1 terminated"):
        job.join(timeout=60, grace_period=0.1)
    assert time.monotonic() - begin < 30
    assert job.processes[0].exitcode == -signal.SIGKILL
    pid = job.processes[0].pid
    assert caplog.messages == [f"Terminating process {pid} via signal {name}" for name in ("SIGTERM", "SIGKILL")]


def test_ranks_may_end_by_themselves_within_the_grace_period(start_method: str, pipe: Pipe) -> None:
    job = started(ranks.follow_or_fail, *pipe, start_method=start_method)
    with pytest.raises(Exception, match="Process 1 terminated"):
        job.join(timeout=60, grace_period=30)
    assert job.processes[0].exitcode == 0


def test_an_exception_in_a_with_block_ends_the_ranks(start_method: str) -> None:
    job = started(ranks.sleep, start_method=start_method)
    with pytest.raises(ZeroDivisionError), job:
        raise ZeroDivisionError
    assert [process.exitcode for process in job.processes] == [-signal.SIGTERM] * 2


def test_a_stopped_rank_is_ended_by_sigterm(start_method: str) -> None:
    job = started(ranks.sleep, start_method=start_method)
    with pytest.raises(ZeroDivisionError), job:
        for pid in job.pids():
            os.kill(pid, signal.SIGSTOP)
        raise ZeroDivisionError
    assert [process.exitcode for process in job.processes] == [-signal.SIGTERM] * 2


def test_the_end_of_a_with_block_waits_and_raises(start_method: str) -> None:
    with started(ranks.nothing, start_method=start_method) as job:
        pass
    assert [process.exitcode for process in job.processes] == [0, 0]
    with (
        pytest.raises(ProcessExitedException, match="exit code 5"),
        started(ranks.leave_hard, 5, start_method=start_method),
    ):
        pass


def test_terminated_ranks_have_failed(start_method: str) -> None:
    job = started(ranks.sleep, start_method=start_method)
    job.terminate()
    with pytest.raises(ProcessExitedException, match="terminated with signal SIGTERM"):
        job.join()


def test_terminate_works_while_another_thread_joins(start_method: str) -> None:
    job = started(ranks.sleep, start_method=start_method)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            job.join()
        except ProcessExitedException as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    job.terminate()
    thread.join(30)
    assert not thread.is_alive()
    assert str(caught[0]).endswith("terminated with signal SIGTERM")


def test_a_signal_in_terminate_kills_the_ranks_while_another_thread_joins(start_method: str, pipe: Pipe) -> None:
    job = started(ranks.ignore_sigterm, pipe[1], start_method=start_method)
    for _ in range(2):
        pipe[0].recv()

    def wait() -> None:
        with pytest.raises(ProcessExitedException):
            job.join()

    def is_joining() -> bool:
        is_free = job._lock.acquire(blocking=False)
        if is_free:
            job._lock.release()
        return not is_free

    thread = threading.Thread(target=wait)
    thread.start()
    assert until(is_joining, 30)

    def leave(signum: int, frame: object) -> None:
        raise TimeoutError("a second Ctrl-C")

    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError):
            job.terminate()
    finally:
        signal.signal(signal.SIGALRM, before)
    thread.join(30)
    assert not thread.is_alive()
    assert [process.exitcode for process in job.processes] == [-signal.SIGKILL] * 2


def test_ranks_end_with_a_killed_zygote_and_that_is_a_failure(
    pipe: Pipe, watched: Callable[[list[int]], Watched]
) -> None:
    job = started(ranks.tell_parent_and_sleep, pipe[1], start_method="spawn")
    received = [pipe[0].recv() for _ in range(2)]
    zygote = {parent for _, parent in received}
    pair = watched([pid for pid, _ in received])
    os.kill(zygote.pop(), signal.SIGKILL)
    assert pair.wait(2) == []
    with pytest.raises(ProcessExitedException, match="signal SIGKILL"):
        job.join(timeout=60)


def test_the_zygote_is_reaped_although_a_handler_has_left_the_lock_of_subprocess_locked() -> None:
    job = started(ranks.nothing, start_method="spawn")
    zygote = job.processes[0]._popen._zygote
    assert zygote._process._waitpid_lock.acquire(timeout=30)
    assert job.join(timeout=60)
    with pytest.raises(ChildProcessError):
        os.waitpid(zygote.pid, os.WNOHANG)


def test_a_daemon_that_a_rank_leaves_behind_does_not_delay_join(
    start_method: str, watched: Callable[[list[int]], Watched]
) -> None:
    job = started(ranks.leave_a_daemon_behind, nprocs=1, start_method=start_method, output="capture")
    assert job.join(timeout=60)
    assert watched([int(job.captured[0].stdout)]).alive()


CTRL_C = """
    import sys
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        mp_spawn.start_processes(rank_functions.print_pid, nprocs=3, start_method=sys.argv[1])
"""


def test_ctrl_c_ends_all_ranks_with_one_traceback(
    tmp_path: Path, start_method: str, watched: Callable[[list[int]], Watched]
) -> None:
    path = tmp_path / "interrupted.py"
    path.write_text(textwrap.dedent(CTRL_C))
    ours, theirs = os.openpty()
    with program(tmp_path, ON_A_TERMINAL, str(path), start_method, os.ttyname(theirs)) as process:
        with open(ours, "r+b", buffering=0) as terminal:
            said = b""
            while said.count(b"\n") < 3:
                said += terminal.read(4096)
            os.close(theirs)  # from here on, the terminal exists as long as the program runs
            trio = watched([int(line) for line in said.split()])
            terminal.write(b"\x03")
            try:
                while data := terminal.read(4096):
                    said += data
            except OSError:
                pass  # no process has the terminal open any more
        assert process.wait(30) == 130
        assert trio.wait(2) == []
    text = said.decode()
    assert text.count("Traceback (most recent call last)") == 1, text
    assert "KeyboardInterrupt" in text.splitlines()[-1], text


# Runs a program with a terminal of its own, and exits with its exit code.
ON_A_TERMINAL = """
    import os, signal, subprocess, sys

    _, program, start_method, name = sys.argv
    os.dup2(os.open(name, os.O_RDWR), 0)  # a session leader's first terminal becomes its controlling one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    done = subprocess.run(
        [sys.executable, program, start_method],
        stdout=0,
        stderr=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
"""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, even if these tests were started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_kills_the_ranks_at_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, interruptible: None
) -> None:
    job = started(ranks.ignore_sigterm, pipe[1], start_method="fork")
    for _ in range(2):
        pipe[0].recv()
    waiting = threading.Event()
    original = job._supervisor.pass_time

    def pass_time(seconds: float) -> None:
        waiting.set()
        original(seconds)

    def interrupt() -> None:
        assert waiting.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(job._supervisor, "pass_time", pass_time)
    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        job.terminate(grace_period=60)
    thread.join()
    assert time.monotonic() - begin < 50
    assert [process.exitcode for process in job.processes] == [-signal.SIGKILL] * 2


def test_terminate_and_kill_of_a_process_object_work(start_method: str) -> None:
    job = started(ranks.sleep, start_method=start_method)
    job.processes[0].terminate()
    job.processes[1].kill()
    for process in job.processes:
        process.join(30)
    assert [process.exitcode for process in job.processes] == [-signal.SIGTERM, -signal.SIGKILL]
    with pytest.raises(ProcessExitedException):
        job.join()


def test_a_rank_that_active_children_has_reaped_is_reported(start_method: str) -> None:
    job = started(ranks.leave_hard, 9, nprocs=3, start_method=start_method)
    deadline = time.monotonic() + 30
    while any(process in mp.active_children() for process in job.processes):
        assert time.monotonic() < deadline
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 9"):
        job.join(timeout=30)


@pytest.mark.parametrize("start_method", ["forkserver"])
def test_an_exit_code_that_a_thread_has_read_without_the_lock_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, start_method: str
) -> None:
    """It was in the `poll` of multiprocessing, which tells no one that it has read, when the reader came."""
    child = multiprocessing.get_context(start_method).Process(target=sys.exit, args=(3,))
    child.start()
    popen: Any = child._popen  # type: ignore[attr-defined]
    code = os.read(popen.sentinel, 8)
    monkeypatch.setattr(one_reader, "STOLEN_S", 60.0)
    thread = threading.Timer(0.1, setattr, args=(popen, "returncode", int.from_bytes(code, sys.byteorder)))
    thread.start()
    process_handle.lock(child, process_handle.PidFd(-1))
    child.join()
    assert child.exitcode == 3
    thread.join()
    popen.returncode = 255  # what such a thread stores that comes second
    assert child.exitcode == 3
    child.close()


def test_processes_of_the_program_have_their_exit_codes_while_other_threads_list_children(ctx: Any) -> None:
    stop = threading.Event()

    def list_children() -> None:
        while not stop.is_set():
            multiprocessing.active_children()

    threads = [threading.Thread(target=list_children)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10 if ctx.get_start_method() == "fork" else 2):
            end = ctx.Event()
            processes = [ctx.Process(target=end.wait) for _ in range(3)]
            for process in processes:
                process.start()
            job = ProcessContext(processes, [])
            end.set()
            assert job.join()
            assert [process.exitcode for process in processes] == [0, 0, 0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
