"""Messages that expire: `set_message_timeout`. `libshm/src/reference/message_timeout.c` keeps the deadlines."""

from __future__ import annotations

import math

from mp_core.sharing import backend
from mp_core.system import settings

_seconds: float | None = None


def set_message_timeout(seconds: float | None) -> None:
    """
    Let the messages that this process sends from now on expire, so that one that is never read gives its memory back.

    A message that no process has received after *seconds* is lost: its memory is freed, and a process that receives it
    later gets a `ReceiveError` in its own ``get`` or ``recv``. That applies to each message that carries shared memory,
    also to the arguments of a process that starts, to the tasks that wait for a worker of a pool, and to results. So
    choose more than the slowest reader needs.

    Memory is freed when no process holds it: an array that its sender keeps stays its sender's. A message of the same
    array that was sent later, or without a timeout, also keeps it. Locks and leases do not expire.

    Children started after this inherit it. ``MP_MESSAGE_TIMEOUT`` in the environment sets it from the start.

    Parameters
    ----------
    seconds : float or None
        More than 0, rounded up to a tenth of a second. None, the default, for no timeout.

    Raises
    ------
    ValueError
        *seconds* is not more than 0, or infinite, or ``float`` makes no number of it.

    Examples
    --------
    >>> mp.set_message_timeout(600)
    >>> mp.get_message_timeout()
    600.0
    >>> mp.set_message_timeout(None)
    """
    global _seconds
    if seconds is not None:
        seconds = float(seconds)
        if not seconds > 0 or math.isinf(seconds):
            raise ValueError(f"a message timeout is a number of seconds above 0, or None for none; not {seconds!r}")
    backend.set_message_timeout(0 if seconds is None else max(1, int(min(seconds * 1e9, 2.0**63))))
    _seconds = seconds


def get_message_timeout() -> float | None:
    """
    Return the timeout of the messages that this process sends, in seconds.

    Returns
    -------
    float or None
        None when they do not expire.

    Examples
    --------
    >>> mp.get_message_timeout() is None
    True
    """
    return _seconds


if settings.message_timeout() is not None:
    set_message_timeout(settings.message_timeout())
