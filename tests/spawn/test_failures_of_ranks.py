"""Each failure of a rank has the right rank, pid and reason."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import textwrap
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_functions as ranks
from support.scripts import run_script

import mp_all as mp
from mp_spawn import ProcessException, ProcessExitedException, ProcessRaisedException, run, start_processes

Pipe = tuple[Connection, Connection]


def failing(
    fn: Any,
    *args: Any,
    start_method: str = "spawn",
    nprocs: int = 2,
    meanwhile: Callable[[], Any] = int,
    grace_period: float | None = None,
    **options: Any,
) -> ProcessException:
    """
    Return the exception of a job that fails; call *meanwhile* when it has started.
    """
    context = start_processes(fn, args, nprocs, join=False, start_method=start_method, **options)
    assert context is not None
    pids = context.pids()
    meanwhile()
    with pytest.raises(ProcessException) as caught:
        context.join(timeout=60, grace_period=grace_period)
    error = caught.value
    assert error.error_pid == error.pid == pids[error.error_index]
    assert not any(process.is_alive() for process in context.processes)
    with pytest.raises(ProcessException) as again:
        context.join()
    assert again.value is error
    return error


def test_the_exception_itself_is_the_cause(start_method: str) -> None:
    error = failing(ranks.raise_odd, 1, start_method=start_method)
    assert type(error) is ProcessRaisedException
    assert error.error_index == 1
    assert type(error.__cause__) is ranks.Odd
    assert (error.__cause__.args, error.__cause__.number) == (("boom", 42), 42)
    assert error.failures[0].exception is error.__cause__
    assert error.failures[0].reason == "rank_functions.Odd: ('boom', 42)"


@pytest.mark.parametrize("argument", ["private", "shared", "small"])
def test_an_exception_with_an_array_is_the_cause_with_its_array(start_method: str, argument: str) -> None:
    array = mp.shared.ones(5000) if argument == "shared" else np.ones(5000 if argument == "private" else 5)
    error = failing(ranks.raise_, ValueError, "odd", array, start_method=start_method)
    assert isinstance(error.__cause__, ValueError)
    assert error.failures[0].exception is error.__cause__
    np.testing.assert_equal(error.__cause__.args[1], array)


@pytest.mark.parametrize("kind", [ranks.CannotBePickled, ranks.CannotBeUnpickled])
def test_an_exception_that_cannot_be_sent_leaves_its_text(start_method: str, kind: type[Exception]) -> None:
    arguments = () if kind is ranks.CannotBePickled else ("needs two", 2)
    error = failing(ranks.raise_, kind, *arguments, start_method=start_method)
    assert type(error) is ProcessRaisedException
    assert error.error_index == 1
    assert error.__cause__ is None
    assert f"{kind.__name__}: " in str(error)


@pytest.mark.parametrize("code", [3, 255])
def test_sys_exit_with_a_number_is_that_exit_code(start_method: str, code: int) -> None:
    error = failing(ranks.leave, code, start_method=start_method)
    assert isinstance(error, ProcessExitedException)
    assert (error.error_index, error.exit_code) == (1, code)


def test_sys_exit_with_a_text_is_exit_code_1_and_the_text(start_method: str) -> None:
    error = failing(ranks.leave, "no more disk", start_method=start_method, output="capture")
    assert isinstance(error, ProcessExitedException)
    assert str(error) == "process 1 terminated with exit code 1"
    assert error.failures[0].reason == "exit code 1, sys.exit('no more disk')"
    assert error.failures[0].stderr == "no more disk\n"


def test_an_exit_code_that_is_zero_modulo_256_is_a_failure(start_method: str) -> None:
    error = failing(ranks.leave, 256, start_method=start_method)
    assert error.failures[0].reason == "exit code 1, sys.exit(256)"


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_with_zero_is_success(start_method: str, code: int | None) -> None:
    start_processes(ranks.leave, (code,), 2, start_method=start_method)


def test_os_exit_with_a_number_is_that_exit_code(start_method: str) -> None:
    error = failing(ranks.leave_hard, 7, start_method=start_method)
    assert isinstance(error, ProcessExitedException)
    assert error.exit_code == 7


@pytest.mark.parametrize("tells", [False, True])
def test_the_exception_of_a_block_has_a_note_of_the_rank_that_has_failed(start_method: str, tells: bool) -> None:
    job = start_processes(ranks.raise_, (ValueError, "boom"), 2, False, start_method=start_method)
    assert job is not None
    with pytest.raises(KeyError) as caught, job:
        wait([job.processes[1].sentinel])
        if tells:
            with pytest.raises(ProcessRaisedException):
                job.join()
        raise KeyError("what no rank has sent")
    notes = getattr(caught.value, "__notes__", [])
    if tells:
        assert notes == []
    else:
        assert notes[0].startswith("A rank has failed as well: -- Process 1 terminated with"), notes


def test_a_block_ends_by_an_exception_that_is_its_own_cause() -> None:
    error = KeyError("what no rank has sent")
    with pytest.raises(KeyError), start_processes(ranks.raise_, (ValueError,), 2, join=False):
        raise error from error


def test_exiting_without_a_result_is_a_failure_of_run(start_method: str) -> None:
    with pytest.raises(ProcessExitedException) as caught:
        run(ranks.leave_hard, (0,), 2, start_method=start_method)
    assert str(caught.value) == "process 1 terminated with exit code 0"
    assert caught.value.failures[0].reason == "exit code 0, before it returned a result"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_is_named(start_method: str, signum: signal.Signals) -> None:
    error = failing(ranks.kill_self, 1, signum, start_method=start_method)
    assert isinstance(error, ProcessExitedException)
    assert (error.error_index, error.exit_code, error.signal_name) == (1, -signum, signum.name)


def test_a_signal_without_a_name_is_a_number(start_method: str) -> None:
    error = failing(ranks.kill_self, 1, 42, start_method=start_method)
    assert str(error) == "process 1 terminated with signal 42"


def test_a_rank_that_is_interrupted_has_failed(start_method: str) -> None:
    error = failing(ranks.interrupt_self, start_method=start_method, output="capture")
    assert isinstance(error, ProcessExitedException)
    assert (error.error_index, error.signal_name) == (1, "SIGINT")
    assert error.failures[0].stderr == ""


def test_an_exception_while_arguments_are_unpickled_is_reported(start_method: str) -> None:
    if start_method == "fork":
        pytest.skip("needs a start method that pickles; fork does not")
    error = failing(ranks.nothing, ranks.RaisesWhenUnpickled(), start_method=start_method, nprocs=1)
    assert type(error) is ProcessRaisedException
    assert type(error.__cause__) is ValueError
    assert "while unpickled" in str(error)


def test_a_main_module_that_fails_in_a_rank_is_a_failure_with_its_traceback(start_method: str, tmp_path: Path) -> None:
    if start_method == "fork":
        pytest.skip("needs a start method that imports the main module; fork does not")
    program = """
        import sys
        import mp_spawn

        if __name__ == "__mp_main__":
            raise LookupError("not here")

        def work(rank):
            pass

        if __name__ == "__main__":
            try:
                mp_spawn.start_processes(work, nprocs=2, start_method=sys.argv[1])
            except mp_spawn.ProcessException as error:
                printed = [type(error).__name__, type(error.__cause__).__name__, error.failures[0].pid == error.pid]
                print(*printed, "not here" in str(error), error.exit_code if hasattr(error, "exit_code") else "-")
    """
    done = run_script(tmp_path, program, start_method)
    assert done.returncode == 0, done.stderr
    if start_method == "spawn":
        assert done.stdout == "ProcessRaisedException LookupError True True -\n", done.stderr
    else:
        # multiprocessing imports it before mp-spawn can report, and prints the traceback.
        assert done.stdout == "ProcessExitedException NoneType True False 1\n", done.stderr
        assert "LookupError: not here" in done.stderr


def test_the_exception_has_all_failures_in_order_of_time(start_method: str, pipe: Pipe, back: Pipe) -> None:
    def go() -> None:
        for _ in range(2):
            pipe[0].recv()
        os.write(back[1].fileno(), b"go")

    # Longer than the default: on a busy machine the second rank needs its time to fail.
    error = failing(ranks.fail_together, pipe[1], back[0], start_method=start_method, meanwhile=go, grace_period=30)
    assert sorted(failure.rank for failure in error.failures) == [0, 1]
    assert error.failures[0].rank == error.error_index
    assert error.failures[0].at <= error.failures[1].at
    other = error.failures[1]
    assert any(note.startswith(other.describe()) for note in error.__notes__)


def test_a_rank_ended_after_the_failure_of_another_has_not_failed(start_method: str) -> None:
    error = failing(ranks.raise_odd, 1, start_method=start_method, nprocs=3)
    assert [failure.rank for failure in error.failures] == [1]


def test_a_report_of_any_size_is_received(start_method: str) -> None:
    error = failing(ranks.raise_, ValueError, "x" * 3_000_000, start_method=start_method)
    assert error.__cause__ is not None
    assert error.__cause__.args == ("x" * 3_000_000,)


def test_large_arguments_do_not_block_the_start(start_method: str) -> None:
    big = b"y" * 10_000_000
    assert run(ranks.size, (big,), 2, start_method=start_method) == [10_000_000, 10_000_000]


def test_a_death_comes_before_the_failures_that_it_causes(start_method: str, pipe: Pipe, back: Pipe) -> None:
    read, write = mp.Pipe(duplex=False)

    def go() -> None:
        assert pipe[0].recv() == "ready"
        write.close()  # now only rank 0 holds the pipe on which rank 1 waits
        back[1].send("die")

    ends = read, write, back[0], pipe[1]
    error = failing(ranks.die_or_wait_for_the_dead, *ends, start_method=start_method, meanwhile=go, grace_period=30)
    read.close()
    assert [failure.rank for failure in error.failures] == [0, 1]
    assert error.failures[0].signal_name == "SIGKILL"
    assert error.failures[1].reason == "EOFError"


def test_a_forked_child_that_leaves_fn_reports_nothing(start_method: str) -> None:
    assert run(ranks.fork_and_return, nprocs=2, start_method=start_method, output="capture") == [0, 1]


def test_the_incomplete_report_of_a_killed_rank_is_ignored(start_method: str) -> None:
    context = start_processes(ranks.raise_, (ValueError, "x" * 3_000_000), 2, join=False, start_method=start_method)
    assert context is not None
    # The report has begun, and cannot end until it is read.
    assert select.select([context._ranks[1].inbox_fd], [], [], 60)[0]
    os.kill(context.pids()[1], signal.SIGKILL)
    with pytest.raises(ProcessExitedException) as caught:
        context.join(timeout=60)
    assert (caught.value.error_index, caught.value.signal_name) == (1, "SIGKILL")
    assert caught.value.__cause__ is None


def test_a_rank_that_is_killed_right_after_its_start_has_failed(start_method: str) -> None:
    error = failing_when_killed(start_method)
    assert (error.error_index, error.failures[0].reason) == (1, "signal SIGKILL")


def failing_when_killed(start_method: str) -> ProcessException:
    context = start_processes(ranks.sleep, (), 2, join=False, start_method=start_method)
    assert context is not None
    os.kill(context.pids()[1], signal.SIGKILL)
    with pytest.raises(ProcessExitedException) as caught:
        context.join(timeout=60)
    assert caught.value.error_pid == context.pids()[1]
    return caught.value


def test_a_rank_that_exits_with_an_error_after_it_returned_has_failed(start_method: str) -> None:
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 5"):
        run(ranks.return_and_die, (5,), 2, start_method=start_method)


PRINTS_OPENED_FILES = """
    import multiprocessing, os, sys, tempfile

    tempfile.gettempdir()  # tries a file; the fork server has its socket in there
    multiprocessing.get_all_start_methods()  # so does this, from CPython 3.14 on

    def log(event, args):
        if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            os.write(2, f"written to: {args[0]}\\n".encode())
        elif event in ("tempfile.mkstemp", "tempfile.mkdtemp") and "forkserver" not in sys.argv:
            os.write(2, f"made: {args[0]}\\n".encode())

    sys.addaudithook(log)
"""

FAILS = """
    import sys
    import mp_spawn, rank_functions

    if __name__ == "__main__":
        try:
            mp_spawn.run(rank_functions.raise_, (ValueError, "boom"), 2, start_method=sys.argv[1], grace_period=30)
        except mp_spawn.ProcessRaisedException as error:
            print(repr(error.__cause__))
"""


def test_a_report_is_written_to_no_file(start_method: str, tmp_path: Path) -> None:
    """An audit hook sees every file that parent and ranks open for writing."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(PRINTS_OPENED_FILES))
    path = os.pathsep.join([str(tmp_path), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = run_script(tmp_path, FAILS, start_method, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout == "ValueError('boom')\n", done.stderr
    # A pipe is opened again by that path; it is no file.
    allowed = re.compile(f"written to: ({os.devnull}|/proc/self/fd/[0-9]+)")
    opened = [line for line in done.stderr.splitlines() if not allowed.fullmatch(line)]
    assert opened == []


def test_a_keyboard_interrupt_of_one_rank_ends_the_others_before_its_children_have_ended(
    start_method: str, tmp_path: Path
) -> None:
    error = failing(ranks.interrupt_self_and_end_after_the_other, tmp_path, start_method=start_method)
    assert (error.error_index, error.failures[0].signal_name) == (1, "SIGINT")


@pytest.mark.parametrize("where", ["text", "pickle", "unpickler"])
def test_an_exception_that_would_leave_the_process_is_a_failure_like_any_other(start_method: str, where: str) -> None:
    error = failing(ranks.raise_one_that_leaves, where, nprocs=1, start_method=start_method)
    assert isinstance(error, ProcessRaisedException)
    assert error.failures[0].reason.startswith("rank_functions.Leaves: ")


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_rank_without_a_descriptor_left_tells_its_exception_and_where_it_came_from(
    start_method: str, nprocs: int
) -> None:
    with pytest.raises(ProcessRaisedException) as found:
        run(leak, nprocs=nprocs, start_method=start_method)
    assert isinstance(found.value.__cause__, OSError) and found.value.__cause__.errno == errno.EMFILE
    assert ", in leak\n" in str(found.value)


def leak(rank: int) -> None:
    import resource

    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
