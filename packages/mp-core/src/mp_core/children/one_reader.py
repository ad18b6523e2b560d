"""The exit code of a child, for which any thread may ask, and which no signal handler that raises loses.

Note [One reader]
-----------------
The kernel and the fork server tell how a child ended once. `Process.start`, `active_children` and the threads of a pool
poll every child, and who comes second finds nothing: multiprocessing concludes that the fork server is dead (exit code
255), or that the child runs (None). So there are three steps:

    wait   without the lock, for an event that stays: a pipe at its end, a child that waitid() leaves in place
    look   under the lock, into a place that stays, since a handler may raise just after the kernel has told
    read   under the lock

Another thread may have the lock at a fork: the child makes a new one.

A library that has replaced `os.waitpid`, as gevent does, has its own way to wait: then all is as in multiprocessing.
"""

from __future__ import annotations

import importlib
import os
import time
from _thread import RLock
from contextlib import suppress
from functools import wraps
from types import BuiltinFunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_installed: set[str] = set()
_lock = RLock()  # reentrant: a signal handler may ask too

_POLL_EVERY_S = 0.02
_UNTOLD = b"\x80" * 8  # no exit code
_SERVER_KILLED = 255


def install(name: str) -> None:
    """Replace `poll` of the `Popen` in a module of multiprocessing, before it has started a process."""
    if name not in _installed:
        kind: Any = importlib.import_module(f"multiprocessing.{name}").Popen
        steps = (_wait_for_server, _read_server) if name == "popen_forkserver" else (_wait_for_process, _read_process)
        kind.poll = _by_one(kind.poll, *steps)
        _installed.add(name)


def is_running(pid: int) -> bool:
    """
    Tell whether a child of this process has not ended, as far as is known; its status is left.

    >>> is_running(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1"))
    True
    """
    try:
        if hasattr(os, "waitid"):
            return _status_of(pid) is None
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return False
    return True


def _status_of(pid: int) -> int | None:
    """Return the exit code of a child, which keeps it; None while it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _by_one(standard: Callable[[Any, int], int | None], wait_for_end: Any, read: Any) -> Any:
    @wraps(standard)
    def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is not None or type(os.waitpid) is not BuiltinFunctionType:
            return standard(self, flag)
        if flag != os.WNOHANG:
            wait_for_end(self)
        with _lock:
            # A handler that polls may have read it since: only what was read is stored.
            if self.returncode is None and (code := read(self, standard)) is not None:
                self.returncode = code
            return self.returncode

    return poll


def _wait_for_process(popen: Any) -> None:
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # it has been read
    else:  # macOS before Python 3.13
        while popen.poll() is None and is_running(popen.pid):
            time.sleep(_POLL_EVERY_S)


def _read_process(popen: Any, standard: Callable[[Any, int], int | None]) -> int | None:
    if hasattr(os, "waitid"):
        try:
            if (status := _status_of(popen.pid)) is None:
                return None
            popen.seen = status
        except ChildProcessError:
            # Read by a call that a handler has interrupted; or by code outside multiprocessing, and then it is lost.
            return getattr(popen, "seen", None)
    code = standard(popen, os.WNOHANG)
    return getattr(popen, "seen", None) if code is None else code


def _wait_for_server(popen: Any) -> None:
    from multiprocessing.connection import wait

    wait([popen.sentinel])


def _read_server(popen: Any, _: object) -> int | None:
    from multiprocessing.connection import wait
    from multiprocessing.forkserver import SIGNED_STRUCT

    seen = vars(popen).setdefault("seen", bytearray(_UNTOLD))
    if seen == _UNTOLD:
        if not wait([popen.sentinel], 0):
            return None
        with suppress(OSError):
            os.readv(popen.sentinel, [seen])
    if seen != _UNTOLD:
        return SIGNED_STRUCT.unpack(seen)[0]  # type: ignore[no-any-return]
    # The server was killed: multiprocessing takes the child for dead. The owner of a process may know better.
    has_ended = getattr(popen, "has_ended", None)
    popen.lost = True
    return _SERVER_KILLED if has_ended is None or has_ended() else None


def _renew() -> None:
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
