"""The exit code of a child, for which any thread may ask.

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


def poll(standard: Callable[[Any, int], int | None], popen: Any, flag: int) -> int | None:
    """Do what `poll` of a `Popen` of multiprocessing does, so that each thread gets the same answer."""
    if not _count() or not hasattr(os, "waitid"):  # this is the only thread; macOS before Python 3.13
        return standard(popen, flag)
    if flag != os.WNOHANG and popen.returncode is None:
        _wait_for_end(popen)
    with vars(popen).setdefault("_reading", RLock()):  # reentrant: a signal handler may ask too
        return standard(popen, os.WNOHANG)


def _wait_for_end(popen: Any) -> None:
    if popen.method == "forkserver":
        from multiprocessing.connection import wait

        wait([popen.sentinel])
        return
    try:
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass  # it has been read
