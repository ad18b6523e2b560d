"""One reader of a process's end: whoever asks, and however many threads ask at once, gets the same answer.

Note [One reader]
-----------------
The exit status of a process can be read once. `multiprocessing` polls every child from whatever thread calls
`active_children()` or starts another process, without a lock, and a thread that comes second finds nothing: it
takes the fork server for dead (exit code 255), or the process for running. So waiting and reading are two steps:

    wait     without a lock, for an event that stays: a pipe at its end, a child that waitid() leaves in place
    read     under the lock, without blocking; the answer is kept, and every later caller gets that
"""

from __future__ import annotations

import os
import threading
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

from mp_spawn.pidfd import PidFd, readable

__all__ = ["OneReader"]


class OneReader:
    """
    Stands for *popen*, what a process object of `multiprocessing` asks about its process.

    >>> import multiprocessing
    >>> child = multiprocessing.get_context("fork").Process(target=int)
    >>> child.start()
    >>> child._popen = OneReader(child._popen)
    >>> child.join()
    >>> child.exitcode
    0
    """

    def __init__(self, popen: Any, pidfd: PidFd | None = None) -> None:
        #: Whether the fork server was killed before it could tell how the process ended; 255 stands for that.
        self.lost = False
        self._popen = popen
        self._pidfd = pidfd or PidFd(-1)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of an object that has no __init__ behind it yet
            raise AttributeError(name)
        return getattr(self._popen, name)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while the process runs, unless *flag* is 0, which waits."""
        return self._read() if flag == os.WNOHANG else self.wait()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None when the process still runs after *timeout* seconds."""
        code = self._read()
        if code is not None:
            return code
        forked = self._popen.method != "forkserver"
        # The pipe of a forked process may be held open by what that has left behind: only a timeout needs it.
        if not (forked and timeout is None) and not wait([self._popen.sentinel], timeout):
            return None
        if forked:
            try:
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                pass  # another thread has read it; or somebody outside multiprocessing, and then it is lost
        elif self._read() is None and self._pidfd.fd >= 0:
            readable(self._pidfd.fd, timeout)
        return self._read()

    def _read(self) -> int | None:
        with self._lock:
            if self._popen.returncode is None and self._popen.method == "forkserver":
                self._popen.returncode = self._from_server()
                return self._popen.returncode  # type: ignore[no-any-return]
            code: int | None = self._popen.poll()
            return code

    def _from_server(self) -> int | None:
        """
        What the fork server has told. If it was killed, the process may still run.
        """
        if not self.lost and wait([self._popen.sentinel], 0):
            try:
                return forkserver.read_signed(self._popen.sentinel)  # type: ignore[no-any-return]
            except (OSError, EOFError):
                self.lost = True
        return 255 if self.lost and self._pidfd.ended() else None
