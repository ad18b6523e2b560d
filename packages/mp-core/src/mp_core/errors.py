"""What goes wrong on receiving, and what users are warned of."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["ReceiveError", "RepeatedCopyWarning", "SharedMemoryWarning", "warn_user", "was_told"]


class ReceiveError(RuntimeError):
    """
    A message came that could not be received.

    It is no `OSError` and no `EOFError`, because programs, and ``multiprocessing`` itself, take those for the end of a
    pipe.

    Parameters
    ----------
    message : str
        What was wrong, and what to do.
    errno : int, optional
        The number of the system's error behind it. It is the error's attribute ``errno``, and an `OSError` of that
        number is its ``__cause__``.

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
    An array was delivered, but not through shared memory, because there was none to be had.

    It is shown once in a process. The program is slower than it could be; its results are the same.

    Examples
    --------
    >>> issubclass(mp.SharedMemoryWarning, RuntimeWarning)
    True
    """


class RepeatedCopyWarning(UserWarning):
    """
    One large private array was copied for several messages; `share_memory` would have it copied once.

    It is shown once in a process.

    Examples
    --------
    >>> issubclass(mp.RepeatedCopyWarning, UserWarning)
    True
    """


# Whose frames lie between a user's line and a warning about it.
_BETWEEN = {"mp_all", "mp_core", "mp_cuda", "mp_reductions", "mp_spawn", "multiprocessing", "concurrent", "threading"}

_told: set[str] = set()


def was_told(once: str) -> bool:
    """Whether the subject *once* has been warned about."""
    return once in _told


def warn_user(once: str, message: str, category: type[Warning]) -> None:
    """Warn about the user's line, once for each subject *once*; never an exception, whatever the filters say."""
    if once in _told:
        return
    _told.add(once)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(message, category, stacklevel=level)
    except category:
        pass  # a filter that makes errors of warnings must not make a lost message of a slow one
