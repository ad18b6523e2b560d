"""The calls to libshm that a start does not need, through cffi: statistics, listings, names of threads.

cffi and the types of the library take as much memory as all modules of Python of ours, so this module is imported with
the first of these calls; `backend` has its names.
"""

from __future__ import annotations

import os

from mp_core._libshm import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "address_of",
    "check",
    "compiled_version",
    "counters",
    "empty_cache",
    "failed_call",
    "ffi",
    "get_thread_name",
    "lib",
    "refused_version",
    "segments",
    "sessions_and_processes",
    "set_message_line",
    "set_parent_death_signal",
    "set_thread_name",
    "unread_messages",
]


def check(rc: int, what: str) -> int:
    """
    Return *rc*, or raise an `OSError` about *what* if it is a negative errno.

    Python chooses the subclass by the number: `FileNotFoundError`, `PermissionError` and so on.
    """
    if rc >= 0:
        return rc
    raise OSError(-rc, f"{what}: {os.strerror(-rc)}")


def compiled_version() -> str:
    text: str = ffi.string(lib.mpshm_version()).decode()
    return text


def refused_version() -> str:
    """Return the version of the library that made the files which this process refused last; empty if it is unknown."""
    text: str = ffi.string(lib.mpshm_refused_version()).decode()
    return text


def failed_call(number: int) -> str:
    """Return the system call that failed last in this thread, with that errno; empty if it is unknown."""
    text: str = ffi.string(lib.mpshm_failed_call(number)).decode()
    return text


def address_of(memory: Any) -> int:
    """Return the address of the first byte of a contiguous buffer, which may be read-only."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def counters() -> dict[str, int]:
    """Return the statistics of this process by name."""
    raw = ffi.new("mpshm_stats *")
    lib.mpshm_get_stats(raw)
    return {name: int(getattr(raw, name)) for name, _ in ffi.typeof("mpshm_stats").fields}


def empty_cache() -> None:
    """Give free memory back to the system."""
    lib.mpshm_empty_cache()


def segments() -> list[tuple[Any, ...]]:
    """Return the fields of each `Segment` of this user, with the number of its strategy in place of the name."""
    room = 64
    while True:
        entries = ffi.new("mpshm_info[]", room)
        count = int(lib.mpshm_list(entries, room))
        if count <= room:
            break
        room = count + 64
    return [
        (
            bytes(ffi.buffer(entry.session)).hex(),
            entry.index,
            entry.strategy,
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


def unread_messages(descriptor: int) -> list[tuple[int, int]] | None:
    """Return the unread messages and their bytes for each direction of a channel; None if it is no channel."""
    found = ffi.new("mpshm_unread[2]")
    count = lib.mpshm_channel_unread(descriptor, found)
    return None if count < 0 else [(entry.messages, entry.nbytes) for entry in found[0:count]]


def sessions_and_processes() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the fields of each `SessionEntry` and of each `ProcessEntry` of this user."""
    session_room, process_room = 16, 64
    counts = ffi.new("int[2]")
    while True:
        sessions = ffi.new("mpshm_session_info[]", session_room)
        processes = ffi.new("mpshm_process_info[]", process_room)
        lib.mpshm_list_processes(sessions, session_room, counts, processes, process_room, counts + 1)
        if counts[0] <= session_room and counts[1] <= process_room:
            break
        session_room, process_room = counts[0] + 16, counts[1] + 64
    return (
        [
            (
                bytes(ffi.buffer(entry.session)).hex(),
                entry.processes,
                entry.manager_starts,
                entry.cached_bytes,
                entry.cache_limit,
            )
            for entry in sessions[0 : counts[0]]
        ],
        [
            (
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


def set_message_line(line: str | None) -> None:
    """Note the line of the program that sends the next messages of this thread; None for no line."""
    lib.mpshm_set_site(ffi.NULL if line is None else line.encode(errors="replace"))


def set_thread_name(name: bytes) -> None:
    check(lib.mpshm_set_thread_name(name), "set_thread_name")


def get_thread_name() -> bytes:
    name = ffi.new("char[]", lib.MPSHM_THREAD_NAME_SIZE)
    check(lib.mpshm_get_thread_name(name), "get_thread_name")
    text: bytes = ffi.string(name)
    return text


def set_parent_death_signal(number: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent dies."""
    check(lib.mpshm_set_pdeathsig(number, parent), "prctl(PR_SET_PDEATHSIG)")
