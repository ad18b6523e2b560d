"""The sessions of this user and their processes, as the C library reads them from their tables."""

from __future__ import annotations

import os
from typing import NamedTuple

from mp_core.sharing import backend


class ProcessEntry(NamedTuple):
    """One process of a session, or a sender that has left while its messages are in flight."""

    session: str
    pid: int
    attached: bool
    held_blocks: int
    held_bytes: int
    cached_bytes: int
    in_flight_blocks: int
    in_flight_bytes: int
    oldest_seconds: float
    oldest_bytes: int
    oldest_line: str


class SessionEntry(NamedTuple):
    """One session: its processes, its cache, and how many managers it has had."""

    name: str
    processes: int
    manager_starts: int
    cached_bytes: int
    cache_limit: int


def list_processes() -> tuple[list[SessionEntry], list[ProcessEntry]]:
    """Return the sessions in which memory was shared, and their processes; nothing is written to a session."""
    sessions, processes = backend.sessions_and_processes()
    return [SessionEntry(*fields) for fields in sessions], [ProcessEntry(*fields) for fields in processes]


def memfds_of(pid: int, prefix: str) -> list[str]:
    """Return the paths by which those memfds of a process can be opened whose names begin with *prefix*."""
    folder = f"/proc/{pid}/fd"
    try:
        paths = [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []  # it has ended, it belongs to another user, or there is no /proc
    return [path for path in paths if _target(path).startswith(f"/memfd:{prefix}")]


def open_memfd(path: str) -> int:
    """Open one of `memfds_of` to read. Its number may be a pipe's by now, and to open a pipe waits for its writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile
