"""The engine: load the compiled library. No other module of mp_core imports it.

`ffi` and `lib` are cffi's view of libshm; the functions below call it. The other functions come from the module
`_block`, which is written by hand (`native/`) and compiled into the same file, so both use one copy of libshm. `c_api`
is a capsule with the C functions that other compiled packages use (`native/mp_core.h`). `_without_engine.py` has the
same functions for platforms without shared memory.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader

from mp_core._version import __version__

try:
    from mp_core import _libshm
except ModuleNotFoundError as error:
    raise ImportError(
        "this mp-core has no engine (mp_core._libshm): it was built with MP_WITHOUT_ENGINE=1. Install mp-core again "
        "without that variable, or set it here too, to work without shared memory"
    ) from error
from mp_core._libshm import ffi, lib

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ENGINE",
    "LINE_SIZE",
    "STRATEGIES",
    "Buffer",
    "Channel",
    "Journal",
    "PickleReader",
    "PickleWriter",
    "SemLock",
    "TryLock",
    "allocate",
    "attach_to",
    "attach_with",
    "beside",
    "by_value",
    "c_api",
    "channel_count",
    "channels_refused",
    "check",
    "compiled_version",
    "condition_notify",
    "copied_bytes",
    "copy_large",
    "counters",
    "create_sync",
    "discard",
    "discard_unread",
    "empty_cache",
    "ffi",
    "find",
    "find_storage",
    "get_thread_name",
    "handle_alive",
    "is_of_atoms",
    "is_small",
    "lib",
    "library_name",
    "load_beside",
    "loads",
    "make_channel",
    "message_begin",
    "message_begin_by_value",
    "message_depth",
    "message_end",
    "move_storage",
    "only_atoms",
    "open_channel",
    "open_for_child",
    "own_session",
    "pack_tensors",
    "parse_bytes",
    "peer",
    "plain_data",
    "plain_loads",
    "plain_pickle",
    "rebuild_block",
    "rebuild_copy",
    "receive_tensors",
    "reduce_block",
    "reduce_copy",
    "reference_of",
    "refused_version",
    "remember_storage",
    "segments",
    "session_of",
    "sessions_and_processes",
    "set_message_line",
    "set_message_timeout",
    "set_parent_death_signal",
    "set_thread_name",
    "setup",
    "setup_beside",
    "setup_channels",
    "setup_locks",
    "setup_receiving",
    "setup_storages",
    "setup_tensors",
    "share",
    "strategy",
    "sync_handle",
    "unread_messages",
]

#: Whether there is shared memory.
ENGINE = True
#: The bytes that the line of a message may have, with the zero at its end.
LINE_SIZE = int(lib.MPSHM_SITE_SIZE)
#: The strategies, the default first, with the number of each.
STRATEGIES: dict[str, int] = {"file_descriptor": lib.MPSHM_FILE_DESCRIPTOR, "file_system": lib.MPSHM_FILE_SYSTEM}


def check(rc: int, what: str | None = None) -> int:
    """
    Return *rc*, or raise an `OSError` if it is a negative errno.

    Python chooses the subclass by the number: `FileNotFoundError`, `PermissionError` and so on.
    """
    if rc >= 0:
        return rc
    message = os.strerror(-rc) if what is None else f"{what}: {os.strerror(-rc)}"
    raise OSError(-rc, message)


def compiled_version() -> str:
    """Return the version of the compiled library."""
    text: str = ffi.string(lib.mpshm_version()).decode()
    return text


def _same_version() -> None:
    compiled = compiled_version()
    if compiled != __version__:
        raise ImportError(
            f"mp_core {__version__} found a compiled library of version {compiled} at {_libshm.__file__}: "
            "two installations are mixed; reinstall mp-core"
        )


def _load_block() -> Any:
    """Load the second module in the file of `_libshm`; the import system finds only the one that the file names."""
    name = "mp_core._block"
    loader = ExtensionFileLoader(name, _libshm.__file__)
    spec = importlib.util.spec_from_file_location(name, _libshm.__file__, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module  # its functions are pickled by that name
    return module


_same_version()
_manager = os.path.join(os.path.dirname(_libshm.__file__), "shm-manager")
check(lib.mpshm_set_manager(os.fsencode(_manager)), "the path of shm-manager")

_block = _load_block()
c_api: Any = _block.c_api  # PyCapsule_Import finds it under "mp_core._native.c_api"
Buffer: type = _block.Buffer
allocate: Any = _block.allocate
find: Any = _block.find
setup: Any = _block.setup
setup_receiving: Any = _block.setup_receiving
strategy: Any = _block.strategy
rebuild_block: Any = _block.rebuild_block
copy_large: Any = _block.copy_large
PickleReader: type = _block.PickleReader
PickleWriter: type = _block.PickleWriter
rebuild_copy: Any = _block.rebuild_copy
reduce_block: Any = _block.reduce_block
reduce_copy: Any = _block.reduce_copy
discard: Any = _block.discard
discard_unread: Any = _block.discard_unread
loads: Any = _block.loads
message_begin: Any = _block.message_begin
message_begin_by_value: Any = _block.message_begin_by_value
message_depth: Any = _block.message_depth
message_end: Any = _block.message_end
by_value: Any = _block.by_value
share: Any = _block.share
beside: Any = _block.beside
load_beside: Any = _block.load_beside
setup_beside: Any = _block.setup_beside
setup_storages: Any = _block.setup_storages
move_storage: Any = _block.move_storage
remember_storage: Any = _block.remember_storage
find_storage: Any = _block.find_storage
pack_tensors: Any = _block.pack_tensors
receive_tensors: Any = _block.receive_tensors
setup_tensors: Any = _block.setup_tensors
peer: Any = _block.peer
is_of_atoms: Any = _block.is_of_atoms
is_small: Any = _block.is_small
copied_bytes: Any = _block.copied_bytes
Channel: type = _block.Channel
channel_count: Any = _block.channel_count
channels_refused: Any = _block.channels_refused
make_channel: Any = _block.make_channel
open_channel: Any = _block.open_channel
only_atoms: Any = _block.only_atoms
plain_loads: Any = _block.plain_loads
plain_data: Any = _block.plain_data
plain_pickle: Any = _block.plain_pickle
setup_channels: Any = _block.setup_channels
SemLock: type = _block.SemLock
Journal: type = _block.Journal
TryLock: type = _block.TryLock
create_sync: Any = _block.create_sync
condition_notify: Any = _block.condition_notify
setup_locks: Any = _block.setup_locks
sync_handle: Any = _block.sync_handle

# ---- libshm, for Python ----------------------------------------------------------------------------------------------


def library_name() -> str:
    """Return the file name of the library, by which another process's mappings show that it has loaded it."""
    return os.path.basename(_libshm.__file__)


def refused_version() -> str:
    """Return the version of the library that made the files which this process refused last; empty if it is unknown."""
    text: str = ffi.string(lib.mpshm_refused_version()).decode()
    return text


def parse_bytes(text: str) -> int | None:
    """Return the number of bytes that *text* means, None if it means none."""
    nbytes = ffi.new("uint64_t *")
    if lib.mpshm_parse_bytes(text.encode("utf-8", "surrogateescape"), nbytes) < 0:
        return None
    return int(nbytes[0])


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
        check(
            lib.mpshm_list_processes(sessions, session_room, counts, processes, process_room, counts + 1),
            "the sessions could not be listed",
        )
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


def set_message_timeout(timeout_ns: int) -> None:
    """Let the messages of this process expire after that time; 0 for no timeout."""
    lib.mpshm_set_message_timeout(timeout_ns)


def own_session() -> bytes:
    """Return the id of this process's own session, after attaching to it."""
    # If attaching fails, processes still start and send messages. Sharing memory will report the error.
    lib.mpshm_attach()
    session = ffi.new("unsigned char[]", lib.MPSHM_ID_SIZE)
    lib.mpshm_own_session(session)
    return bytes(ffi.buffer(session))


def session_of(handle: bytes) -> bytes:
    """Return the id of the session of a handle."""
    return handle[: lib.MPSHM_ID_SIZE]


def attach_to(session: bytes) -> None:
    """Attach this child to its parent's session by its id."""
    lib.mpshm_set_own_session(session)
    lib.mpshm_attach()


def attach_with(session: bytes, fds: list[int]) -> None:
    """Attach this child to its parent's session by descriptors, which the library takes over."""
    lib.mpshm_attach_with(session, fds)


def open_for_child() -> tuple[int, int]:
    """Open two descriptors for `attach_with`; -1 where one is unavailable."""
    fds = ffi.new("int[2]", [-1, -1])
    lib.mpshm_open_for_child(fds)
    return fds[0], fds[1]


def handle_alive(handle: bytes) -> bool:
    """Return whether the block of a handle lives, as far as this process knows without waiting."""
    return bool(lib.mpshm_handle_alive(handle, len(handle)))


def reference_of(handle: bytes) -> bytes:
    """Return the part of a handle that names its in-flight reference."""
    return handle[: lib.MPSHM_REFERENCE_SIZE]


def set_thread_name(name: bytes) -> None:
    """Name the calling thread."""
    check(lib.mpshm_set_thread_name(name), "set_thread_name")


def get_thread_name() -> bytes:
    """Return the name of the calling thread."""
    name = ffi.new("char[]", lib.MPSHM_THREAD_NAME_SIZE)
    check(lib.mpshm_get_thread_name(name), "get_thread_name")
    text: bytes = ffi.string(name)
    return text


def set_parent_death_signal(number: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent dies."""
    check(lib.mpshm_set_pdeathsig(number, parent), "set_parent_death_signal")
