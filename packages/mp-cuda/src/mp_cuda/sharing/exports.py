"""Exports: collect, wait for and count the memory that other processes use or may receive (`native/exports.c`)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

from mp_cuda.driver import at_exit, cuda_driver, finalizer_queue, policy
from mp_cuda.driver.functions import count_mappings, live_exports, look_at_exports, set_hooks
from mp_cuda.sharing import ipc_events

in_use: dict[type, Callable[[Any], bool]] = {}
"""Whether the program still uses an object of that type; by default it does if others refer to the object."""
set_hooks(in_use=in_use)
SOON_S, POLL_S = 0.0002, 0.01  # the first pause of a wait, and the longest
LINGERING_S = 0.5  # for a receiver to close what it has open only for the next message; it looks every 50 ms


def ipc_collect(*, in_flight_older_than: float | None = None) -> int:
    """
    Free now what can be freed.

    You need not call this: mp_cuda notices within a fraction of a second that a receiver has released memory, has ended
    or was killed. Messages that no process has received yet keep their memory. If arrays of other processes were
    dropped here, the call waits for this process's own work on their device, and closes their memory. Other processes
    that have memory of this one open only for the next message close it soon.

    Parameters
    ----------
    in_flight_older_than : float
        Seconds. Revoke messages that have been in flight for longer; receiving one later raises `StaleHandleError`.

    Returns
    -------
    int
        How many sent messages were freed.

    Examples
    --------
    >>> mp_cuda.ipc_collect()
    0
    """
    return _collect(in_flight_older_than, wait=True)


def _collect(in_flight_older_than: float | None, *, wait: bool) -> int:
    before = len(live_exports())
    look_at_exports(True, -math.inf)
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait, close=True)
    look_at_exports(True, -math.inf if in_flight_older_than is None else time.monotonic() - in_flight_older_than)
    if cuda_driver.started():
        finalizer_queue.drain(wait=wait)
    return max(before - len(live_exports()), 0)


def collect_lingering() -> None:
    """Free what can be freed, and wait a moment for receivers to close what they have open only for later messages."""
    deadline = time.monotonic() + LINGERING_S
    ipc_collect()
    while any(lingers for _, _, lingers in live_exports()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
        ipc_collect()


def wait_released(timeout: float | None = None) -> bool:
    """
    Wait until no other process uses, or can still receive, memory of this one.

    Parameters
    ----------
    timeout : float
        Seconds to wait, without limit if None.

    Returns
    -------
    bool
        False if *timeout* seconds were not enough.

    Examples
    --------
    >>> mp_cuda.wait_released(timeout=0)
    True
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SOON_S
    while True:
        # Do not wait for this process's own work on memory it received: that may take longer than the timeout.
        _collect(None, wait=False)
        if not live_exports():
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)


at_exit.register(at_exit.Step.EXPORTS)(ipc_collect)


@at_exit.register(at_exit.Step.REPORT)
def _warn_at_exit() -> None:
    # What only lingers elsewhere is closed there as soon as it is recalled.
    left = live_exports()
    grace = LINGERING_S if any(lingers for _, _, lingers in left) else 0.0
    if left and not wait_released(max(policy.exit_wait, grace)):
        warnings.warn(
            f"this process ends while other processes use, or may still receive, {len(live_exports())} of its messages "
            "with device arrays; their memory ends with it. Call mp_cuda.wait_released() first, or "
            "set_policy(exit_wait=seconds)",
            ResourceWarning,
            stacklevel=1,
        )


def ipc_stats() -> dict[str, int]:
    """
    Count what this process shares.

    Returns
    -------
    dict of str to int
        Counts, and bytes where the name says so.

        - ``live_sends``, ``live_bytes``: messages of this process that others use or may receive, and the bytes of the
          allocations behind them (an allocation sent in two messages counts twice)
        - ``claims``: receivers and messages in flight
        - ``mappings``, ``lingering``: allocations of other processes that are open here, and how many of them only for
          the next message
        - ``imported_events``, ``pool_events``: events of other processes that are open, events made for messages
        - ``pending``: dropped objects that are not closed yet

    Examples
    --------
    >>> mp_cuda.ipc_stats()["mappings"]
    0
    """
    sent = live_exports()
    made, _, imported = ipc_events.counts()
    mappings, lingering, dropped = count_mappings()
    return {
        "live_sends": len(sent),
        "live_bytes": sum(nbytes for nbytes, _, _ in sent),
        "claims": sum(references for _, references, _ in sent),
        "mappings": mappings,
        "lingering": lingering,
        "imported_events": imported,
        "pool_events": made,
        "pending": finalizer_queue.pending() + dropped,
    }
