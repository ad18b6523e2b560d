"""Start ranks by spawn, all of them from one fresh interpreter: the side of the process that starts them.

Note [The zygote]
-----------------
spawn promises each child a fresh interpreter that has nothing of the parent's but what it was passed. Most of
the cost of that is the same for each: starting Python, importing multiprocessing and this package. So one
fresh interpreter is started, the zygote, and forked for each rank *before* any of the user's modules has been
imported; the rank imports those after the fork, under its own environment:

    this process --exec--> zygote --fork--> rank 0: env, cpus, output -> import __main__ -> fn(0, ...)
         ^                   |  `---fork--> rank 1:    the same
         |  pid, pidfd       |
         +---- socket -------+  waits for its children, and writes the status of each into that rank's pipe

The zygote has one thread and lives as long as its ranks, so the parent-death signal is right here: a rank is
killed if the zygote is. The zygote opens a rank's pidfd before it can have reaped the rank, so that the pid
cannot belong to another process by then. It blocks every signal from outside, from before its exec on, and
each rank restores the mask; see Note [Signals and groups].

A rank executes a fresh interpreter after the fork where the fork alone would differ from one: when the zygote
has a second thread by then (a .pth file may start one), or when the rank's environment has variables that an
interpreter reads as it starts.
"""

from __future__ import annotations

import _socket
import errno
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing import popen_spawn_posix, resource_tracker, spawn, util
from multiprocessing.connection import wait
from typing import Any

from mp_core.memory.mapped_buffers import memory_file
from mp_core.system.descriptor import readable
from mp_spawn.calls.payload import InheritedFd, OwnedFd, spawning
from mp_spawn.calls.pickling import dumps_plainly
from mp_spawn.jobs.job import LACKS, Job, Started
from mp_spawn.jobs.stopped_starts import end_started
from mp_spawn.jobs.zygote_main import PROGRAM, STARTED, STATUS, RankProcess, ZygoteSpec
from mp_spawn.ranks.child import call
from mp_spawn.ranks.process_handle import PidFd, kill, reap
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.signals import blocked

# Seconds for the zygote to end. It reaps a rank as soon as that has died, and ends when it has reaped the last one.
TIME_TO_END = 10.0


class ZygoteLauncher:
    """The start method spawn, on Linux."""

    start_method = "spawn"
    witness = 0
    one_by_one = False

    def start(self, job: Job, specs: Iterator[RankSpec], own_fds: Callable[[], set[int]]) -> list[Started]:
        """Start the ranks. None of *own_fds* is inherited."""
        with ExitStack() as at_the_end, ExitStack() as on_failure:
            # The result of a call has an owner at once: a signal handler that raises may run after any call, unless
            # signals are blocked.
            ours, theirs = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            at_the_end.callback(ours.close)
            at_the_end.callback(theirs.close)
            # The ends of the status pipes: those to read, until a process object closes them, and the ranks'.
            unowned: list[OwnedFd] = []
            for_ranks: list[OwnedFd] = []
            with_status = []
            for spec in specs:
                unowned.append(OwnedFd())
                for_ranks.append(OwnedFd())
                on_failure.callback(unowned[-1].close)
                at_the_end.callback(for_ranks[-1].close)
                unowned[-1].fd, for_ranks[-1].fd = os.pipe()
                with_status.append(spec._replace(status=InheritedFd(for_ranks[-1].fd)))
            preparation = job.preparation()
            tracker = _start_tracker(job.is_program)
            with blocked() as mask:
                process, ranks = _execute(job, with_status, preparation, tracker, theirs.fileno(), mask)
                zygote = _Zygote(process, len(ranks))
                self.witness = zygote.pid
                on_failure.push(lambda _, error, __: zygote.end(ours, error, ranks, unowned, job))
            theirs.close()
            for rank in ranks:
                # Ranks may have begun long before this process, on a busy machine, gets to know of them.
                if not readable(ours.fileno(), 0):
                    job.between_starts()
                    readable(ours.fileno(), None)
                zygote.take_rank(ours, rank, unowned)
                rank.death_pipe = job.death_pipe
            on_failure.pop_all()
        for rank in ranks:
            rank.start()
        return [(rank, rank.popen.pidfd) for rank in ranks]


class _Popen:
    """Answers what a process object asks about its process."""

    method = "zygote"

    def __init__(self, pid: int, pidfd: PidFd, status: int, zygote: _Zygote) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.sentinel = status
        self.returncode: int | None = None
        self.ended_at: float | None = None
        self._zygote = zygote
        self._status = bytearray(STATUS.size)
        self._lock = threading.Lock()
        self.finalizer = util.Finalize(self, util.close_fds, (status,))  # type: ignore[attr-defined]

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.wait(0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        # The pipe stays readable, at its end, for all waiting threads; see Note [One reader].
        if self.returncode is None and wait([self.sentinel], timeout):
            with self._lock:
                if self.returncode is None:
                    self._read()
        return self.returncode

    def _read(self) -> None:
        """Read the status, with the lock held; called again if a signal handler has raised in it."""
        # Into memory of this object: the result of a call that a signal handler interrupts would be lost.
        if not any(self._status):
            os.readv(self.sentinel, [self._status])
        if any(self._status):
            status, self.ended_at = STATUS.unpack(self._status)
            returncode = os.waitstatus_to_exitcode(status)
        else:
            # The zygote was killed, and its ranks with it.
            returncode = -signal.SIGKILL
        self.pidfd.close()
        self._zygote.rank_ended(self.pid)
        # Last: a thread that sees it may close everything.
        self.returncode = returncode

    def terminate(self) -> None:
        self.pidfd.send(signal.SIGTERM)

    def kill(self) -> None:
        self.pidfd.send(signal.SIGKILL)

    def close(self) -> None:
        self.finalizer()


class _Zygote:
    """The process of the zygote, until it can be reaped."""

    def __init__(self, process: subprocess.Popen[bytes], ranks: int) -> None:
        self._process = process
        self._ranks = ranks
        self._ended: set[int] = set()  # their pids
        self._is_stopped = False
        # Any thread may be the one that sees a rank end.
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def take_rank(self, ours: _socket.socket, rank: RankProcess, unowned: list[OwnedFd]) -> None:
        """Receive the process of the next rank, to which the first of the *unowned* status pipes belongs."""
        with blocked():
            pid, pidfd = self._receive(ours, rank.spec.rank)
            rank.popen = _Popen(pid, pidfd, unowned.pop(0).give_up(), self)

    def _receive(self, ours: _socket.socket, rank: int) -> tuple[int, PidFd]:
        fds = array("i")
        message, ancillary, _, _ = ours.recvmsg(STARTED.size, socket.CMSG_SPACE(fds.itemsize))
        if not message:
            code = reap(self._process, 0.0 if self._is_stopped else TIME_TO_END)
            how = "has closed its socket" if code is None else f"ended with exit code {code}"
            raise RuntimeError(
                f"the interpreter that starts the ranks {how} before it had started "
                f"rank {rank}; its output on stderr says why"
            )
        _, pid, error = STARTED.unpack(message)
        if error:
            raise _not_started(f"rank {rank} cannot be started by fork", error)
        if not ancillary:
            raise _not_started(f"rank {rank} cannot be started", errno.EMFILE)
        fds.frombytes(ancillary[0][2])
        return pid, PidFd(fds[0])

    def rank_ended(self, pid: int) -> None:
        """Note the end of a rank; after the last one, reap the zygote."""
        with self._lock:
            self._ended.add(pid)
            last = len(self._ended) == self._ranks
        if last:
            reap(self._process, TIME_TO_END)  # if a signal has stopped it, `subprocess` reaps it later

    def end(
        self,
        ours: _socket.socket,
        error: BaseException | None,
        ranks: list[RankProcess],
        unowned: list[OwnedFd],
        job: Job,
    ) -> None:
        """End the zygote, and with it every rank, after *error* has stopped the start."""
        self._is_stopped = True  # it waits for the ranks that run, and nobody for it
        try:
            ours.shutdown(socket.SHUT_RD)  # it starts no more ranks; those that it has reported are still to be read
            with suppress(OSError, RuntimeError):
                for rank in ranks:
                    if rank.popen is None:
                        self.take_rank(ours, rank, unowned)
            started = {rank.spec.rank: rank for rank in ranks if rank.popen is not None}
            for rank in started.values():
                rank.start()
            if error is not None:
                end_started({number: (rank, rank.popen.pidfd) for number, rank in started.items()}, error, job)
        finally:
            kill(self._process)
            reap(self._process, math.inf)
            ours.close()


def _start_tracker(of_program: bool) -> int:
    """
    Start the resource tracker; return its descriptor. It would import from the current folder first, and not just end
    if the ranks are programs.
    """
    given = {"PYTHONSAFEPATH": "1", "PYTHONINSPECT": ""} if of_program else {}
    before = {name: os.environ[name] for name in given.keys() & os.environ.keys()}
    os.environ.update(given)
    try:
        with blocked(()):  # its start unblocks signals
            return resource_tracker.getfd() or 0
    finally:
        for name in given:
            del os.environ[name]
        os.environ.update(before)


def _environment() -> dict[str, str] | None:
    """Return the environment of the zygote and its ranks: without a variable by which none would end as it should."""
    return {**os.environ, "PYTHONINSPECT": ""} if os.environ.get("PYTHONINSPECT") else None


class _Spawning:
    """Stands in for the `Popen` of a process that multiprocessing starts by spawn: descriptors keep their numbers."""

    DupFd = popen_spawn_posix._DupFd

    def __init__(self) -> None:
        #: The descriptors to which the pickles refer: of the ranks, and of this process' own configuration.
        self.fds: set[int] = set()

    def duplicate_for_child(self, fd: int) -> int:
        self.fds.add(fd)
        return fd


def _execute(
    job: Job,
    specs: list[RankSpec],
    preparation: dict[str, Any],
    tracker: int,
    to_launcher: int,
    mask: frozenset[int],
) -> tuple[subprocess.Popen[bytes], list[Any]]:
    """Start the zygote; return its process, and the process objects of the ranks that it is going to start."""
    sys_path = preparation.pop("sys_path")
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # Of those after -X, multiprocessing hands down some.
    flags += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    python = [os.fsdecode(spawn.get_executable()), *flags]
    ranks: list[Any] = [
        RankProcess(
            target=call,
            args=(spec._replace(mask=mask, sent_before=None if spec.own_group else frozenset()),),
            name=f"rank {spec.rank}",
            daemon=job.daemon,
        )
        for spec in specs
    ]
    popen = _Spawning()
    with spawning(popen):
        zygote = dumps_plainly(ZygoteSpec(python, preparation, tracker, to_launcher, ranks, popen.fds))
    file = memory_file(dumps_plainly(sys_path), zygote)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        process = subprocess.Popen(
            [*python, "-c", PROGRAM.format(file=file, entry="main(file, path, at_start)"), "--multiprocessing-fork"],
            pass_fds={file, to_launcher, tracker, *popen.fds, *job.passed_on},
            env=_environment(),
        )
    except BlockingIOError as error:
        raise _not_started("no rank can be started", errno.EAGAIN) from error
    finally:
        os.close(file)
    return process, ranks


def _not_started(what: str, number: int) -> OSError:
    return OSError(number, f"{what}: {LACKS.get(number) or os.strerror(number)}")
