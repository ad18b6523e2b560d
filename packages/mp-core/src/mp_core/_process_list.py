"""The sessions of this user and their processes, as the C library reads them from their tables."""

from __future__ import annotations

from typing import NamedTuple

from mp_core._native import check, ffi, lib

__all__ = ["ProcessEntry", "SessionEntry", "list_processes"]


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
    session_room, process_room = 16, 64
    counts = ffi.new("int[2]")
    while True:
        sessions = ffi.new("mpshm_session_info[]", session_room)
        processes = ffi.new("mpshm_process_info[]", process_room)
        check(
            lib.mpshm_list_processes(sessions, session_room, counts, processes, process_room, counts + 1),
            "the sessions could not be listed",
        )
        if counts[0] <= session_room and counts[1] <= process_room:
            break
        session_room, process_room = counts[0] + 16, counts[1] + 64
    return (
        [
            SessionEntry(
                bytes(ffi.buffer(entry.session)).hex(),
                entry.processes,
                entry.manager_starts,
                entry.cached_bytes,
                entry.cache_limit,
            )
            for entry in sessions[0 : counts[0]]
        ],
        [
            ProcessEntry(
                bytes(ffi.buffer(entry.session)).hex(),
                entry.pid,
                bool(entry.attached),
                entry.held_blocks,
                entry.held_bytes,
                entry.cached_bytes,
                entry.in_flight_blocks,
                entry.in_flight_bytes,
                entry.oldest_ns / 1e9,
                entry.oldest_bytes,
                ffi.string(entry.oldest_site).decode(errors="replace"),
            )
            for entry in processes[0 : counts[1]]
        ],
    )
