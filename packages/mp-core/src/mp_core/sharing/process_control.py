"""Process control: names of threads, and the parent-death signal."""

from __future__ import annotations

import operator
import signal as _signal

from mp_core.sharing import backend


def set_thread_name(name: str) -> None:
    """
    Name the calling thread as ``ps -L``, ``top -H`` and debuggers show it.

    Parameters
    ----------
    name : str
        The kernel keeps 15 bytes; a longer name is cut there, between two characters.

    Raises
    ------
    ValueError
        The name contains a NUL character.

    Examples
    --------
    >>> before = mp.get_thread_name()
    >>> mp.set_thread_name("feeder")
    >>> mp.get_thread_name()
    'feeder'
    >>> mp.set_thread_name(before)
    """
    if "\0" in name:
        raise ValueError(f"a thread name cannot contain a NUL character: {name!r}")
    backend.set_thread_name(name.encode())


def get_thread_name() -> str:
    """
    Return the kernel's name of the calling thread.

    Returns
    -------
    str
        At most 15 bytes.

    Examples
    --------
    >>> len(mp.get_thread_name().encode()) <= 15
    True
    """
    return backend.get_thread_name().decode(errors="replace")


def set_parent_death_signal(signum: int, *, parent: int = 0) -> None:
    """
    Ask the kernel to send a signal to this process when its parent dies.

    On Linux the signal comes when the parent *thread*, the thread that forked, ends. Elsewhere this does nothing.

    Parameters
    ----------
    signum : int
        The signal; 0 cancels the request.
    parent : int, default 0
        The expected pid of the parent: if that process has already ended, the signal is raised at once, so that no
        orphan survives. 0 means the current parent.

    Raises
    ------
    ValueError
        The number is not a signal.

    Examples
    --------
    >>> mp.set_parent_death_signal(0)
    """
    number = operator.index(signum)
    if number != 0 and number not in set(_signal.valid_signals()):
        raise ValueError(f"{signum!r} is not a signal number; give one of signal.valid_signals(), or 0 for none")
    backend.set_parent_death_signal(number, parent)
