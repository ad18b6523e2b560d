"""The exit code of a child, for which any thread may ask, and which no signal handler that raises loses.

Note [One reader]
-----------------
The kernel and the fork server tell how a child ended once. `Process.start`, `active_children` and the threads of a pool
poll every child, and who comes second finds nothing: multiprocessing concludes that the fork server is dead (exit code
255), or that the child runs (None). So there are three steps:

    look   without the lock, or wait, for what stays: a child that waitid() leaves in place, a pipe with an exit code
    read   under the lock, into a place that stays, since a handler may raise just after the kernel has told
    store  under the lock

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

HAS_WAITID = hasattr(os, "waitid")  # not on macOS before Python 3.13

STOLEN_S = 0.2
_POLL_EVERY_S, _SHORTEST_S = 0.02, 0.0005
_UNTOLD = b"\x80" * 8  # no exit code
_SERVER_KILLED = 255


def install(name: str) -> None:
    """Replace `poll` of the `Popen` in a module of multiprocessing, also for processes that it has started before."""
    if name not in _installed:
        kind: Any = importlib.import_module(f"multiprocessing.{name}").Popen
        of_server = name == "popen_forkserver"
        kind.poll = _by_one(
            kind.poll, _look_at_pipe if of_server else _look_at_child, _read_pipe if of_server else _read_child
        )
        _installed.add(name)


def is_running(pid: int) -> bool:
    """
    Tell whether a child of this process has not ended, as far as is known; its status is left.

    >>> is_running(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1"))
    True
    """
    try:
        if HAS_WAITID:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return False
    return True


def _by_one(standard: Callable[[Any, int], int | None], look: Any, read: Any) -> Any:
    @wraps(standard)
    def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is not None or type(os.waitpid) is not BuiltinFunctionType:
            return standard(self, flag)
        if not look(self, flag):
            return None
        with _lock:
            # A handler that polls may have stored it since: only what was read is stored.
            if self.returncode is None and (code := read(self, standard)) is not None:
                self.returncode = code
            return self.returncode

    return poll


def _look_at_child(popen: Any, flag: int) -> bool:
    """Tell whether a child has ended; wait for that if *flag* is 0."""
    if HAS_WAITID:
        try:
            found = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT | flag)
        except ChildProcessError:
            return True  # its status has been read
        if found is None:
            return False
        popen.seen = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    elif flag == 0:
        while popen.poll() is None and is_running(popen.pid):
            time.sleep(_POLL_EVERY_S)
    return True


def _read_child(popen: Any, standard: Callable[[Any, int], int | None]) -> int | None:
    code = standard(popen, os.WNOHANG)
    # None: read by a call that a handler has interrupted; or by code outside multiprocessing, and then it may be lost.
    return getattr(popen, "seen", None) if code is None else code


def _seen(popen: Any) -> bytearray:
    return vars(popen).setdefault("seen", bytearray(_UNTOLD))  # type: ignore[no-any-return]


def _look_at_pipe(popen: Any, flag: int) -> bool:
    """Tell whether a fork server has told the exit code of a child, or is dead; wait for that if *flag* is 0."""
    from multiprocessing.connection import wait

    return bool(wait([popen.sentinel], 0 if flag else None)) or _seen(popen) != _UNTOLD


def _read_pipe(popen: Any, _: object) -> int | None:
    from multiprocessing.forkserver import SIGNED_STRUCT

    seen = _seen(popen)
    if seen == _UNTOLD:
        with suppress(OSError):
            os.readv(popen.sentinel, [seen])
    if seen != _UNTOLD:
        return SIGNED_STRUCT.unpack(seen)[0]  # type: ignore[no-any-return]
    # The server was killed: multiprocessing takes the child for dead. The owner of a process may know better.
    has_ended = getattr(popen, "has_ended", None)
    if has_ended is None:
        return _SERVER_KILLED
    # Or a thread has read it that was in a poll of multiprocessing's at the time of `install`: it stores it soon.
    until = time.monotonic() + (0 if getattr(popen, "lost", False) else STOLEN_S)
    while popen.returncode is None and time.monotonic() < until:
        time.sleep(_SHORTEST_S)
    popen.lost = popen.returncode is None
    return _SERVER_KILLED if popen.lost and has_ended() else popen.returncode


def _renew() -> None:
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
