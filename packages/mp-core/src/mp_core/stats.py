"""Statistics of shared memory, in numbers that a test can assert on."""

from __future__ import annotations

from typing import NamedTuple

from mp_core import strategy
from mp_core._deprecated import warn_renamed
from mp_core._native import copied_bytes, ffi, lib

__all__ = ["Segment", "add_copied_bytes", "empty_cache", "list_segments", "memory_stats"]


def add_copied_bytes(nbytes: int) -> None:
    """Count *nbytes* that a reducer has copied from private into shared memory."""
    copied_bytes(nbytes)


class _Counters(dict[str, int]):
    """The counters by name; the old name of one still works."""

    def __missing__(self, name: str) -> int:
        if name != "tree_cached_bytes":
            raise KeyError(name)
        warn_renamed('memory_stats()["tree_cached_bytes"]', "session_cached_bytes")
        return self["session_cached_bytes"]


def memory_stats() -> dict[str, int]:
    """
    Return counters of this process's shared memory.

    Returns
    -------
    dict of str to int
        Counts, and bytes where the name says so.

        - ``live_bytes``, ``live_blocks``: in blocks that this process references
        - ``in_flight_bytes``: in blocks made by this process, carried by messages that are not received yet
        - ``lock_bytes``: in locks of this process, which no other number contains
        - ``cached_bytes``: free and cached for reuse, in memory made by this process
        - ``session_cached_bytes``, ``cache_limit``: the same for all processes of the session together, and its limit
        - ``copied_bytes``: copied from private into shared memory on sending, since this process began
        - ``segments``: made by this process; ``mappings`` and ``descriptors``: of shared memory, in this process

    Examples
    --------
    >>> mp.memory_stats()["live_bytes"] >= 0
    True
    """
    raw = ffi.new("mpshm_stats *")
    lib.mpshm_get_stats(raw)
    fields = [name for name, _ in ffi.typeof("mpshm_stats").fields]
    counters = {name: int(getattr(raw, name)) for name in fields}
    return _Counters(copied_bytes=copied_bytes(0), **counters)


def empty_cache() -> None:
    """
    Return free cached memory to the system.

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
    Describe one segment of shared memory; `list_segments` returns them.

    Attributes
    ----------
    session : str
        The id of its session: 32 hexadecimal digits.
    number : int
        Its number in the session.
    strategy : str
        ``"file_descriptor"`` or ``"file_system"``.
    owner : int
        The pid of the process that allocates in it, 0 if that has ended and others still use its blocks.
    age : float
        Seconds since it was made.
    live_blocks, live_bytes : int
        In use by any process.
    in_flight_bytes : int
        Carried by messages that are not received yet.
    cached_bytes : int
        Free and cached for reuse.
    holders : tuple of int
        The pids of the processes that reference blocks in it.

    Examples
    --------
    >>> mp.Segment._fields[:4]
    ('session', 'number', 'strategy', 'owner')
    """

    session: str
    number: int
    strategy: str
    owner: int
    age: float
    live_blocks: int
    live_bytes: int
    in_flight_bytes: int
    cached_bytes: int
    holders: tuple[int, ...]

    @property
    def tree(self) -> str:
        """The old name of `session`."""
        warn_renamed("Segment.tree", "Segment.session")
        return self.session

    @property
    def row(self) -> int:
        """The old name of `number`."""
        warn_renamed("Segment.row", "Segment.number")
        return self.number


def list_segments() -> list[Segment]:
    """
    Return the segments of every session of this user's processes.

    ``python -m mp_all stat`` prints them.

    Returns
    -------
    list of Segment
        The oldest session first.

    Examples
    --------
    >>> a = mp.shared.zeros(1000)
    >>> any(os.getpid() in segment.holders for segment in mp.list_segments())
    True
    """
    room = 64
    while True:
        entries = ffi.new("mpshm_info[]", room)
        count = int(lib.mpshm_list(entries, room))
        if count <= room:
            break
        room = count + 64
    return [
        Segment(
            bytes(ffi.buffer(entry.session)).hex(),
            entry.index,
            strategy.NAMES.get(entry.strategy, "?"),
            entry.owner_pid,
            entry.age_ns / 1e9,
            entry.live_blocks,
            entry.live_bytes,
            entry.in_flight_bytes,
            entry.cached_bytes,
            tuple(entry.holder_pids[0 : entry.holders]),
        )
        for entry in entries[0:count]
    ]
