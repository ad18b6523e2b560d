"""The substitute for the engine on a platform without shared memory: every allocation fails with ENOSYS.

It has the functions of `_engine.py`, in Python, so nothing has to be compiled. Arrays then travel as they do when
shared memory is exhausted: their bytes go into the message. No handle of a block exists here; one that comes from
another machine is refused.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from mp_core import machine
from mp_core._batches_without_engine import Journal, TryLock, is_of_atoms, is_small
from mp_core._channels_without_engine import (
    Channel,
    channel_count,
    channels_refused,
    make_channel,
    only_atoms,
    open_channel,
    pickled_object,
    plain_data,
    plain_loads,
    plain_pickle,
    setup_channels,
)
from mp_core._tables_without_engine import (
    beside,
    find_storage,
    move_storage,
    pack_arrow,
    pack_tensors,
    receive_tensors,
    remember_storage,
    setup_beside,
    setup_storages,
    setup_tensors,
    unpack_arrow,
)
from mp_core._version import __version__

__all__ = [
    "ENGINE",
    "LINE_SIZE",
    "STRATEGIES",
    "Buffer",
    "Channel",
    "Journal",
    "TryLock",
    "allocate",
    "attach_to",
    "attach_with",
    "beside",
    "by_value",
    "c_api",
    "channel_count",
    "channels_refused",
    "compiled_version",
    "copied_bytes",
    "counters",
    "discard",
    "discard_unread",
    "empty_cache",
    "find",
    "find_storage",
    "get_thread_name",
    "handle_alive",
    "in_message",
    "is_of_atoms",
    "is_small",
    "library_name",
    "load_beside",
    "loads",
    "make_channel",
    "move_storage",
    "only_atoms",
    "open_channel",
    "open_for_child",
    "own_session",
    "pack_arrow",
    "pack_tensors",
    "parse_bytes",
    "peer",
    "pickled",
    "pickled_by_value",
    "pickled_object",
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
    "register_at_fork",
    "remember_storage",
    "segments",
    "sent",
    "session_of",
    "sessions_and_processes",
    "set_message_line",
    "set_message_timeout",
    "set_parent_death_signal",
    "set_thread_name",
    "setup",
    "setup_beside",
    "setup_channels",
    "setup_receiving",
    "setup_storages",
    "setup_tensors",
    "share",
    "strategy",
    "unpack_arrow",
    "unread_messages",
]

ENGINE = False
#: No line is noted.
LINE_SIZE = 124
#: As torch has it on macOS and Windows.
STRATEGIES: dict[str, int] = {"file_system": 1}
#: There is no table of C functions.
c_api = None

# ---- blocks ----------------------------------------------------------------------------------------------------------


class Buffer:
    """The base of `Block`, of which there are no instances here."""

    __slots__ = ()


def allocate(kind: type, code: int, nbytes: int, zeroed: bool) -> int:
    """Return -ENOSYS: there is no shared memory."""
    return -errno.ENOSYS


def find(kind: type, address: int) -> int:
    """Return -ENOENT: no address is in a block."""
    return -errno.ENOENT


def setup(block_type: type) -> None:
    """Do nothing; the engine makes its blocks with that class."""


def rebuild_block(handle: bytes) -> NoReturn:
    """Raise a `ReceiveError`, since the handle is of another machine, or of a process that has the engine."""
    raise _on_refusal(errno.ENOSYS, handle)


rebuild_copy = rebuild_block


def reduce_block(block: Any) -> NoReturn:
    """Raise a ValueError: no block was allocated."""
    raise ValueError(f"an allocated mp_core.Block was expected, not {block!r}; make one with mp_core.Block(nbytes)")


reduce_copy = reduce_block


def discard(handle: bytes) -> None:
    """Do nothing: no message carries a reference."""


def reference_of(handle: bytes) -> bytes:
    """Return the handle: there is none."""
    return handle


def discard_unread(data: bytes) -> None:
    """Do nothing: no message carries a reference."""


def handle_alive(handle: bytes) -> bool:
    """Return False: there is no block."""
    return False


# ---- messages --------------------------------------------------------------------------------------------------------


class _Messages(threading.local):
    """Whether each message that this thread is pickling goes by value, the innermost last."""

    def __init__(self) -> None:
        self.by_value: list[bool] = []


_messages = _Messages()
_shares = True


class Message:
    """A pickled message; it has no references."""

    handles: tuple[bytes, ...] = ()

    def __init__(self, data: Any) -> None:
        self.data = data

    def leave(self) -> None:
        """Do nothing."""


def in_message(function: Callable[..., Any], *args: Any) -> Any:
    """Call *function* in a message."""
    return _in_message(by_value(), function, args)


def pickled(function: Callable[..., Any], *args: Any) -> Message:
    """Return the message that *function* pickles."""
    return Message(_in_message(by_value(), function, args))


def pickled_by_value(function: Callable[..., Any], *args: Any) -> Message:
    """Return the message that *function* pickles, by value."""
    return Message(_in_message(True, function, args))


def sent(goes_by_value: bool, function: Callable[..., Any], *args: Any) -> Any:
    """Call *function*, which pickles and sends a message."""
    return _in_message(goes_by_value or by_value(), function, args)


def _in_message(goes_by_value: bool, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    depth = len(_messages.by_value)
    try:
        _messages.by_value.append(goes_by_value)
        return function(*args)
    finally:
        del _messages.by_value[depth:]


def register_at_fork(
    before: Callable[[], object] | None,
    release: Callable[[], object] | None,
    after_in_child: Callable[[], object] | None,
) -> None:
    """Register functions around a fork, each may be None; *release* undoes *before*."""
    hooks = {"before": before, "after_in_parent": release, "after_in_child": after_in_child}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})


def by_value() -> bool:
    """Return whether the message that this thread is pickling goes by value."""
    return _messages.by_value[-1] if _messages.by_value else not _shares


def share(on: bool | None) -> bool:
    """Set whether messages may share, None to leave it; return the value before. By value means NumPy's own pickles."""
    global _shares
    before = _shares
    if on is not None:
        _shares = on
    return before


def load_beside(stream: Any, tables: list[Any]) -> NoReturn:
    """Raise a `ReceiveError`, since the message is of a process that has the engine."""
    raise _on_refusal(errno.ENOSYS, b"")


_unpickle: Callable[..., Any] = pickle.loads
_on_refusal: Callable[[int, bytes], Any] = OSError
_on_failure: Callable[[Any, BaseException], Any] | None = None


def setup_receiving(unpickle: Any, on_refusal: Any, on_private: Any, on_failure: Any) -> None:
    """Set the function that unpickles messages, and those for failures; None leaves one as it is."""
    global _unpickle, _on_refusal, _on_failure
    _unpickle = unpickle or _unpickle
    _on_refusal = on_refusal or _on_refusal
    _on_failure = on_failure or _on_failure


def loads(data: Any, /, **options: Any) -> Any:
    """Unpickle a message as `pickle.loads` does; if that fails, return what `setup_receiving` has set for it."""
    try:
        return _unpickle(data, **options)
    except BaseException as error:
        instead = NotImplemented if _on_failure is None else _on_failure(data, error)
        if instead is NotImplemented:
            raise
        return instead


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


def refused_version() -> str:
    """Return an empty text: no files were refused."""
    return ""


def library_name() -> str:
    """Return the name of the engine's library, which no process here has loaded."""
    return "_libshm.abi3.so"


_NUMBER = re.compile(
    r"[ \t]*(?=\.?\d)(\d*)\.?(\d*)[ \t]*(?:([kmgtp])(i?b?)|b|bytes)?[ \t\n]*", re.IGNORECASE | re.ASCII
)
_DIGITS = 6  # of a fraction


def parse_bytes(text: str) -> int | None:
    """Return the number of bytes that *text* means, None if it means none. The engine reads it likewise."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    whole, fraction, letter, rest = found.groups()
    unit = 1
    if letter:
        unit = (1000 if rest.lower() == "b" else 1024) ** ("kmgtp".index(letter.lower()) + 1)
    nbytes = int(whole or 0) * unit + unit * int(f"{fraction:0<{_DIGITS}}"[:_DIGITS]) // 10**_DIGITS
    return nbytes if nbytes < 2**64 else None


def counters() -> dict[str, int]:
    """Return the statistics of this process: zeros."""
    names = "live_bytes live_blocks in_flight_bytes cached_bytes session_cached_bytes cache_limit"
    return dict.fromkeys([*names.split(), "segments", "mappings", "descriptors", "lock_bytes"], 0)


def copied_bytes(more: int) -> int:
    """Return 0: no byte is copied into shared memory."""
    return 0


def segments() -> list[tuple[Any, ...]]:
    """Return an empty list."""
    return []


def sessions_and_processes() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return two empty lists."""
    return [], []


def unread_messages(descriptor: int) -> list[tuple[int, int]] | None:
    """Return None: nothing is a channel."""
    return None


def set_message_line(line: str | None) -> None:
    """Do nothing: nothing shows the line."""


def set_message_timeout(timeout_ns: int) -> None:
    """Do nothing: no message carries memory that somebody has to free."""


def empty_cache() -> None:
    """Do nothing: there is no cache."""


# ---- sessions --------------------------------------------------------------------------------------------------------


def own_session() -> bytes:
    """Return an empty id: there is no session."""
    return b""


def session_of(handle: bytes) -> bytes:
    """Return the id of the session of a handle, its first 16 bytes."""
    return handle[:16]


def attach_to(session: bytes) -> None:
    """Do nothing: there is no session."""


def attach_with(session: bytes, fds: list[int]) -> None:
    """Do nothing: there is no session."""


def open_for_child() -> tuple[int, int]:
    """Return no descriptors."""
    return -1, -1


# ---- threads and processes -------------------------------------------------------------------------------------------
_NAME_BYTES = 15


def set_thread_name(name: bytes) -> None:
    """Name the calling thread, cut to as many bytes as on Linux."""
    machine.functions().set_thread_name(name[:_NAME_BYTES].decode(errors="ignore").encode())


def get_thread_name() -> bytes:
    """Return the name of the calling thread."""
    return machine.functions().get_thread_name()  # type: ignore[no-any-return]


def set_parent_death_signal(number: int, parent: int) -> None:
    """Do nothing: only the engine asks the kernel for it."""
