"""What can be set for a whole process."""

from __future__ import annotations

from typing import Literal

__all__ = ["Fallback", "set_policy"]

Fallback = Literal["error", "copy"]

fallback: Fallback = "error"
exit_wait = 0.0
event_pool = 256


def set_policy(
    *, fallback: Fallback | None = None, exit_wait: float | None = None, event_pool: int | None = None
) -> None:
    """
    Set how this process shares device memory; what is not given stays.

    Parameters
    ----------
    fallback : {"error", "copy"}
        What becomes of memory that cannot be opened elsewhere: a `NotShareableError`, or a copy into memory that can.
    exit_wait : float
        Seconds that this process waits at its exit for receivers of its memory.
    event_pool : int
        How many events are used for messages under way; beyond it a sender waits for its stream.

    Raises
    ------
    ValueError
        Something else than these.

    Examples
    --------
    >>> mp_cuda.set_policy(fallback="error", exit_wait=0.0)
    """
    module = globals()
    if fallback is not None:
        if fallback not in ("error", "copy"):
            raise ValueError(f"fallback is 'error' or 'copy', not {fallback!r}")
        module["fallback"] = fallback
    if exit_wait is not None:
        if exit_wait < 0:
            raise ValueError(f"exit_wait is in seconds, 0 or more, not {exit_wait}")
        module["exit_wait"] = float(exit_wait)
    if event_pool is not None:
        if event_pool < 0:
            raise ValueError(f"event_pool is a number of events, 0 or more, not {event_pool}")
        module["event_pool"] = int(event_pool)
