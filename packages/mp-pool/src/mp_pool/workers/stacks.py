"""`Stacks`: the file into which the workers of a pool write their Python stacks when they crash.

One file for a pool, with a place for each worker, which opens it anew: the offset at which `faulthandler` writes
belongs to an open file. Without memfds or ``/proc``, or with no descriptor left, there are no stacks.
"""

from __future__ import annotations

import os
import signal

from mp_pool.workers.worker_main import PLACE

CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL, -signal.SIGBUS}


class Stacks:
    """The pool's side. Forked workers inherit the descriptor."""

    fd = -1

    def open(self) -> None:
        import faulthandler  # noqa: F401  forked workers have it then

        try:
            self.fd = os.memfd_create("stacks of workers")
        except (AttributeError, OSError):
            pass

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def take(self, index: int, exitcode: int | None) -> str:
        """Return what the worker *index*, which has ended, has written; empty unless it has crashed."""
        if self.fd < 0 or exitcode not in CRASHES:
            return ""
        text = os.pread(self.fd, PLACE, index * PLACE).rstrip(b"\0")
        os.pwrite(self.fd, bytes(len(text)), index * PLACE)  # for the next worker there
        return _without_us(text.decode(errors="replace"))


def _without_us(text: str) -> str:
    """
    Leave out the frames below the task's function, and the list of extension modules.

    >>> print(_without_us('''Thread 1:
    ...   File "a.py", line 3 in f
    ...   File "mp_pool/workers/worker_main.py", line 9 in _loop
    ...   File "process.py", line 9 in run
    ...
    ... Extension modules: a'''))
    Thread 1:
      File "a.py", line 3 in f
    """
    kept: list[str] = []
    is_ours = False
    for line in text.partition("\nExtension modules:")[0].splitlines():
        is_ours = line.startswith(" ") and (is_ours or "mp_pool/workers/worker_main.py" in line)
        if not is_ours:
            kept.append(line)
    return "\n".join(kept).strip()
