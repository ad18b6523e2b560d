"""The exit status of a child, for which any thread may ask.

Note [One reader]
-----------------
The kernel and the fork server tell how a child ended once. `Process.start`, `active_children` and the threads of a pool
poll every child, and who comes second finds nothing: multiprocessing concludes that the fork server is dead (exit code
255), or that the child runs (None). So, where there are several threads, each waits for an event that stays, without
the lock, and reads under it. The lock is made when it is needed: most programs start processes from one thread.
"""

from __future__ import annotations

import os
from _thread import RLock, _count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_classes: dict[type, type] = {}


def read_by_one(popen: Any) -> Any:
    """Return *popen*, of a process that was just started, so that each thread that polls it gets the same answer."""
    kind = type(popen)
    if hasattr(os, "waitid"):  # not on macOS before Python 3.13
        if kind not in _classes:
            names = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
            _classes[kind] = type(kind.__name__, (_ReadByOne, kind), names)
        popen.__class__ = _classes[kind]
    return popen


class _ReadByOne:
    method: str
    pid: int
    sentinel: int
    returncode: int | None

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process runs, unless *flag* is 0, which waits."""
        poll: Callable[[int], int | None] = super().poll  # type: ignore[misc]
        if not _count():  # this is the only thread
            return poll(flag)
        if flag != os.WNOHANG and self.returncode is None:
            self._wait_for_end()
        with vars(self).setdefault("reading", RLock()):  # reentrant: a signal handler may ask too
            return poll(os.WNOHANG)

    def _wait_for_end(self) -> None:
        if self.method == "forkserver":
            from multiprocessing.connection import wait

            wait([self.sentinel])
            return
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # it has been read
