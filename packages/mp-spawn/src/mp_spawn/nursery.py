"""Start ranks by spawn, all of them from one fresh interpreter: the side of the process that starts them.

Note [The nursery]
------------------
spawn promises each child a fresh interpreter, in which nothing of the parent's is left but what was handed
over. Most of what that costs is the same for each: starting Python, importing multiprocessing and this
package. So one fresh interpreter is started, the nursery, and forked for each rank *before* anything of the
user's has been imported; that comes after the fork, in the rank, under the rank's own environment:

    this process --exec--> nursery --fork--> rank 0: env, cpus, output -> import __main__ -> fn(0, ...)
         ^                    |  `---fork--> rank 1:    the same
         |  pid, pidfd        |
         +---- socket --------+  waits for its children, and writes the status of each into that rank's pipe

The nursery has one thread and lives as long as its ranks, so that here the parent-death signal is right: a
rank is killed if the nursery is. And it opens a rank's pidfd before it can have reaped it, so that the pid
cannot be somebody else's by then. It blocks every signal that comes from outside, from before its exec on,
and each rank restores the mask; see Note [Signals and groups].

Where a fork would not be the same as a fresh interpreter, the rank executes one after the fork, and goes on
from there: when a thread has been started by the time the nursery would fork (a .pth file may do that), or
when the rank's environment has variables that are read as the interpreter starts.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from multiprocessing import resource_tracker, spawn, util
from multiprocessing.connection import wait
from typing import Any

from mp_spawn.child import work
from mp_spawn.job import Job, Ticket
from mp_spawn.payload import memory_file, on_its_way
from mp_spawn.pickling import main_can_be_imported, plainly
from mp_spawn.pidfd import PidFd
from mp_spawn.plan import BIRTH, BOOT, STATUS, Birth, Plan, RankProcess, SameNumber
from mp_spawn.rank import Rank
from mp_spawn.signals import held_back

__all__ = ["Nursery"]

# The nursery reaps as soon as a rank has died, and leaves as soon as it has reaped the last one.
PATIENCE = 10.0


class Nursery:
    """The start method spawn, on Linux."""

    start_method = "spawn"
    witness = 0

    def start(self, job: Job, tickets: list[Ticket]) -> list[Rank]:
        with ExitStack() as at_the_end, ExitStack() as on_failure:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            at_the_end.enter_context(ours)
            at_the_end.enter_context(theirs)
            processes: list[Any] = []
            births: list[Birth] = []
            # The read ends that no process object closes yet.
            loose: set[int] = set()
            on_failure.callback(lambda: util.close_fds(*loose))  # type: ignore[attr-defined]
            for ticket in tickets:
                read, write = os.pipe()
                at_the_end.callback(os.close, write)
                loose.add(read)
                process: Any = RankProcess(
                    target=work,
                    args=(job.orders(ticket, None),),
                    name=f"rank {ticket.rank}",
                    daemon=job.daemon,
                )
                pickled, fds = _packed(process)
                fds |= {write, *ticket.place.fds}
                births.append(Birth(ticket.place, pickled, frozenset(fds), write))
                process.sentinel_of_nursery = read
                processes.append(process)
            nursery = _Keeper(_open(job, births, theirs.fileno()), len(births))
            self.witness = nursery.pid
            on_failure.callback(nursery.put_down)
            theirs.close()
            for ticket, process in zip(tickets, processes, strict=True):
                pid, pidfd = nursery.birth(ours, ticket.rank)
                process.ready = _Popen(pid, pidfd, process.sentinel_of_nursery, nursery)
                loose.discard(process.sentinel_of_nursery)
                # While the process lives, so does its lifeline, even if nobody keeps the context.
                process.lifeline = job.lifeline
            on_failure.pop_all()
        for process in processes:
            process.start()
        return [
            Rank(ticket.rank, process, ticket.inbox, process.ready.pidfd, ticket.restarts)
            for ticket, process in zip(tickets, processes, strict=True)
        ]


class _Popen:
    """What a process object asks about its process."""

    method = "spawn"

    def __init__(self, pid: int, pidfd: PidFd, status: int, nursery: _Keeper) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.sentinel = status
        self.returncode: int | None = None
        self.ended_at: float | None = None
        self._nursery = nursery
        self._lock = threading.Lock()
        self.finalizer = util.Finalize(self, util.close_fds, (status,))  # type: ignore[attr-defined]

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.wait(0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        # The pipe stays readable, at its end, for all who wait; see Note [One reader].
        if self.returncode is None and wait([self.sentinel], timeout):
            with self._lock:
                if self.returncode is None:
                    self._read()
        return self.returncode

    def _read(self) -> None:
        """
        Take the status; called once, with the lock held.
        """
        data = os.read(self.sentinel, STATUS.size)
        if len(data) == STATUS.size:
            status, self.ended_at = STATUS.unpack(data)
            returncode = os.waitstatus_to_exitcode(status)
        else:
            # The nursery was killed, and its ranks with it.
            returncode = -signal.SIGKILL
        self.pidfd.close()
        self._nursery.gone()
        # Last: whoever sees it may close everything.
        self.returncode = returncode

    def terminate(self) -> None:
        self.pidfd.send(signal.SIGTERM)

    def kill(self) -> None:
        self.pidfd.send(signal.SIGKILL)

    def close(self) -> None:
        self.finalizer()


class _Keeper:
    """The process that is the nursery, kept until it can be reaped."""

    def __init__(self, process: subprocess.Popen[bytes], ranks: int) -> None:
        self._process = process
        self._ranks = ranks
        # Ranks end in whatever thread looks at them.
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def birth(self, ours: socket.socket, rank: int) -> tuple[int, PidFd]:
        """The pid of the next rank, and its descriptor."""
        message, fds, _, _ = socket.recv_fds(ours, BIRTH.size, 1)
        if not message:
            code = self._process.wait(PATIENCE)
            raise RuntimeError(
                f"the interpreter that starts the ranks ended with exit code {code} before it had started "
                f"rank {rank}; what it wrote to stderr says why"
            )
        _, pid, error = BIRTH.unpack(message)
        if error:
            raise OSError(error, f"rank {rank} cannot be started: {os.strerror(error)}")
        return pid, PidFd(fds[0])

    def gone(self) -> None:
        """A rank has ended; with the last one the nursery leaves."""
        with self._lock:
            self._ranks -= 1
            last = self._ranks == 0
        if last:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass  # somebody has stopped it; `subprocess` reaps it later

    def put_down(self) -> None:
        """End the nursery, and with it every rank that it has started."""
        self._process.kill()
        self._process.wait()


class _Packing:
    """Stands where multiprocessing expects the process that is started; descriptors keep their numbers."""

    DupFd = SameNumber

    def __init__(self) -> None:
        self.fds: set[int] = set()

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.add(fd)
        return fd


def _packed(thing: Any) -> tuple[bytes, set[int]]:
    packing = _Packing()
    with on_its_way(packing):
        return plainly(thing), packing.fds


def _open(job: Job, births: list[Birth], births_told_on: int) -> subprocess.Popen[bytes]:
    """
    Start the interpreter.
    """
    preparation = spawn.get_preparation_data("rank")
    sys_path = preparation.pop("sys_path")
    if not (job.needs_main and main_can_be_imported()):
        preparation = {key: value for key, value in preparation.items() if not key.startswith("init_main")}
    tracker = resource_tracker.getfd() or 0
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    python = [os.fsdecode(spawn.get_executable()), *flags]
    shared = frozenset({tracker, job.lifeline.fd})
    with held_back() as mask:
        births = [birth._replace(place=birth.place._replace(mask=mask)) for birth in births]
        plan = Plan(python, preparation, tracker, births_told_on, births, shared)
        file = memory_file(plainly(sys_path), _packed(plan)[0])
        try:
            os.lseek(file, 0, os.SEEK_SET)
            return subprocess.Popen(
                [*python, "-c", BOOT.format(plan=file, entry="main(file)"), "--multiprocessing-fork"],
                pass_fds={file, births_told_on}.union(shared, *(birth.fds for birth in births)),
            )
        finally:
            os.close(file)
