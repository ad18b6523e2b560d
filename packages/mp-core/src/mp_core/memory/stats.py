"""Statistics of shared memory, in numbers that a test can assert on."""

from __future__ import annotations

from typing import NamedTuple

from mp_core.sharing import backend, strategy


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
        - ``channels``: open connections whose messages pass through shared memory; ``channels_refused``: connections
          that were made as ordinary pipes instead, because there was no memory or descriptor for a channel
        - ``segments``: made by this process; ``mappings`` and ``descriptors``: of shared memory, in this process

    Examples
    --------
    >>> mp.memory_stats()["live_bytes"] >= 0
    True
    """
    return dict(
        copied_bytes=backend.copied_bytes(0),
        channels=backend.channel_count(),
        channels_refused=backend.channels_refused(),
        **backend.counters(),
    )


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
    backend.empty_cache()


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
    return [
        Segment(session, number, strategy.NAMES.get(code, "?"), *rest)
        for session, number, code, *rest in backend.segments()
    ]
