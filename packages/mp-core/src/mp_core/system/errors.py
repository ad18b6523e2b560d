"""The error of receiving, and the warnings for users."""

from __future__ import annotations

import errno as number
import os
import sys
import threading
import warnings
from types import FrameType

from mp_core.system import packages

_SILENT = "the shared memory manager (shm-manager) does not answer; if it is stopped, kill -CONT it"
_ALLOW = "allow shm-manager the system calls eventfd2, accept4, getsockopt and fork, which a sandbox may refuse"
#: The texts for errors of a session whose manager cannot be reached, by errno.
NO_MANAGER = {
    number.ETIMEDOUT: _SILENT,
    number.EAGAIN: _SILENT,
    number.ECHILD: f"the shared memory manager (shm-manager) cannot start; {_ALLOW}, and one more process (ulimit -u)",
    number.ENOPROTOOPT: f"the system does not tell whose the shared memory manager is; {_ALLOW}",
    number.ECONNRESET: f"the shared memory manager (shm-manager) ends whenever it is started; {_ALLOW}",
    number.ENOLINK: "this process has closed its descriptors and the folder of its session is gone, or it has changed "
    "its user before its parent shared anything, so nothing leads to the session; start the process again, kill -CONT "
    "a stopped shm-manager, or make a shared array before a process starts that changes its user",
}


class ReceiveError(RuntimeError):
    """
    Report that a message came but could not be received.

    It is neither an `OSError` nor an `EOFError`, because programs, and ``multiprocessing`` itself, take those for the
    end of a pipe.

    Parameters
    ----------
    message : str
        The problem, and what to do.
    errno : int, optional
        The number of the system error that caused it. It becomes the attribute ``errno``, and an `OSError` of that
        number becomes the ``__cause__``.

    Examples
    --------
    >>> error = mp.ReceiveError("no descriptor left", 24)
    >>> error.errno, error.__cause__
    (24, OSError(24, 'Too many open files'))
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        if errno is not None:
            self.__cause__ = OSError(errno, os.strerror(errno))

    def __reduce__(self) -> tuple[type[ReceiveError], tuple[str, int | None]]:
        return type(self), (str(self), self.errno)


class SharedMemoryWarning(RuntimeWarning):
    """
    Warn that an array was delivered, but not through shared memory, because none was available.

    It is shown once per process. The program is slower than it could be; its results are the same.

    Examples
    --------
    >>> issubclass(mp.SharedMemoryWarning, RuntimeWarning)
    True
    """


class RepeatedCopyWarning(UserWarning):
    """
    Warn that a large private array was copied for several messages; with `share_memory` it is copied once.

    It is shown once per process.

    Examples
    --------
    >>> issubclass(mp.RepeatedCopyWarning, UserWarning)
    True
    """


class OwnerDiedWarning(RuntimeWarning):
    """
    Warn that a lock, or a unit of a semaphore, was acquired from a process that died while it had it.

    The data that the lock guards may be half changed: check it, or set it up again.

    Examples
    --------
    >>> issubclass(mp.OwnerDiedWarning, RuntimeWarning)
    True
    """


#: The packages of this project, but one for a library, which registers itself (packages.py).
OURS = {"mp_all", "mp_core", "mp_cuda", "mp_nodes", "mp_pool", "mp_reductions", "mp_spawn"}
_STANDARD = {"asyncio", "concurrent", "multiprocessing", "threading"}

_told: set[str] = set()


def was_told(once: str) -> bool:
    """Return whether a warning about the subject *once* was shown."""
    return once in _told


def warn_user(once: str, message: str, category: type[Warning]) -> None:
    """Warn about the user's line, once for each subject *once*; never raise, whatever the filters say."""
    if once in _told:
        return
    _told.add(once)
    frame = _user_frame()[1]
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(
            message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry
        )
    except category:
        pass  # a filter that turns warnings into errors must not lose the message


def warn_sent_by_value(what: str, nbytes: int, error: Exception) -> None:
    """Warn, the first time, that *what*, of so many bytes, goes through the pipe because of *error*."""
    why = "shared memory ran out" if isinstance(error, MemoryError) else "memory cannot be shared"
    message = f"{why}, so {what} of {nbytes} bytes (and maybe others) travels through the pipe: {error}"
    warn_user("sent by value", message, SharedMemoryWarning)


def user_stack_level() -> int:
    """Return the `stacklevel` with which the caller warns about the user's line."""
    return _user_frame()[0] - 1


def user_line() -> str:
    """Return the file and line of the user's line."""
    frame = _user_frame()[1]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _user_frame() -> tuple[int, FrameType]:
    level, frame = _outside(sys._getframe())
    if _is_between(frame):  # a thread of ours works for the program, whose main thread waits in a call, or goes on
        main = sys._current_frames().get(threading.main_thread().ident or 0, frame)
        frame = _outside(main)[1]
    return level, frame


def _outside(frame: FrameType) -> tuple[int, FrameType]:
    level = 0
    while frame.f_back is not None and _is_between(frame):
        level, frame = level + 1, frame.f_back
    return level, frame


def _is_between(frame: FrameType) -> bool:
    """Tell whether the frame lies between a user's line and a warning about it."""
    name = frame.f_globals.get("__name__")
    if name is None:
        return True  # code that a library has made, as the properties of multiprocessing.sharedctypes
    package = name.partition(".")[0]
    return package in OURS or package in _STANDARD or package in packages.registered()
