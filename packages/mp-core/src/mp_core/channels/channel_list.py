"""The channels of other processes and the messages that wait in them, found by their descriptors in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from mp_core.sharing import backend


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
        for path in memfds(pid):
            try:
                inode = os.stat(path).st_ino
                if inode not in holders:
                    holders[inode] = set()
                    unread[inode] = _unread(path)
            except OSError:
                continue  # closed meanwhile, or not to be opened by us
            holders[inode].add(pid)
    return [ChannelEntry(tuple(sorted(holders[inode])), *each) for inode in holders for each in unread.get(inode, [])]


def is_only_here(descriptor: int) -> bool:
    """Return whether no other process of this user has the memory of a channel open."""
    own, inode = str(os.getpid()), os.fstat(descriptor).st_ino
    return not any(
        _inode(path) == inode
        for pid in os.listdir("/proc")
        if pid.isdigit() and pid != own
        for path in memfds(int(pid))
    )


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0  # closed meanwhile, or not to be opened by us


def memfds(pid: int, name: str = "mpshm") -> list[str]:
    """Return the paths by which the memfds of a process whose names begin so can be opened; libshm's by default."""
    folder = f"/proc/{pid}/fd"
    try:
        paths = [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []  # it has ended, it belongs to another user, or there is no /proc
    return [path for path in paths if _target(path).startswith(f"/memfd:{name}")]


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def open_memfd(path: str) -> int:
    """Open one of `memfds` for reading. The number may be a pipe's by now, and to open a pipe waits for its writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _unread(path: str) -> list[tuple[int, int]]:
    descriptor = open_memfd(path)
    try:
        return backend.unread_messages(descriptor) or []
    finally:
        os.close(descriptor)
