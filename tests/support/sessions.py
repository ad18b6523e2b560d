"""The memory of this process's session: other programs of the same user have sessions of their own."""

from __future__ import annotations

import os

import mp_all as mp


def in_flight_bytes() -> int:
    """
    Return the bytes in flight in the whole session of this process, which has shared memory of its own.
    """
    segments = mp.list_segments()
    sessions = {segment.session for segment in segments if segment.owner == os.getpid()}
    assert len(sessions) == 1
    return sum(segment.in_flight_bytes for segment in segments if segment.session in sessions)
