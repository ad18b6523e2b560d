"""A process by a descriptor and not by its number: a signal never reaches another with the same pid."""

from __future__ import annotations

import functools
import os
import select
import signal
import threading
from multiprocessing.process import BaseProcess

__all__ = ["PidFd", "has_pidfds", "readable"]


@functools.cache
def has_pidfds() -> bool:
    """
    Whether this system has them: Linux since 5.3, unless a sandbox takes them away.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def readable(fd: int, timeout: float | None) -> bool:
    """
    Whether *fd* can be read from within *timeout* seconds, without limit for None. Any number: select stops at 1024.

    >>> read, write = os.pipe()
    >>> readable(read, 0), os.write(write, b"x"), readable(read, 0)
    (False, 1, True)
    >>> os.close(read), os.close(write)
    (None, None)
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


class PidFd:
    """
    Owns *fd*, as from `os.pidfd_open`; -1 stands for a process that has gone.

    >>> own = PidFd(os.pidfd_open(os.getpid()))
    >>> own.send(0)
    True
    >>> own.close()
    >>> own.send(0)
    False
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # So that nobody sends to a number that another thread has just closed.
        self._lock = threading.Lock()

    @classmethod
    def of(cls, process: BaseProcess) -> PidFd:
        """The descriptor of a process that somebody has started."""
        if process.pid is None:
            return cls(-1)
        if not has_pidfds():
            return _Number(process)
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return cls(-1)
        found = cls(fd)
        if process.exitcode is not None:
            # It ended before the descriptor was opened, so that the pid may be somebody else's by now.
            found.close()
        return found

    def send(self, signum: int) -> bool:
        """Send a signal; False when the process has gone."""
        with self._lock:
            if self._fd < 0:
                return False
            try:
                signal.pidfd_send_signal(self._fd, signum)
            except ProcessLookupError:
                return False
            return True

    @property
    def fd(self) -> int:
        """What becomes readable when the process has ended; -1 when it is not known any more."""
        return self._fd

    def ended(self) -> bool:
        """Whether the process has ended, as far as is known."""
        with self._lock:
            return self._fd < 0 or readable(self._fd, 0)

    def close(self) -> None:
        """Let go of the process; twice is fine."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()


class _Number(PidFd):
    """Where there are no such descriptors."""

    def __init__(self, process: BaseProcess) -> None:
        super().__init__(-1)
        self._process = process

    def send(self, signum: int) -> bool:
        if self._process.pid is None or not self._process.is_alive():
            return False
        os.kill(self._process.pid, signum)
        return True
