"""Messages of portable sharing: their in-flight references while they are pickled, sent and received.

A message that is not sent, or cannot be received, takes its references back; `message.c` and `receive.c`
do the same with libshm, and say why.
"""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Callable

from mp_core.sharing.portable import references
from mp_core.system import reducers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class _Entry:
    """A message that is being pickled."""

    __slots__ = ("adopts", "by_value", "handles")

    def __init__(self, by_value: bool, adopts: bool) -> None:
        self.by_value, self.adopts = by_value, adopts
        self.handles: list[bytes] = []


class _Thread(threading.local):
    """The messages that this thread is pickling, the innermost last, and the handles that it has received."""

    def __init__(self) -> None:
        self.pickling: list[_Entry] = []
        self.depth = 0
        self.received: set[bytes] = set()


_thread = _Thread()
_shares = True
_block_type: type = references.Buffer


def setup(block_type: type) -> None:
    """Set the class of received blocks. Each block has a subclass for its size, so its reducer is for subclasses."""
    global _block_type
    _block_type = block_type
    reducers.of_subclasses(block_type, lambda kind: reduce_block)


# ---- sending ---------------------------------------------------------------------------------------------------------


class Message:
    """A pickled message, whose in-flight references are discarded with it."""

    def __init__(self, data: Any, handles: list[bytes]) -> None:
        self.data = data
        self.handles: tuple[bytes, ...] = tuple(handles)
        self._pid = os.getpid()

    def leave(self) -> None:
        """Leave its in-flight references to its receiver."""
        self.handles = ()

    def __del__(self) -> None:
        if self.handles and self._pid == os.getpid():  # a forked child has a copy, whose references are its parent's
            _discard_all(list(self.handles))


SENT = Message(None, [])  # stands for each message that is sent


def _discard_all(handles: list[bytes]) -> None:
    for handle in handles:
        references.discard(handle)


def _call(entry: _Entry, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    depth = len(_thread.pickling)
    try:
        _thread.pickling.append(entry)
        result = function(*args)
    finally:
        del _thread.pickling[depth:]
    return result


def in_message(function: Callable[..., Any], *args: Any) -> Any:
    """Call *function* in a message: its references are the caller's, or the enclosing one's, unless it fails."""
    entry = _Entry(by_value(), False)
    try:
        result = _call(entry, function, args)
    except BaseException:
        _discard_all(entry.handles)
        raise
    if entry.handles and _thread.pickling and _thread.pickling[-1].adopts:
        _thread.pickling[-1].handles += entry.handles
    return result


def pickled(function: Callable[..., Any], *args: Any) -> Message:
    """Return the message that *function* pickles."""
    return _pickled(_Entry(by_value(), True), function, args)


def pickled_by_value(function: Callable[..., Any], *args: Any) -> Message:
    """Return the message that *function* pickles, by value."""
    return _pickled(_Entry(True, True), function, args)


def _pickled(entry: _Entry, function: Callable[..., Any], args: tuple[Any, ...]) -> Message:
    try:
        return Message(_call(entry, function, args), entry.handles)
    except BaseException:
        _discard_all(entry.handles)
        raise


def sent(goes_by_value: bool, function: Callable[..., Any], *args: Any) -> Any:
    """Call *function*, which pickles and sends a message; discard its references if nobody can have received it."""
    entry = _Entry(goes_by_value or by_value(), True)
    try:
        return _call(entry, function, args)
    except (BrokenPipeError, ConnectionResetError):
        _discard_all(entry.handles)
        raise


def by_value() -> bool:
    """Return whether the message that this thread is pickling goes by value."""
    return _thread.pickling[-1].by_value if _thread.pickling else not _shares


def shares_now() -> bool:
    """Return False: a lock or queue of the standard library travels to a new process alone."""
    return False


def share(on: bool | None) -> bool:
    """Set whether messages may share, None to leave it; return the value before. By value means NumPy's own pickles."""
    global _shares
    before = _shares
    if on is not None:
        _shares = on
    return before


def _handle_of(block: Any, is_copy: bool) -> bytes:
    if not isinstance(block, _block_type) or getattr(block, "_hold", None) is None:
        raise ValueError(f"an allocated mp_core.Block was expected, not {block!r}; make one with mp_core.Block(nbytes)")
    if by_value():
        raise TypeError(
            "this message goes by value, because its receiver cannot share memory or set_sharing(False) was called, "
            "and a Block, a Lease or device memory cannot: send bytes(block) or an array instead"
        )
    handle = references.make_handle(block, is_copy)
    if _thread.pickling:
        _thread.pickling[-1].handles.append(handle)
    return handle


def reduce_block(block: Any) -> tuple[Any, tuple[bytes]]:
    """Reduce a block to a handle, which is good for one receiver."""
    return rebuild_block, (_handle_of(block, False),)


def reduce_copy(block: Any) -> tuple[Any, tuple[bytes]]:
    """Reduce a block that was made for one receiver."""
    return rebuild_copy, (_handle_of(block, True),)


def lasting_handle(block: Any) -> bytes:
    """Make an in-flight reference that does not expire; none does here."""
    return _handle_of(block, False)


def tracked_copy(data: Any, nbytes: int) -> bytes | int:
    """Copy *data* into a block for the receiver of this message; return the handle of the block, or -errno."""
    block = references.allocate(_block_type, 1, nbytes, False)
    if isinstance(block, int):
        return block
    memoryview(block)[:] = memoryview(data).cast("B")
    references.count_copied(nbytes)
    return _handle_of(block, True)


# ---- receiving -------------------------------------------------------------------------------------------------------

_unpickle: Callable[..., Any] = pickle.loads
_on_refusal: Callable[[int, bytes], Any] | None = None
_on_private: Callable[[int, int], Any] | None = None
_on_failure: Callable[[Any, BaseException], Any] | None = None


def setup_receiving(unpickle: Any, on_refusal: Any, on_private: Any, on_failure: Any) -> None:
    """Set the function that unpickles messages, and those for failures; None leaves one as it is."""
    global _unpickle, _on_refusal, _on_private, _on_failure
    _unpickle = unpickle or _unpickle
    _on_refusal = on_refusal or _on_refusal
    _on_private = on_private or _on_private
    _on_failure = on_failure or _on_failure


def refuse(number: int, handle: bytes) -> Any:
    """Raise the error for a handle that cannot be received."""
    if _on_refusal is None:
        raise OSError(number, os.strerror(number))
    return _on_refusal(number, handle)


def rebuild_block(handle: bytes) -> Any:
    """Return the block of a handle."""
    return _received(handle, references.receive(_block_type, handle))


def rebuild_copy(handle: bytes) -> Any:
    """Return the block of a handle; if this process cannot share it, as with other locks than its sender, its bytes."""
    block = references.receive(_block_type, handle)
    if isinstance(block, int) and block not in (-errno.ESTALE, -errno.EBADMSG):
        data = references.read(handle)
        if isinstance(data, bytearray):
            if _on_private is not None:
                _on_private(len(data), -block)
            block = data
    return _received(handle, block)


# The unpickler finds them there, and so imports the module that sets the class of blocks and the errors.
rebuild_block.__module__ = rebuild_copy.__module__ = "mp_core.memory.block"


def _received(handle: bytes, memory: Any) -> Any:
    """Return the memory of a handle, or raise the error whose number it is."""
    if _thread.depth and (not isinstance(memory, int) or memory == -errno.ESTALE):
        _thread.received.add(handle)  # received, or stale: its entry may be another message's by now
    return refuse(-memory, handle) if isinstance(memory, int) else memory


def loads(data: Any, /, **options: Any) -> Any:
    """Unpickle a message as `pickle.loads` does; if that fails, return what `setup_receiving` has set for it."""
    _thread.depth += 1
    try:
        return _unpickle(data, **options)
    except BaseException as error:
        discard_unread(data)
        try:
            instead = NotImplemented if _on_failure is None else _on_failure(data, error)
            if instead is NotImplemented:
                raise
            return instead
        finally:
            # See Note [Exceptions in frames] in failed_messages.py. CPython 3.12.1 crashes if *data* is in a circle.
            data = instead = None
    finally:
        _thread.depth -= 1
        if not _thread.depth:
            _thread.received.clear()


_OPCODE = b"C" + bytes([references.HANDLE_SIZE])  # SHORT_BINBYTES, length


def discard_unread(data: Any) -> None:
    """Discard each handle in the bytes of a message that was not received."""
    content = bytes(data)
    at = content.find(_OPCODE)
    while at >= 0:
        handle = content[at + 2 : at + 2 + references.HANDLE_SIZE]
        if references.is_handle(handle) and handle not in _thread.received:
            references.discard(handle)
        at = content.find(_OPCODE, at + 1)


def load_out_of_band(stream: bytes, objects: bytes) -> NoReturn:
    """Raise a `ReceiveError`, since the message is of a process that has libshm."""
    raise refuse(errno.ENOSYS, b"")
