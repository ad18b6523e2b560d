"""Policy: settings for the whole process."""

from __future__ import annotations

from typing import Literal

Fallback = Literal["error", "copy"]

fallback: Fallback = "error"
exit_wait = 0.0
event_pool = 256


def set_policy(
    *,
    fallback: Fallback | None = None,
    exit_wait: float | None = None,
    event_pool: int | None = None,
    linger: float | None = None,
) -> None:
    """
    Set how this process shares device memory; arguments that are None change nothing.

    Parameters
    ----------
    fallback : {"error", "copy"}
        For memory that other processes cannot open: raise `NotShareableError`, or copy it into memory that they can.
    exit_wait : float
        Seconds that this process waits at exit for receivers of its memory.
    event_pool : int
        How many events the messages in flight may use; with more messages, a sender waits for its stream.
    linger : float
        Seconds that memory of another process stays open after its last array is gone, so that the next message with
        the same memory is received faster. It is closed at once when its owner has dropped it. 0 closes at once.

    Raises
    ------
    ValueError
        A value outside these.

    Examples
    --------
    >>> mp_cuda.set_policy(fallback="error", exit_wait=0.0)
    """
    if fallback not in (None, "error", "copy"):
        raise ValueError(f"fallback must be 'error' or 'copy', not {fallback!r}")
    numbers = {"exit_wait": exit_wait, "event_pool": event_pool, "linger": linger}
    for name, number in numbers.items():
        if number is not None and number < 0:
            raise ValueError(f"{name} must be 0 or more, not {number}")
    given = {"fallback": fallback, "exit_wait": exit_wait, "event_pool": event_pool}
    globals().update({name: value for name, value in given.items() if value is not None})
    if linger is not None:
        from mp_cuda.driver.functions import set_linger

        set_linger(linger)
