"""A process by its descriptor instead of its number, and a rank that outlives the pipe which tells of its end.

A signal by descriptor (pidfd) never reaches another process with the same pid.
"""

from __future__ import annotations

import _socket
import errno
import functools
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from mp_core.children import one_reader
from mp_core.children.one_reader import is_running
from mp_core.system.descriptor import Descriptor, readable

if TYPE_CHECKING:
    import subprocess

POLL_EVERY_S = 0.02
SHORTEST_POLL_S = 0.0005


def has_pidfds() -> bool:
    """Tell whether processes can be signalled by descriptor: on Linux since 5.3, unless a sandbox forbids it."""
    try:
        return _are_pidfds_allowed()
    except OSError:
        return True  # descriptors or memory are short now


def has_socketpairs() -> bool:
    """Tell whether a process can send descriptors to another, unless a sandbox forbids it."""
    try:
        first, second = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    except (AttributeError, PermissionError):
        return False
    except OSError:
        return True  # descriptors are short now
    first.close()
    second.close()
    return True


@functools.cache
def _are_pidfds_allowed() -> bool:
    """Try both calls; an `OSError` says nothing about them, and is not kept."""
    try:
        fd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(fd, 0)
        finally:
            os.close(fd)
    except AttributeError:
        return False
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return False
    return True


def kill(process: subprocess.Popen[bytes]) -> None:
    """
    Kill a program, unless it has been reaped; without the lock that `Popen.kill` takes, see `reap`.

    >>> import subprocess
    >>> sleeping = subprocess.Popen(["sleep", "60"])
    >>> kill(sleeping)
    >>> reap(sleeping, timeout=60)
    -9
    """
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)


def reap(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """
    Wait up to *timeout* seconds for the end of a program and return its exit code; None if it has not ended in time.

    `Popen.wait` takes a lock, and keeps it for ever if a signal handler raises just then.

    >>> import subprocess
    >>> reap(subprocess.Popen(["true"]), timeout=60)
    0
    """
    deadline, delay = time.monotonic() + timeout, SHORTEST_POLL_S
    while process.returncode is None:
        try:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            process.returncode = 0  # reaped, by a call that was interrupted: its exit code is unknown
            break
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= deadline:
            break
        else:
            time.sleep(delay)
            delay = min(2 * delay, 0.05)
    return process.returncode


class PidFd(Descriptor):
    """
    Owns *fd*, as from `os.pidfd_open`, which becomes readable when the process ends; -1 stands for one that has ended.

    >>> own = PidFd(os.pidfd_open(os.getpid()))
    >>> own.send(0)
    True
    >>> own.close()
    >>> own.send(0)
    False
    """

    def __init__(self, fd: int) -> None:
        # Otherwise one thread could send to a number that another has just closed.
        self._lock = threading.RLock()  # reentrant: a signal handler may ask for an exit code
        super().__init__(fd)

    @classmethod
    def of(cls, process: BaseProcess, frugal: bool = False) -> PidFd:
        """Open the descriptor of a child of this process; if it is to be *frugal*, return a stand-in without one."""
        if process.pid is None:
            return cls(-1)
        if frugal or not has_pidfds():
            return _Pid(process)
        found = cls(-1)
        try:
            found.fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return found
        if process.exitcode is not None:
            # It ended before the descriptor was opened, so that the pid may be another process's by now.
            found.close()
        return found

    def send(self, signum: int) -> bool:
        """Send a signal; return False if the process has ended."""
        with self._lock:
            if self.fd < 0:
                return False
            try:
                signal.pidfd_send_signal(self.fd, signum)
            except ProcessLookupError:
                return False
            return True

    def ended(self) -> bool:
        """Tell whether the process has ended, as far as is known."""
        with self._lock:
            return self.fd < 0 or readable(self.fd, 0)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            super().close()


class _Pid(PidFd):
    """Stands in for a descriptor where there are none, or few."""

    def __init__(self, process: BaseProcess) -> None:
        super().__init__(-1)
        self._process: BaseProcess | None = process

    def send(self, signum: int) -> bool:
        process = self._process
        if process is None or process.pid is None or not process.is_alive():
            return False
        os.kill(process.pid, signum)
        return True

    def close(self) -> None:
        # The process object has this one: only the collector of cycles would close its pipes.
        self._process = None


class RankPopen:
    """
    Stands in for *popen*, the `Popen` of a `multiprocessing` process, which may outlive the pipe that tells of its end.

    It has closed the pipe, or the fork server was killed before it could send the exit status: then `lost` is True, and
    the exit code 255 once *pidfd* tells that the process has ended.

    >>> import multiprocessing
    >>> child = multiprocessing.get_context("fork").Process(target=int)
    >>> child.start()
    >>> lock(child, PidFd(-1))
    >>> child.join()
    >>> child.exitcode
    0
    """

    def __init__(self, popen: Any, pidfd: PidFd) -> None:
        popen.has_ended = pidfd.ended
        self._popen = popen
        self._pidfd = pidfd
        # A thread in a poll of multiprocessing's that began before `lock` may still store 255 in *popen*.
        self._code: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up before __init__ has run
            raise AttributeError(name)
        return getattr(self._popen, name)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process runs, unless *flag* is 0, which waits."""
        return self._read() if flag == os.WNOHANG else self.wait()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the exit code; return None if the process still runs after *timeout* seconds."""
        code = self._read()
        if code is not None:
            return code
        forked = self._popen.method != "forkserver"
        # A process that a forked one has left behind may hold its pipe open: only a timeout needs the pipe.
        if forked and timeout is None:
            return self._read(0)
        until = time.monotonic() + (timeout or 0.0)
        if not wait([self._popen.sentinel], timeout):
            return None
        if forked:
            self._poll_until(until)
        elif self._read() is None and self._pidfd.fd >= 0:
            readable(self._pidfd.fd, timeout)
        return self._read()

    def _read(self, flag: int = os.WNOHANG) -> int | None:
        if self._code is None:
            self._code = self._popen.poll(flag)
        return self._code

    def _poll_until(self, until: float) -> None:
        """Wait for the end of a child whose pipe is closed: it ends, or has closed it before (`has_closed_pipe`)."""
        pause = SHORTEST_POLL_S
        while has_closed_pipe(self) and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, POLL_EVERY_S)


def lock(process: Any, pidfd: PidFd) -> None:
    """Let several threads ask a process of multiprocessing for its exit code, though it has lost the pipe for it."""
    popen = getattr(process, "_popen", None)
    method = getattr(popen, "method", "")
    if method in ("fork", "spawn", "forkserver") and not isinstance(popen, RankPopen):
        one_reader.install("popen_forkserver" if method == "forkserver" else "popen_fork")
        process._popen = RankPopen(popen, pidfd)


def has_closed_pipe(popen: Any) -> bool:
    """
    Tell whether a process runs though its sentinel is readable: one that has become another program, say.

    >>> import multiprocessing
    >>> child = multiprocessing.get_context("fork").Process(target=os.execlp, args=("sleep", "sleep", "1"))
    >>> child.start()
    >>> wait([child.sentinel]) == [child.sentinel] and has_closed_pipe(child._popen)
    True
    """
    of_this_process = getattr(popen, "method", "") in ("fork", "spawn")
    return of_this_process and popen.poll() is None and is_running(popen.pid)
