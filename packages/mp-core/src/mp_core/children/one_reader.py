"""The exit code of a child, for which any thread may ask.

Note [One reader]
-----------------
The kernel and the fork server tell how a child ended once. `Process.start`, `active_children` and the threads of a pool
poll every child, and who comes second finds nothing: multiprocessing concludes that the fork server is dead (exit code
255), or that the child runs (None). So, where there are several threads, each waits for an event that stays, without
the lock, and reads under it. Another thread may have the lock at a fork: the child makes a new one.

A library that has replaced `os.waitpid`, as gevent does, has its own way to wait: then all is as in multiprocessing.
"""

from __future__ import annotations

import importlib
import os
from _thread import RLock, _count
from functools import wraps
from types import BuiltinFunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_installed: set[str] = set()
_lock = RLock()  # reentrant: a signal handler may ask too


def install(name: str) -> None:
    """Replace `poll` of the `Popen` in a module of multiprocessing, before it has started a process."""
    if name not in _installed and hasattr(os, "waitid"):  # not on macOS before Python 3.13
        kind: Any = importlib.import_module(f"multiprocessing.{name}").Popen
        kind.poll = _by_one(kind.poll, _wait_for_pipe if name == "popen_forkserver" else _wait_for_process)
        _installed.add(name)


def _by_one(standard: Callable[[Any, int], int | None], wait_for_end: Callable[[Any], None]) -> Any:
    @wraps(standard)
    def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is not None or not _count() or type(os.waitpid) is not BuiltinFunctionType:
            return standard(self, flag)
        if flag != os.WNOHANG:
            wait_for_end(self)
        with _lock:
            return standard(self, os.WNOHANG)

    return poll


def _wait_for_pipe(popen: Any) -> None:
    from multiprocessing.connection import wait

    wait([popen.sentinel])


def _wait_for_process(popen: Any) -> None:
    try:
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass  # it has been read


def _renew() -> None:
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
