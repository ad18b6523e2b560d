"""What the shared memory of this process amounts to, in numbers that a test can assert on."""

from __future__ import annotations

from typing import NamedTuple

from mp_core import strategy
from mp_core._native import copied_bytes, ffi, lib

__all__ = ["Segment", "add_copied_bytes", "empty_cache", "list_segments", "memory_stats"]


def add_copied_bytes(nbytes: int) -> None:
    """Count *nbytes* that a reducer has copied from private into shared memory. For the reducers' use."""
    copied_bytes(nbytes)


def memory_stats() -> dict[str, int]:
    """
    Counters of this process's shared memory.

    Returns
    -------
    dict of str to int
        Bytes where the name says so.

        - ``live_bytes``, ``live_blocks``: in blocks that this process holds
        - ``in_flight_bytes``: in blocks made by this process and carried by messages that nobody has claimed yet
        - ``cached_bytes``: free and kept warm for reuse, in memory made by this process
        - ``session_cached_bytes``, ``cache_limit``: the same for all processes of the session together, and its limit
          (``tree_cached_bytes`` is the former name of the first)
        - ``copied_bytes``: copied from private into shared memory on sending, since this process began
        - ``segments``: made by this process; ``mappings`` and ``descriptors``: of shared memory, held by it

    Examples
    --------
    >>> mp.memory_stats()["live_bytes"] >= 0
    True
    """
    raw = ffi.new("mpshm_stats *")
    lib.mpshm_get_stats(raw)
    names = [name for name, _ in ffi.typeof("mpshm_stats").fields]
    stats = {"copied_bytes": copied_bytes(0), **{name: int(getattr(raw, name)) for name in names}}
    return {**stats, "tree_cached_bytes": stats["session_cached_bytes"]}


def empty_cache() -> None:
    """
    Give memory that is free and kept for reuse back to the system.

    Mappings stay, so nothing becomes invalid.

    Examples
    --------
    >>> mp.empty_cache()
    >>> mp.memory_stats()["cached_bytes"]
    0
    """
    lib.mpshm_empty_cache()


class Segment(NamedTuple):
    """
    One segment of shared memory, as `list_segments` sees it.

    Attributes
    ----------
    tree : str
        Which tree of processes it belongs to: 32 hexadecimal digits.
    row : int
        Its number in the tree.
    strategy : str
        ``"file_descriptor"`` or ``"file_system"``.
    owner : int
        The pid that allocates in it, 0 when it has died and others still use what it left.
    age : float
        Seconds since it was made.
    live_blocks, live_bytes : int
        In use, by whomever.
    in_flight_bytes : int
        Carried by messages that nobody has claimed yet.
    cached_bytes : int
        Free and kept warm.
    holders : tuple of int
        The pids that hold something in it.

    Examples
    --------
    >>> mp.Segment._fields[:4]
    ('tree', 'row', 'strategy', 'owner')
    """

    tree: str
    row: int
    strategy: str
    owner: int
    age: float
    live_blocks: int
    live_bytes: int
    in_flight_bytes: int
    cached_bytes: int
    holders: tuple[int, ...]


def list_segments() -> list[Segment]:
    """
    The segments of shared memory of every tree of this user's processes.

    ``python -m mp_all stat`` prints them.

    Returns
    -------
    list of Segment
        Oldest tree first.

    Examples
    --------
    >>> a = mp.shared.zeros(1000)
    >>> any(os.getpid() in segment.holders for segment in mp.list_segments())
    True
    """
    room = 64
    while True:
        rows = ffi.new("mpshm_info[]", room)
        count = int(lib.mpshm_list(rows, room))
        if count <= room:
            break
        room = count + 64
    return [
        Segment(
            bytes(ffi.buffer(row.session)).hex(),
            row.index,
            strategy.NAMES.get(row.strategy, "?"),
            row.owner_pid,
            row.age_ns / 1e9,
            row.live_blocks,
            row.live_bytes,
            row.in_flight_bytes,
            row.cached_bytes,
            tuple(row.holder_pids[0 : row.holders]),
        )
        for row in rows[0:count]
    ]
