"""A failure has the stacks of a rank that crashed or was too slow, and says whether the kernel killed it."""

from __future__ import annotations

import errno
import logging
import multiprocessing as mp
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import rank_functions as ranks
from support.memory_groups import remove_group
from support.scripts import run_script

from mp_spawn import ProcessExitedException, ProcessRaisedException, run, start_processes
from mp_spawn.ranks import diagnostics
from mp_spawn.ranks.diagnostics import DUMP, Stacks, blocking_threads
from mp_spawn.ranks.process_handle import PidFd

CRASHES = """
    import faulthandler, os, signal, sys, time
    import mp_spawn

    def in_here(signum):
        os.kill(os.getpid(), signum)
        time.sleep(60)

    def work(rank, signum, how):
        if how == "own" and rank == 1:
            faulthandler.enable(open("own", "w"))
        if rank == 1:
            in_here(signum)
        time.sleep(60)

    if __name__ == "__main__":
        faulthandler.disable()  # these tests are started with it
        name, how, method = sys.argv[1:]
        try:
            mp_spawn.start_processes(
                work, (getattr(signal, name), how), 2, start_method=method, output="logs/", faulthandler=how != "off"
            )
        except mp_spawn.ProcessExitedException as error:
            failure = error.failures[0]
            print(error, error.exit_code, failure.rank, "in in_here" in failure.stack)
            print("in in_here" in "".join(error.__notes__ if failure.stack else []))
"""


@pytest.fixture
def bare(tmp_path: Path, start_method: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs whose interpreters do not begin with faulthandler."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr("support.scripts.sys.executable", unflagged(tmp_path))
    return tmp_path


def unflagged(folder: Path) -> str:
    """Return an interpreter without the option `-X faulthandler`, which ranks would inherit."""
    import sys

    path = folder / "python"
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} "$@"\n')
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"])
def test_a_crash_has_the_python_stack(bare: Path, start_method: str, name: str) -> None:
    done = run_script(bare, CRASHES, name, "on", start_method)
    number = getattr(signal, name)
    expected = f"process 1 terminated with signal {name} {-number} 1 True\nTrue\n"
    assert done.stdout == expected, done.stderr
    assert "in in_here" in (bare / "logs" / "rank-1.err").read_text()


@pytest.mark.parametrize("how", ["off", "own"])
def test_stacks_can_be_switched_off_and_a_program_keeps_its_own_faulthandler(
    bare: Path, start_method: str, how: str
) -> None:
    done = run_script(bare, CRASHES, "SIGSEGV", how, start_method)
    assert done.stdout.endswith(" 1 False\nFalse\n"), done.stderr
    assert how == "off" or "in in_here" in (bare / "own").read_text()


def test_ranks_that_are_too_slow_show_their_stacks(start_method: str, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"2 of 2 ranks still ran") as caught:
        run(ranks.sleep, nprocs=2, start_method=start_method, timeout=2, output=tmp_path)
    notes = caught.value.__notes__
    assert [re.match(r"rank (\d) \(pid \d+\):\n", note)[1] for note in notes] == ["0", "1"]  # type: ignore[index]
    assert all("rank_functions.py" in note and "in sleep" in note for note in notes), notes
    for rank in range(2):
        assert "in sleep" in (tmp_path / f"rank-{rank}.err").read_text()


def test_ranks_that_are_too_slow_show_their_stacks_whatever_their_names_are(start_method: str) -> None:
    with pytest.raises(TimeoutError, match=r"2 of 2 ranks still ran") as caught:
        run(ranks.sleep_under_a_cut_name, nprocs=2, start_method=start_method, timeout=2)
    assert all("in sleep_under_a_cut_name" in note for note in caught.value.__notes__)


def test_a_rank_that_cannot_read_the_standard_library_any_more_reports_its_error(start_method: str) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(ranks.raise_without_the_standard_library, nprocs=1, start_method=start_method)
    assert caught.value.failures[0].reason == "LookupError: beyond"


def test_ranks_that_are_too_slow_are_ended_without_the_stacks_that_cannot_be_asked_for(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = PidFd.send

    def refuse(self: PidFd, signum: int) -> bool:
        if signum == DUMP:
            raise OSError(errno.EINVAL, "as in an emulator")
        return send(self, signum)

    monkeypatch.setattr(PidFd, "send", refuse)
    with pytest.raises(TimeoutError, match=r"2 of 2 ranks still ran"):
        run(ranks.sleep, nprocs=2, start_method=start_method, timeout=1)
    assert mp.active_children() == []


def test_ctrl_c_during_the_wait_for_stacks_ends_the_ranks(start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stacks, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(ranks.sleep, nprocs=2, start_method=start_method, timeout=1)
    assert mp.active_children() == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ValueError"),
        ("\n\n  second\nthird", "ValueError: second"),
        ("one\ntwo", "ValueError: one"),
        ("\r\n", "ValueError"),
    ],
)
def test_a_reason_is_one_line_and_never_empty(start_method: str, text: str, reason: str) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        start_processes(ranks.raise_, (ValueError, text), 2, start_method=start_method)
    assert caught.value.failures[0].reason == reason
    assert "\n" not in caught.value.failures[0].describe()


def test_a_folder_of_output_holds_the_tracebacks(start_method: str, tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException):
        start_processes(ranks.raise_odd, (1,), 2, start_method=start_method, output=tmp_path)
    kept = (tmp_path / "rank-1.err").read_text()
    assert "Traceback (most recent call last)" in kept
    assert "in raise_odd" in kept
    assert (tmp_path / "rank-0.err").read_text() == ""


def test_ending_the_other_ranks_is_logged(start_method: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mp_spawn"), pytest.raises(ProcessRaisedException):
        context = start_processes(ranks.raise_odd, (1,), 2, join=False, start_method=start_method)
        assert context is not None
        pid = context.pids()[0]
        context.join()
    assert f"Terminating process {pid} via signal SIGTERM" in caplog.messages


def test_a_kill_by_the_out_of_memory_killer_is_in_the_reason(tmp_path: Path, start_method: str) -> None:
    group = Path(f"/sys/fs/cgroup/memory/mp-spawn-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError:
        pytest.skip("needs a memory control group (v1) of its own, and the right to make one")
    program = """
        import os, sys
        import mp_spawn

        def grow(rank):
            if rank == 1:
                held = [bytearray(os.urandom(1 << 20)) * 16 for _ in range(100)]

        if __name__ == "__main__":
            open(sys.argv[1], "w").write(str(os.getpid()))
            try:
                mp_spawn.start_processes(grow, nprocs=2, start_method=sys.argv[2])
            except mp_spawn.ProcessExitedException as error:
                print(error, "|", error.failures[0].reason)
    """
    try:
        done = run_script(tmp_path, program, str(group / "cgroup.procs"), start_method)
        assert done.stdout.startswith("process 1 terminated with signal SIGKILL | signal SIGKILL, sent by the"), done
        assert f"{group}, whose limit is 200 MiB" in done.stdout
    finally:
        remove_group(group)


def test_another_sigkill_is_not_reported_as_out_of_memory(start_method: str) -> None:
    with pytest.raises(ProcessExitedException) as caught:
        start_processes(ranks.kill_self, (1, signal.SIGKILL), 2, start_method=start_method)
    assert caught.value.failures[0].reason == "signal SIGKILL"


def test_stacks_are_read_once_the_rank_has_written_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Stacks()
    os.write(stacks.fd, b"a part")

    def ends_now(pid: int) -> frozenset[str]:
        os.write(stacks.fd, b" and the rest")
        return frozenset()

    monkeypatch.setattr(diagnostics, "blocking_threads", ends_now)
    assert stacks.wait(os.getpid(), 10) == "a part and the rest"
    stacks.close()


def test_a_thread_that_never_takes_signals_is_not_waited_for() -> None:
    stacks, blocks, over = Stacks(), threading.Event(), threading.Event()

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [DUMP])
        blocks.set()
        over.wait()

    thread = threading.Thread(target=block)
    thread.start()
    blocks.wait()
    blocking = blocking_threads(os.getpid())
    assert str(thread.native_id) in blocking
    os.write(stacks.fd, b"all")
    assert stacks.wait(os.getpid(), 1000, blocking) == "all"  # or the test is ended
    over.set()
    thread.join()
    stacks.close()
