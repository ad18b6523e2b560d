"""Ranks are signalled by pidfd, never by a pid that may be reused; a failed start leaves no process."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import pytest
import rank_functions as ranks
from test_lifetime_of_ranks import started

import mp_all as mp
from mp_spawn import context, context_launcher, process_handle, zygote

Pipe = tuple[Connection, Connection]


def test_ranks_are_ended_by_pidfd_and_never_by_pid(
    start_method: str, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, signum: int) -> None:
        raise AssertionError(f"signal {signum} to the pid {pid}, which may be reused")

    monkeypatch.setattr(context, "TERM_TO_KILL", 0.2)
    job = started(ranks.ignore_sigterm, pipe[1], start_method=start_method)
    for _ in range(2):
        pipe[0].recv()
    monkeypatch.setattr(os, "kill", refuse)
    job.terminate()
    assert [process.exitcode for process in job.processes] == [-signal.SIGKILL] * 2


def test_a_pidfd_of_a_reaped_process_signals_no_other_process() -> None:
    child = mp.get_context("fork").Process(target=ranks.nothing, args=(0,))
    child.start()
    own = process_handle.PidFd(os.pidfd_open(child.pid or 0))
    child.join(30)
    assert own.send(signal.SIGKILL) is False
    own.close()
    assert process_handle.PidFd.of(child).send(signal.SIGKILL) is False
    child.close()


def test_a_start_that_fails_half_way_leaves_no_process(start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak check looks for processes and descriptors."""
    owner = zygote._Zygote if start_method == "spawn" else context_launcher.ContextLauncher
    name = "receive_rank" if start_method == "spawn" else "_start"
    original, calls = getattr(owner, name), []

    def fail_the_second_time(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("no more processes")
        return original(*args)

    monkeypatch.setattr(owner, name, fail_the_second_time)
    with pytest.raises(OSError, match="no more processes"):
        started(ranks.sleep, nprocs=3, start_method=start_method)
    calls.clear()
    assert mp.active_children() == []
