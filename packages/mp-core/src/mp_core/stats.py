"""What the shared memory of this process amounts to, in numbers that a test can assert on."""

from __future__ import annotations

from mp_core._native import ffi, lib

__all__ = ["add_copied_bytes", "empty_cache", "memory_stats"]

_copied = 0


def add_copied_bytes(nbytes: int) -> None:
    """Count *nbytes* that a reducer has copied from private into shared memory. For the reducers' use."""
    global _copied
    _copied += nbytes


def memory_stats() -> dict[str, int]:
    """
    Counters of this process, all int; bytes where the name says so.

    - ``live_bytes``, ``live_blocks``: in blocks that this process holds
    - ``in_flight_bytes``: in blocks made by this process and carried by messages that nobody has claimed yet
    - ``cached_bytes``: free and kept warm for reuse, in memory made by this process
    - ``tree_cached_bytes``, ``cache_limit``: the same for all processes of the tree together, and its limit
    - ``copied_bytes``: copied from private into shared memory on sending, since this process began
    - ``segments``: made by this process; ``mappings`` and ``descriptors``: of shared memory, held by it

    >>> memory_stats()["live_bytes"] >= 0
    True
    """
    raw = ffi.new("mpshm_stats *")
    lib.mpshm_get_stats(raw)
    names = [name for name, _ in ffi.typeof("mpshm_stats").fields]
    return {"copied_bytes": _copied, **{name: int(getattr(raw, name)) for name in names}}


def empty_cache() -> None:
    """
    Give memory that is free and kept for reuse back to the system. Mappings stay, so nothing becomes invalid.

    >>> empty_cache()
    >>> memory_stats()["cached_bytes"]
    0
    """
    lib.mpshm_empty_cache()
