"""A process by its descriptor instead of its number, and its exit status, which is read once.

A signal by descriptor (pidfd) never reaches another process with the same pid.

Note [One reader]
-----------------
The exit status of a process can be read once. `multiprocessing` polls every child from any thread that calls
`active_children()` or starts another process, without a lock, and a thread that comes second finds nothing: it
concludes that the fork server is dead (exit code 255), or that the process is running. So waiting and reading
are two steps:

    wait     without a lock, for an event that stays: a pipe at its end, a child that waitid() leaves in place
    read     under the lock, without blocking; the status is kept for every later caller

A thread that was in the middle of a poll when the lock came may still read the status that a fork server has sent. It
stores the code then, a moment later: who finds nothing to read looks for that for `STOLEN_S` seconds.
"""

from __future__ import annotations

import _socket
import errno
import functools
import os
import signal
import threading
import time
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from mp_core.system.descriptor import Descriptor, readable

if TYPE_CHECKING:
    import subprocess

POLL_EVERY_S = 0.02
SHORTEST_POLL_S = 0.0005
STOLEN_S = 0.2


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
        self._lock = threading.Lock()
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


class LockedPopen:
    """
    Stands in for *popen*, the `Popen` of a `multiprocessing` process, whose exit status several threads may want.

    >>> import multiprocessing
    >>> child = multiprocessing.get_context("fork").Process(target=int)
    >>> child.start()
    >>> child._popen = LockedPopen(child._popen)
    >>> child.join()
    >>> child.exitcode
    0
    """

    def __init__(self, popen: Any, pidfd: PidFd | None = None) -> None:
        #: Whether the fork server was killed before it could send the exit status; the exit code is then 255.
        self.lost = False
        self._popen = popen
        self._pidfd = pidfd or PidFd(-1)
        self._status: int | None = None
        self._lock = threading.Lock()

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
            self._wait_for_end()
            return self._read()
        until = time.monotonic() + (timeout or 0.0)
        if not wait([self._popen.sentinel], timeout):
            return None
        if forked:
            self._poll_until(until)
        elif self._read() is None and self._pidfd.fd >= 0:
            readable(self._pidfd.fd, timeout)
        return self._read()

    def _poll_until(self, until: float) -> None:
        """Wait for the end of a child whose pipe is closed: it ends, or has closed it before (`has_closed_pipe`)."""
        pause = SHORTEST_POLL_S
        while has_closed_pipe(self) and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, POLL_EVERY_S)

    def _wait_for_end(self) -> None:
        """Wait without a limit for the end of a forked child; its status is left for `_read`."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            while self._read() is None and is_running(self._popen.pid):
                time.sleep(POLL_EVERY_S)
            return
        try:
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # another thread has read it; or code outside multiprocessing has, and then it is lost

    def _read(self) -> int | None:
        with self._lock:
            if self._popen.returncode is None and self._popen.method == "forkserver":
                status = self._from_server()
                if self._popen.returncode is None:
                    self._popen.returncode = status
                return self._popen.returncode  # type: ignore[no-any-return]
            # A signal handler that raises just after the status has been read would lose it: look first.
            if self._status is None and hasattr(os, "waitid"):
                self._status = _status_of(self._popen.pid)
            if self._popen.poll() is None:
                self._popen.returncode = self._status
            return self._popen.returncode  # type: ignore[no-any-return]

    def _from_server(self) -> int | None:
        """Read the exit code that the fork server has sent. If the server was killed, the process may still run."""
        if not self.lost and wait([self._popen.sentinel], 0):
            try:
                return forkserver.read_signed(self._popen.sentinel)  # type: ignore[no-any-return]
            except (OSError, EOFError):
                until = time.monotonic() + STOLEN_S
                while self._popen.returncode is None and time.monotonic() < until:
                    time.sleep(SHORTEST_POLL_S)
                self.lost = self._popen.returncode is None
        return 255 if self.lost and self._pidfd.ended() else None


def lock(process: Any, pidfd: PidFd) -> None:
    """Let several threads ask a process of multiprocessing for its exit code, see Note [One reader]."""
    popen = getattr(process, "_popen", None)
    if getattr(popen, "method", "") in ("fork", "spawn", "forkserver") and not isinstance(popen, LockedPopen):
        process._popen = LockedPopen(popen, pidfd)


def is_running(pid: int) -> bool:
    """
    Tell whether a child of this process has not ended, as far as is known; its status is left.

    >>> is_running(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1"))
    True
    """
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return False
    return True


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


def _status_of(pid: int) -> int | None:
    """Return the exit code of a child, which keeps it; None if it still runs, or its status has been read."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
