"""Portable sharing: memory of `multiprocessing.shared_memory`, where libshm does not run (macOS, Windows).

It has the functions of libshm's modules (`compiled.py`, `library.py`), in Python, so nothing has to be compiled:

    segment.py        an object of `SharedMemory`, with a table of references; who dies where
    own_segments.py   those that this process has made: size classes, and how many it keeps
    key_files.py      which segments a process keeps, for those who come after a kill
    references.py     the references of this process; its end, and forks
    messages.py       the references of a message that is pickled, sent, received
    large_pickles.py  large bytes
    pipes.py, pools.py, looks.py, no_tables.py    substitutes for what needs libshm

The rules of each system are functions in `mp_core.system.machine`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from mp_core._version import __version__
from mp_core.sharing.portable import large_pickles, looks, no_tables, pipes, pools
from mp_core.sharing.portable.large_pickles import *  # noqa: F403
from mp_core.sharing.portable.looks import *  # noqa: F403
from mp_core.sharing.portable.messages import (
    SENT,
    by_value,
    discard_unread,
    in_message,
    lasting_handle,
    load_out_of_band,
    loads,
    pickled,
    pickled_by_value,
    rebuild_block,
    rebuild_copy,
    reduce_block,
    reduce_copy,
    sent,
    setup,
    setup_receiving,
    share,
    shares_now,
)
from mp_core.sharing.portable.no_tables import *  # noqa: F403
from mp_core.sharing.portable.pipes import *  # noqa: F403
from mp_core.sharing.portable.pools import *  # noqa: F403
from mp_core.sharing.portable.references import (
    Buffer,
    allocate,
    counters,
    discard,
    empty_cache,
    find,
    handle_alive,
)
from mp_core.sharing.portable.references import count_copied as copied_bytes
from mp_core.sharing.portable.references import listed as segments
from mp_core.system import machine

__all__ = [
    *large_pickles.__all__,
    *no_tables.__all__,
    *pipes.__all__,
    *looks.__all__,
    *pools.__all__,
    "LEAST_BUFFER",
    "LIBSHM",
    "LINE_SIZE",
    "MANAGER",
    "SENT",
    "STRATEGIES",
    "Buffer",
    "address_of",
    "allocate",
    "attach_by_descriptors",
    "attach_to",
    "by_value",
    "c_api",
    "compiled_version",
    "copied_bytes",
    "counters",
    "discard",
    "discard_unread",
    "empty_cache",
    "failed_call",
    "find",
    "get_thread_name",
    "handle_alive",
    "in_message",
    "lasting_handle",
    "library_name",
    "load_out_of_band",
    "loads",
    "open_descriptors_for_child",
    "own_session",
    "peer",
    "pickled",
    "pickled_by_value",
    "rebuild_block",
    "rebuild_copy",
    "recorders",
    "reduce_block",
    "reduce_copy",
    "reference_of",
    "refused_version",
    "register_at_fork",
    "segments",
    "sent",
    "session_of",
    "sessions_and_processes",
    "set_message_line",
    "set_message_timeout",
    "set_parent_death_signal",
    "set_thread_name",
    "setup",
    "setup_receiving",
    "share",
    "shares_now",
    "strategy",
    "unread_messages",
]

LIBSHM = False
#: No session has a manager.
MANAGER = ""
#: No timeline is recorded here.
recorders: list[Any] = []
#: No line is noted.
LINE_SIZE = 124
#: The one strategy of macOS and Windows.
STRATEGIES: dict[str, int] = {"file_system": 1}
#: There is no table of C functions.
c_api = None
#: Private buffers of fewer bytes stay in the pickle.
LEAST_BUFFER = 1 << 17


def reference_of(handle: bytes) -> bytes:
    """Return the part of a handle that names its in-flight reference: the handle."""
    return handle


class _View(ctypes.Structure):
    """Python's Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("rest", ctypes.c_void_p * 16),
    ]


def address_of(memory: Any) -> int:
    """Return the address of the first byte of a contiguous buffer, which may be read-only."""
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(view), 0)
    address: int = view.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


def register_at_fork(
    before: Callable[[], object] | None,
    release: Callable[[], object] | None,
    after_in_child: Callable[[], object] | None,
) -> None:
    """Register functions around a fork, each may be None; *release* undoes *before*."""
    hooks = {"before": before, "after_in_parent": release, "after_in_child": after_in_child}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})


def peer(fd: int) -> tuple[int, int]:
    """Return the address family of a connection and the pid of its peer, see `posix.peer`."""
    family, pid = machine.functions().peer(fd)
    return int(family), int(pid)


# ---- settings and statistics -----------------------------------------------------------------------------------------

_code = STRATEGIES["file_system"]


def strategy(code: int | None) -> int:
    """Return the number of the current strategy, after setting it."""
    global _code
    if code is not None:
        _code = code
    return _code


def compiled_version() -> str:
    """Return the version of these packages."""
    return __version__


def failed_call(number: int) -> str:
    """Return "": it is unknown."""
    return ""


def refused_version() -> str:
    """Return an empty text: no files were refused."""
    return ""


def library_name() -> str:
    """Return the name of libshm's file, which no process here has loaded."""
    return "_libshm.abi3.so"


def sessions_and_processes() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return two empty lists: nothing lists the processes."""
    return [], []


def unread_messages(descriptor: int) -> list[tuple[int, int]] | None:
    """Return None: nothing is a channel."""
    return None


def set_message_line(line: str | None) -> None:
    """Do nothing: nothing shows the line."""


def set_message_timeout(timeout_ns: int) -> None:
    """Do nothing: messages do not expire here."""


# ---- sessions --------------------------------------------------------------------------------------------------------


def own_session() -> bytes:
    """
    Start the resource tracker, before this process has a child; return an empty id, since a segment has its own name.

    A forked child would start one for itself otherwise, which would remove what the child has sent when it ends.
    """
    if not machine.functions().dies_with_last_handle():
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    return b""


def session_of(handle: bytes) -> bytes:
    """Return the key of the segment of a handle, its first 16 bytes."""
    return handle[:16]


def attach_to(session: bytes) -> None:
    """Do nothing: there is no session."""


def attach_by_descriptors(session: bytes, fds: list[int]) -> None:
    """Do nothing: there is no session."""


def open_descriptors_for_child() -> tuple[int, int]:
    """Return no descriptors."""
    return -1, -1


# ---- threads and processes -------------------------------------------------------------------------------------------
_NAME_BYTES = 15


def set_thread_name(name: bytes) -> None:
    """Name the calling thread, cut to as many bytes as on Linux."""
    machine.functions().set_thread_name(name[:_NAME_BYTES].decode(errors="ignore").encode())


def get_thread_name() -> bytes:
    return machine.functions().get_thread_name()  # type: ignore[no-any-return]


def set_parent_death_signal(number: int, parent: int) -> None:
    """Do nothing: only libshm asks the kernel for it."""
