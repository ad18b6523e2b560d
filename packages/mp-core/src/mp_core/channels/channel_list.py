"""The channels of other processes and the messages that wait in them, found by their descriptors in /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mp_core.memory.process_list import memfds_of, open_memfd
from mp_core.sharing import backend

_LIBSHM = "mpshm"  # as the names of its memfds begin


class ChannelEntry(NamedTuple):
    """One direction of a channel: the processes that have an end, and what was sent and not received."""

    pids: tuple[int, ...]
    unread: int
    nbytes: int


def list_channels(pids: Iterable[int]) -> list[ChannelEntry]:
    """Return the channels of these processes; nothing is written to a channel, and no lock is taken."""
    holders: dict[int, set[int]] = {}
    unread: dict[int, list[tuple[int, int]]] = {}
    for pid in pids:
        for path in memfds_of(pid, _LIBSHM):
            try:
                inode = os.stat(path).st_ino
                if inode not in holders:
                    holders[inode] = set()
                    unread[inode] = _unread(path)
            except OSError:
                continue  # closed meanwhile, or not to be opened by us
            holders[inode].add(pid)
    return [ChannelEntry(tuple(sorted(holders[inode])), *each) for inode in holders for each in unread.get(inode, [])]


def is_only_here(descriptor: int, likely: Iterable[int], goes_on: Callable[[], bool]) -> bool:
    """
    Return whether no other process of this user has the memory of a channel open, with the *likely* ones looked at
    first; False if it is not to go on. There may be thousands of files to look at.
    """
    inode = os.fstat(descriptor).st_ino
    everybody = (int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in (*likely, *everybody):
        if not goes_on():
            return False
        if pid != os.getpid() and any(_inode(path) == inode for path in memfds_of(pid, _LIBSHM)):
            return False
    return True


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0  # closed meanwhile, or not to be opened by us


def _unread(path: str) -> list[tuple[int, int]]:
    descriptor = open_memfd(path)
    try:
        return backend.unread_messages(descriptor) or []
    finally:
        os.close(descriptor)
