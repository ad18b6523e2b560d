"""Statistics: how much device memory this process shares."""

from __future__ import annotations

from mp_cuda import finalizer_queue, ipc_events
from mp_cuda.exports import exports
from mp_cuda.imports import lingering, mappings

__all__ = ["ipc_stats"]


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
    sent = list(exports.values())
    made, _, imported = ipc_events.counts()
    return {
        "live_sends": len(sent),
        "live_bytes": sum(nbytes for export in sent for _, nbytes, _ in list(export.places.values())),
        "claims": sum(export.lease.references for export in sent),
        "mappings": len(mappings),
        "lingering": len(lingering),
        "imported_events": imported,
        "pool_events": made,
        "pending": finalizer_queue.pending(),
    }
