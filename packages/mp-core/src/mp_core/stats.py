"""What the shared memory of this process amounts to, in numbers that a test can assert on."""

from __future__ import annotations

from mp_core import block as _block

__all__ = ["add_copied_bytes", "empty_cache", "memory_stats"]

_copied = 0


def add_copied_bytes(nbytes: int) -> None:
    """Count *nbytes* that a reducer has copied from private into shared memory. For the reducers' use."""
    global _copied
    _copied += nbytes


def memory_stats() -> dict[str, int]:
    """
    Counters of this process, all int: bytes unless the name says otherwise.

    ``live_bytes``: in blocks that this process holds; ``cached_bytes``: kept for reuse; ``copied_bytes``: copied into
    shared memory on sending, since the start; ``segments``, ``descriptors``, ``mappings``: how many this process holds.

    >>> memory_stats()["live_bytes"] >= 0
    True
    """
    with _block._lock:
        blocks = list(_block._live.values())
    return {
        "live_bytes": sum(block.nbytes for block in blocks),
        "cached_bytes": 0,
        "copied_bytes": _copied,
        "segments": len(blocks),
        "descriptors": sum(block.strategy == "file_descriptor" for block in blocks),
        "mappings": len(blocks),
    }


def empty_cache() -> None:
    """
    Give memory that is kept for reuse back to the system.

    >>> empty_cache()
    >>> memory_stats()["cached_bytes"]
    0
    """
