"""Names, signatures, texts and pickles are those of torch."""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import warnings
from multiprocessing.connection import Connection
from typing import Any

import pytest
import rank_functions as ranks

import mp_spawn
from mp_spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    run,
    spawn,
    start_processes,
)

TORCH = ["fn", "args", "nprocs", "join", "daemon", "start_method"]
Pipe = tuple[Connection, Connection]


@pytest.mark.parametrize("launcher", [spawn, start_processes])
def test_the_launchers_have_torchs_parameters_in_torchs_order(launcher: Any) -> None:
    parameters = inspect.signature(launcher).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == TORCH
    assert [p.default for p in positional[1:]] == [(), 1, True, False, "spawn"]


@pytest.mark.parametrize(
    ("exception", "names"),
    [
        (ProcessException, ["msg", "error_index", "error_pid"]),
        (ProcessRaisedException, ["msg", "error_index", "error_pid"]),
        (ProcessExitedException, ["msg", "error_index", "error_pid", "exit_code", "signal_name"]),
    ],
)
def test_the_exceptions_have_torchs_parameters(exception: type[ProcessException], names: list[str]) -> None:
    assert list(inspect.signature(exception).parameters) == names


def test_exceptions_survive_pickling_with_failures_and_notes() -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(ranks.raise_odd, (1,), 2, start_method="fork")
    caught.value.add_note("a note")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is ProcessRaisedException
    assert (str(copy), copy.error_index, copy.error_pid) == (str(caught.value), 1, caught.value.error_pid)
    assert copy.__notes__ == ["a note"]
    assert [failure.describe() for failure in copy.failures] == [caught.value.failures[0].describe()]

    left = pickle.loads(pickle.dumps(ProcessExitedException("text", 1, 2, -9, "SIGKILL")))
    assert (left.msg, left.error_index, left.pid, left.exit_code, left.signal_name) == (
        "text",
        1,
        2,
        -9,
        "SIGKILL",
    )


def test_the_text_of_a_raised_exception_is_torchs(start_method: str) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        start_processes(ranks.raise_odd, (1,), 2, start_method=start_method)
    head, trace = str(caught.value).split("error:\n", 1)
    assert head == "\n\n-- Process 1 terminated with the following "
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("rank_functions.Odd: ('boom', 42)\n")


def test_the_text_of_a_signal_is_torchs(start_method: str) -> None:
    with pytest.raises(ProcessExitedException) as caught:
        start_processes(ranks.kill_self, (1, signal.SIGKILL), 2, start_method=start_method)
    assert str(caught.value) == "process 1 terminated with signal SIGKILL"
    assert (caught.value.exit_code, caught.value.signal_name) == (-9, "SIGKILL")


def test_the_text_of_an_exit_code_is_torchs(start_method: str) -> None:
    with pytest.raises(ProcessExitedException) as caught:
        start_processes(ranks.leave_hard, (3,), 2, start_method=start_method)
    assert str(caught.value) == "process 1 terminated with exit code 3"
    assert (caught.value.exit_code, caught.value.signal_name) == (3, None)


def test_spawn_returns_a_context_only_with_join_false(pipe: Pipe) -> None:
    read, write = pipe
    assert spawn(ranks.tell, (write, "hello"), 2) is None
    said = sorted([read.recv(), read.recv()])
    assert [(rank, what) for rank, _, what in said] == [(0, "hello"), (1, "hello")]
    context = spawn(ranks.nothing, nprocs=2, join=False)
    assert isinstance(context, ProcessContext)
    assert context.join()


def test_spawn_with_another_start_method_warns_and_spawns() -> None:
    with pytest.warns(FutureWarning, match="start_processes"):
        context = spawn(ranks.nothing, nprocs=1, join=False, start_method="fork")
    assert context is not None
    assert type(context.processes[0]).__mro__[-2].__name__ == "BaseProcess"
    assert context.processes[0]._start_method == "spawn"  # type: ignore[attr-defined]
    assert context.join()


def test_a_context_has_processes_pids_sentinels_and_error_files(start_method: str, pipe: Pipe) -> None:
    read, write = pipe
    context = start_processes(ranks.tell_and_sleep, (write,), 2, join=False, start_method=start_method)
    assert context is not None
    received = dict([read.recv(), read.recv()])
    assert context.pids() == [received[0], received[1]] == [process.pid for process in context.processes]
    assert context.sentinels == {process.sentinel: i for i, process in enumerate(context.processes)}
    assert [os.path.exists(path) for path in context.error_files] == [False, False]
    context.terminate()
    assert context.sentinels == {}


def test_torchs_loop_around_join_works(start_method: str) -> None:
    context = start_processes(ranks.nothing, nprocs=3, join=False, start_method=start_method)
    assert context is not None
    while not context.join(timeout=5):
        pass
    assert context.join()


def test_join_returns_false_while_ranks_run(start_method: str, pipe: Pipe) -> None:
    read, write = pipe
    context = start_processes(ranks.wait_for_byte, (read,), 2, join=False, start_method=start_method)
    assert context is not None
    assert context.join(timeout=0) is False
    assert context.join(timeout=0.05) is False
    assert context.join(timeout=-1) is False
    os.write(write.fileno(), b"12")
    assert context.join(timeout=60) is True


def test_a_context_can_be_made_of_the_users_processes() -> None:
    import multiprocessing

    make = multiprocessing.get_context("fork").Process
    processes = [make(target=ranks.nothing, args=(0,)), make(target=ranks.leave_hard, args=(1, 4))]
    for process in processes:
        process.start()
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 4"):
        ProcessContext(list(processes), ["", ""]).join()


def test_the_old_name_of_the_context_warns() -> None:
    with pytest.warns(DeprecationWarning, match="ProcessContext"):
        assert isinstance(SpawnContext([], []), ProcessContext)


def test_the_variable_for_a_parallel_start_has_a_name() -> None:
    assert mp_spawn.ENV_VAR_PARALLEL_START == "MP_SPAWN_PARALLEL_START"


def test_daemon_reaches_the_processes() -> None:
    context = start_processes(ranks.nothing, nprocs=1, join=False, daemon=True)
    assert context is not None
    assert [process.daemon for process in context.processes] == [True]
    assert context.join()


def test_a_run_without_failures_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spawn(ranks.nothing, nprocs=2)


@pytest.mark.parametrize("launcher", [start_processes, run])
def test_start_method_none_is_that_of_multiprocessing(launcher: Any) -> None:
    import multiprocessing

    context = start_processes(ranks.nothing, nprocs=1, join=False, start_method=None)
    assert context is not None
    assert context.processes[0]._start_method == multiprocessing.get_start_method()  # type: ignore[attr-defined]
    assert context.join()
    assert launcher(ranks.nothing, nprocs=2, start_method=None) in (None, [None, None])
