"""The nursery itself: a fresh interpreter that forks ranks and tells how they end; see Note [The nursery]."""

from __future__ import annotations

import gc
import os
import pickle
import pkgutil  # noqa: F401  (what every rank would import, importing the main module)
import signal
import socket
import sys
import threading
import time
from multiprocessing import process, resource_tracker, spawn
from typing import IO, Any, NoReturn

from mp_core import (
    _children,  # noqa: F401  (what every rank would import, coming into the family)
    set_parent_death_signal,
)
from mp_spawn import lifeline
from mp_spawn.child import reporting
from mp_spawn.plan import BIRTH, BOOT, STATUS, Birth, Plan

__all__ = ["main", "reborn"]

# Variables that are read while an interpreter, or its C library, starts.
READ_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")


def main(file: IO[bytes]) -> None:
    """
    Fork the ranks, then wait for them.
    """
    plan: Plan = pickle.load(file)
    births = plan.births
    lifeline.hold(births[0].place.lifeline.fd)
    gc.freeze()  # what is here is shared with the ranks, until somebody writes to it
    alone = _alone()
    nursery = os.getpid()
    children: dict[int, Birth] = {}
    with socket.socket(fileno=plan.socket) as births_told_on:
        for birth in births:
            rank = birth.place.rank
            try:
                pid = os.fork()
            except OSError as error:
                births_told_on.send(BIRTH.pack(rank, 0, error.errno))
                os._exit(1)
            if pid == 0:
                births_told_on.close()
                _leave_behind(plan, birth)
                _begin(plan, birth, nursery, file, alone)
            children[pid] = birth
            pidfd = os.pidfd_open(pid)
            socket.send_fds(births_told_on, [BIRTH.pack(rank, pid, 0)], [pidfd])
            os.close(pidfd)
    for fd in frozenset().union(*(birth.fds for birth in births)) - {birth.status for birth in births}:
        os.close(fd)
    while children:
        pid, status = os.waitpid(-1, 0)
        if (ended := children.pop(pid, None)) is not None:
            try:
                os.write(ended.status, STATUS.pack(status, time.monotonic()))
            except BrokenPipeError:
                pass  # nobody wants to know
            # So that the pipe stays readable, being at its end, whoever has read the status.
            os.close(ended.status)
    os._exit(0)


def _alone() -> bool:
    """
    Whether this process has one thread, those included of which Python knows nothing.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return threading.active_count() == 1


def _leave_behind(plan: Plan, birth: Birth) -> None:
    """
    Close what belongs to other ranks; and the status, which is the nursery's to write.
    """
    for fd in frozenset().union(*(other.fds for other in plan.births)) - birth.fds - plan.shared:
        os.close(fd)
    os.close(birth.status)


def _begin(plan: Plan, birth: Birth, nursery: int, file: IO[bytes], alone: bool) -> NoReturn:
    """
    The life of a rank, from the fork on.
    """
    place = birth.place
    with reporting(place.report.fd):
        set_parent_death_signal(signal.SIGKILL, parent=nursery)
        if alone and not any(name.startswith(READ_EARLY) for name in place.env):
            file.close()
            place.take()
            _live(plan, birth)
        # A descriptor of its own: the others read the same file.
        own = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        for fd in (birth.fds - {birth.status}) | plan.shared | {own}:
            os.set_inheritable(fd, True)
        boot = BOOT.format(plan=own, entry=f"reborn(file, {place.rank})")
        command = [*plan.python, "-c", boot, "--multiprocessing-fork"]
        os.execve(command[0], command, {**os.environ, **place.env})
    raise AssertionError("unreachable")


def reborn(file: IO[bytes], rank: int) -> None:
    """
    The life of a rank that has begun anew in an interpreter of its own.
    """
    plan: Plan = pickle.load(file)
    file.close()
    birth = next(birth for birth in plan.births if birth.place.rank == rank)
    for fd in (birth.fds - {birth.status}) | plan.shared:
        os.set_inheritable(fd, False)
    with reporting(birth.place.report.fd):
        birth.place.take()
        _live(plan, birth)


def _live(plan: Plan, birth: Birth) -> NoReturn:
    resource_tracker._resource_tracker._fd = plan.tracker  # type: ignore[attr-defined]
    current: Any = process.current_process()
    current._inheriting = True  # forbids that importing the main module starts processes
    try:
        spawn.prepare(plan.preparation)
        rank: Any = pickle.loads(birth.process)
    finally:
        del current._inheriting
    sys.exit(rank._bootstrap(parent_sentinel=birth.place.lifeline.fd))
