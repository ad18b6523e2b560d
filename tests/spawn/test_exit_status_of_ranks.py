"""The exit status of a rank is read once, and every thread gets the same."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import rank_functions as ranks
from support.scripts import run_python, run_script, succeeded

import mp_all as mp
from mp_spawn import ProcessExitedException, start_processes
from mp_spawn.jobs import zygote


@pytest.fixture
def hasty() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("code", [0, 7])
def test_threads_that_poll_at_the_same_time_get_the_same_exit_code(start_method: str, code: int, hasty: None) -> None:
    for _ in range(5):
        context = start_processes(ranks.leave_hard, (code,), 2, join=False, start_method=start_method)
        assert context is not None
        process = context.processes[1]
        # By select and not by wait(), which the launcher may use, too.
        select.select([process.sentinel], [], [], 60)
        ready = threading.Barrier(8)
        codes: list[int | None] = []
        threads = [threading.Thread(target=poll, args=(process, ready, codes)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert codes == [code] * 8
        if code:
            with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 7"):
                context.join(timeout=60)
        else:
            assert context.join(timeout=60)


def poll(process: BaseProcess, ready: threading.Barrier, codes: list[int | None]) -> None:
    ready.wait(60)
    while (code := process.exitcode) is None:
        mp.active_children()
    codes.append(code)


def test_two_threads_between_waiting_and_reading_get_the_same_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both threads know that the rank has ended before one of them reads the status."""
    context = start_processes(ranks.leave_hard, (7,), 2, join=False, start_method="spawn")
    assert context is not None
    both = threading.Barrier(2)

    def wait_for_both(objects: list[int], timeout: float | None = None) -> list[int]:
        ready = wait(objects, timeout)
        if threading.current_thread().name == "asks":
            both.wait(60)
        return ready  # type: ignore[return-value]

    monkeypatch.setattr(zygote, "wait", wait_for_both)
    process = context.processes[1]
    wait([process.sentinel], 60)
    codes: list[int | None] = []

    def ask() -> None:
        process.join(60)
        codes.append(process.exitcode)

    threads = [threading.Thread(target=ask, name="asks") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    both.abort()
    monkeypatch.undo()
    assert codes == [7, 7]
    with pytest.raises(ProcessExitedException):
        context.join(timeout=60)


def test_a_daemon_that_a_rank_leaves_behind_does_not_delay_join_of_its_process(start_method: str) -> None:
    context = start_processes(ranks.leave_a_daemon_behind, (), join=False, start_method=start_method, output="capture")
    assert context is not None
    context.processes[0].join()
    assert context.processes[0].exitcode == 0
    assert context.join(timeout=60)
    os.kill(int(context.captured[0].stdout), signal.SIGKILL)


REAPER = """
    import os, sys, threading
    import mp_spawn

    def leave(rank, code):
        os.read(told, 1)  # until all ranks have been started, which looks for ended ones
        if rank == 1 and code != 0:
            os._exit(code)

    def reap():
        try:
            while True:
                os.wait()
        except ChildProcessError:
            pass

    if __name__ == "__main__":
        told, tell = os.pipe()
        context = mp_spawn.start_processes(leave, (int(sys.argv[1]),), 2, False, start_method="fork")
        thread = threading.Thread(target=reap)
        thread.start()
        os.write(tell, b"12")
        thread.join()
        try:
            print(context.join(timeout=60))
        except mp_spawn.ProcessExitedException as error:
            print(error.failures[0].rank, error.failures[0].reason)
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [("5", "1 exit code unknown, which another call of wait() took\n"), ("0", "True\n")],
)
def test_an_exit_code_read_by_the_program_itself_is_reported_as_unknown(
    code: str, printed: str, tmp_path: Path
) -> None:
    assert succeeded(run_script(tmp_path, REAPER, code)) == printed


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])  # under fork the ranks are its own children
def test_a_program_that_ignores_the_ends_of_children_learns_how_its_ranks_end(
    tmp_path: Path, start_method: str
) -> None:
    program = f"""
        import signal, sys
        import mp_spawn

        def end(rank):
            sys.exit(3)

        if __name__ == "__main__":
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            print(mp_spawn.run(divmod, (2,), 2, start_method={start_method!r}))
            try:
                mp_spawn.run(end, start_method={start_method!r})
            except mp_spawn.ProcessExitedException as error:
                print(error.error_index, error.exit_code)
    """
    assert succeeded(run_script(tmp_path, program)) == "[(0, 0), (0, 1)]\n0 3\n"


def test_ranks_of_a_command_that_is_started_without_news_of_children_end_as_they_do(tmp_path: Path) -> None:
    rank = "import signal, sys; sys.exit(3 + (signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN))"
    command = [sys.executable, "-m", "mp_spawn", "-n", "2", "-c", rank]
    start = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({command[0]!r}, {command!r})"
    assert run_python("-c", start, cwd=tmp_path).returncode == 4
