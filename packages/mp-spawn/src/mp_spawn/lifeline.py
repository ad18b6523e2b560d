"""The lifeline: when the process that started the ranks is gone, however it went, the kernel kills them.

Note [The lifeline]
-------------------
Linux's parent-death signal (PR_SET_PDEATHSIG) comes when the parent *thread* ends, so ranks started from a
helper thread would die with that thread while their program lives on. What ends with the process, and with
nothing less, is its table of open files. So a job has a pipe into which nobody ever writes:

      the starting process                      each rank
      +--------------------+                  +--------------------------------------+
      |      write end ----|=====( pipe )=====|---- read end: O_ASYNC, owned by the  |
      |  (one, never used) |                  |     rank, with SIGKILL as its signal |
      +--------------------+                  +--------------------------------------+
                |  exit, SIGKILL, exec: the kernel closes it
                +----------> hang-up at each read end ----------> SIGKILL to its owner

There is no thread in the rank that would have to get hold of the interpreter first, so a rank deep in C code
goes, too. The owner of a descriptor belongs to the open file, which forked processes share; each rank
therefore opens the read end anew. No race: a rank that finds the pipe hung up after it has armed ends itself.
A rank that has started ranks of its own holds the write end of *their* lifeline, so that a whole tree falls
from the root within a millisecond.

Whoever else held a write end would keep the ranks alive: pipes are close-on-exec, and every fork closes our
write ends in the child.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
import weakref

__all__ = ["Lifeline", "hold"]

_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()
_hooked = False


class Lifeline:
    """
    The pipe of one job, at the side of the process that starts the ranks.

    >>> line = Lifeline()
    >>> line.fd > 2
    True
    >>> line.close()
    """

    def __init__(self) -> None:
        global _hooked
        self._ends = os.pipe()
        _open.add(self)
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=_close_write_ends)

    @property
    def fd(self) -> int:
        """The read end, which is for the ranks."""
        return self._ends[0]

    def close(self) -> None:
        """Let go: whoever still holds on to the read end is killed. Closing twice is fine."""
        ends, self._ends = self._ends, (-1, -1)
        for fd in ends:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def _close_write_ends() -> None:
    for line in _open:
        read, write = line._ends
        if write >= 0:
            os.close(write)
            line._ends = (read, -1)


def hold(fd: int) -> None:
    """
    In a rank: be killed when the other end of *fd* is gone, or at once when it has gone already.
    """
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):
        # No /proc, or not Linux: a thread does its best.
        threading.Thread(target=_watch, args=(fd,), name="mp-spawn lifeline", daemon=True).start()
        return
    if _hung_up(own, timeout=0):
        os.kill(os.getpid(), signal.SIGKILL)


def _hung_up(fd: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout))


def _watch(fd: int) -> None:
    if _hung_up(fd, timeout=None):
        os.kill(os.getpid(), signal.SIGKILL)
