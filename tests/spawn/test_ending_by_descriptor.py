"""Ranks are signalled by pidfd, never by a pid that may be reused; failures of the launcher leave no process."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
import rank_functions as ranks
from support.waiting import until
from test_lifetime_of_ranks import started

import mp_all as mp
from mp_spawn import run, start_processes
from mp_spawn.jobs import context, context_launcher, zygote
from mp_spawn.output import destinations as output
from mp_spawn.ranks import process_handle

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
    name = "take_rank" if start_method == "spawn" else "_start"
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


def test_a_rank_that_cannot_be_sent_a_signal_spares_no_other(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's program, or a sandbox."""
    monkeypatch.setattr(context, "TERM_TO_KILL", 0.2)
    job = started(ranks.sleep, start_method=start_method)
    first, send = job._ranks[0]._pidfd, process_handle.PidFd.send

    def refuse(self: process_handle.PidFd, signum: int) -> bool:
        if self is first and signum == signal.SIGTERM:
            raise PermissionError(errno.EPERM, "of another user")
        return send(self, signum)

    monkeypatch.setattr(process_handle.PidFd, "send", refuse)
    job.terminate()
    assert [process.exitcode for process in job.processes] == [-signal.SIGKILL, -signal.SIGTERM]


class TooLateError(Exception):
    """Of a handler that limits the time."""


@pytest.mark.parametrize("how", ["start_processes", "run", "the end of a block"])
def test_a_time_limit_of_the_program_ends_the_ranks_that_nobody_else_has(start_method: str, how: str) -> None:
    def too_late(*_: object) -> None:
        raise TooLateError

    before = signal.signal(signal.SIGALRM, too_late)
    try:
        with pytest.raises(TooLateError):
            if how == "the end of a block":
                with started(ranks.sleep, start_method=start_method):
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
            else:
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                (run if how == "run" else start_processes)(ranks.sleep, nprocs=2, start_method=start_method)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert mp.active_children() == []


def test_ranks_are_ended_when_no_thread_can_be_started_for_their_output(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(output.threading, "Thread", Exhausted)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_processes(ranks.sleep, nprocs=2, start_method=start_method, output="capture")
    monkeypatch.undo()
    assert until(lambda: mp.active_children() == [])


def test_a_lack_of_descriptors_is_not_taken_for_a_system_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "no descriptor left")

    process_handle._are_pidfds_allowed.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", exhausted)
        process_handle.has_pidfds()
    child = mp.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    own = process_handle.PidFd.of(child)
    assert own.fd >= 0
    own.close()
    child.kill()
    child.join(30)
