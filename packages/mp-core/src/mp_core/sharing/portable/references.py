"""The references of this process: blocks that it holds, and messages that it sends and receives.

    Buffer      one reference of a program, with the buffer protocol; `Block` is its subclass
    Hold        the reference of this process to a block, as long as it has a Buffer of it: one entry in the table of
                the segment (`segment.py`), however many Buffers there are
    handle      what a message carries: the key of the segment, and the entry of the message in its table

Note [A Buffer]
---------------
Before Python 3.12 a class in Python cannot have the buffer protocol, but an array of ctypes has it. So a Buffer is
one, over the mapping of its segment, which it keeps. Its class is made for its length.

Note [A finalizer]
------------------
A Buffer may be collected in the middle of any work on references, in the same thread. So its finalizer only notes the
hold in a queue, which is worked off at once if no work is under way, and otherwise at the end of that work.

Note [Forks]
------------
A forked child has the Buffers of its parent, so it must have entries of its own before its parent can drop the
parent's. The parent makes them before the fork, with its own pid, as the child has none yet; the child changes the
pid first of all. If the parent is killed in between, and a third process looks at these entries in that moment, they
are gone, and the child ends itself: others may use its memory. If the fork fails, the entries stay as long as the
parent.
"""

from __future__ import annotations

import binascii
import ctypes
import errno
import functools
import os
import sys
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque

from mp_core.sharing.portable import key_files
from mp_core.sharing.portable import segment as segments
from mp_core.sharing.portable.own_segments import OwnSegments
from mp_core.sharing.portable.segment import KEPT, KEY_SIZE, LEAVING, PINNED, Byte, Segment, with_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Seconds for which a process that ends waits, under Windows, until its messages are received.
EXIT_WAIT_S = 10.0

_lock = threading.RLock()
_working = False
_dropped: deque[Hold] = deque()
_segments: dict[bytes, Segment] = {}
_holds: dict[tuple[bytes, int], Hold] = {}
# Under Windows: segments that messages of this process carry, which nobody else may have open yet.
_lingering: list[Segment] = []
_own: OwnSegments | None = None
_is_registered = False
_bases: list[tuple[int, bytes]] = []


class Hold:
    """The reference of this process to one block."""

    __slots__ = ("cell", "count", "index", "nbytes", "segment", "token")

    def __init__(self, segment: Segment, cell: int, index: int, token: int) -> None:
        self.segment, self.cell, self.index, self.token = segment, cell, index, token
        self.nbytes: int = segment.sizes[cell]
        self.count = 0


class Buffer:
    """The base of `Block`: one reference to a block, with the buffer protocol."""

    _hold: Hold | None = None

    def __init__(self, *arguments: object) -> None:
        pass  # or ctypes would take the arguments for elements

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the attribute {name!r} of a block cannot be set")

    __hash__ = object.__hash__

    def __del__(self) -> None:
        if self._hold is not None:
            _dropped.append(self._hold)
            _work_off()

    def _allocated(self) -> Hold:
        if self._hold is None:
            raise ValueError("this block was never allocated; use mp_core.Block(nbytes)")
        return self._hold

    @property
    def nbytes(self) -> int:
        """Usable bytes."""
        return 0 if self._hold is None else self._hold.nbytes

    @property
    def address(self) -> int:
        """The address of the first byte in this process."""
        self._allocated()
        return ctypes.addressof(self)  # type: ignore[arg-type]

    @property
    def _strategy(self) -> int:
        self._allocated()
        return 1

    def _others(self) -> int:
        """Count other processes with this block, and messages in flight."""
        hold = self._allocated()
        with _Work(hold.segment):
            if hold.segment.counts[hold.cell] == 1:
                return 0
            hold.segment.drop_dead()
            return sum(cell == hold.cell for _, cell, _ in hold.segment.entries()) - 1

    def _end(self) -> bool:
        """Tell whether only this process has the block."""
        return self._others() == 0

    def _sign(self) -> None:
        """Do nothing: the segment of a block names its owner."""

    def _signer_lives(self) -> bool:
        """Tell whether the process that made the block lives."""
        return self._allocated().segment.owner_lives()

    def _revoke(self) -> None:
        """Revoke the block's messages that are in flight."""
        hold = self._allocated()
        with _Work(hold.segment):
            for index, cell, pid in hold.segment.entries():
                if cell == hold.cell and not pid:
                    hold.segment.drop(index)


@functools.lru_cache(1000)
def _sized(kind: type, nbytes: int) -> Any:
    return type(kind.__name__, (kind, Byte * nbytes), {"__module__": kind.__module__})


def _buffer_of(kind: type, hold: Hold) -> Any:
    buffer = _sized(kind, hold.nbytes).from_buffer(hold.segment.mapping, hold.segment.offset(hold.cell))
    buffer.__dict__["_hold"] = hold
    if hold.count == 0:
        hold.segment.holds += 1
    hold.count += 1
    return buffer


# ---- work under the locks --------------------------------------------------------------------------------------------


class _Work:
    """Work on references: the lock of this process, and that of a segment if one is given."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment | None = None) -> None:
        self.segment = segment

    def __enter__(self) -> None:
        global _working
        _lock.acquire()
        if _working:
            _lock.release()
            raise OSError(errno.EDEADLK, "a signal handler or a finalizer uses shared memory in the middle of its use")
        _working = True
        if self.segment is not None:
            try:
                self.segment.lock()
            except BaseException:
                self._leave()
                raise

    def __exit__(self, *error: object) -> None:
        try:
            if self.segment is not None:
                self.segment.unlock()
        finally:
            self._leave()

    def _leave(self) -> None:
        global _working
        _working = False
        _lock.release()
        if _dropped:
            _work_off()


def _work_off() -> None:
    """Drop the holds in the queue, unless this thread or another one is at work, which does it then."""
    global _working
    while _dropped and _lock.acquire(False):
        if _working:  # in this thread
            _lock.release()
            return
        try:
            _working = True
            while _dropped:
                _release(_dropped.popleft())
        except OSError:
            pass  # a stopped process has the lock: the entry stays, which is a leak and no early free
        finally:
            _working = False
            _lock.release()


def _release(hold: Hold) -> None:
    hold.count -= 1
    if hold.count > 0 or _holds.get((hold.segment.key, hold.cell)) is not hold:
        return
    del _holds[hold.segment.key, hold.cell]
    hold.segment.holds -= 1
    with hold.segment:
        if hold.segment.has(hold.index, hold.token):
            hold.segment.drop(hold.index)
        _leave_to_users(hold.segment)


def _leave_to_users(segment: Segment) -> None:
    """Unlink the segment if this process was its last user, and unmap it if this process does not need it."""
    if segment.is_left_to_its_users():
        segment.unlink_if_unused()
    elif segment.is_own:
        return
    if segment.holds:
        return
    if segments.system.dies_with_last_handle() and any(not pid for _, _, pid in segment.entries()):
        if segment not in _lingering:
            _lingering.append(segment)
        return
    _forget(segment)


def _forget(segment: Segment) -> None:
    if segment in _lingering:
        _lingering.remove(segment)
    if _segments.get(segment.key) is segment:
        del _segments[segment.key]
        del _bases[bisect_left(_bases, (segment.base, segment.key))]


def _know(segment: Segment) -> Segment:
    global _is_registered
    _segments[segment.key] = segment
    insort(_bases, (segment.base, segment.key))
    if not _is_registered:
        _is_registered = True
        from multiprocessing import util

        # After the finalizers of others, which may use arrays; a child of multiprocessing runs no handlers of atexit.
        util.Finalize(None, _leave, exitpriority=-1000)
    return segment


def _unmap_received() -> None:
    """Under Windows: unmap segments whose messages were received."""
    for segment in [each for each in _lingering if not any(not pid for _, _, pid in each.entries())]:
        if segment.holds:
            _lingering.remove(segment)
        else:
            _forget(segment)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def allocate(kind: type, code: int, nbytes: int, zeroed: bool) -> Any:
    """Return an object of the class *kind* over a block, or -errno."""
    global _own
    if nbytes >= 2**62:
        return -errno.ENOMEM
    try:
        with _Work():
            if _own is None:
                _own = OwnSegments()
            if _lingering:
                _unmap_received()
            segment, cell, used_before = with_descriptors(_own.cell, nbytes)
            if segment.key not in _segments:
                _know(segment)
            with segment:
                segment.sizes[cell], segment.counts[cell] = nbytes, 0
                hold = Hold(segment, cell, *segment.add(cell, os.getpid(), segments.new_token()))
            _holds[segment.key, cell] = hold
            buffer = _buffer_of(kind, hold)
    except OverflowError:
        return -errno.EUSERS
    except ImportError:
        return -errno.ENOMEM
    except OSError as error:
        return -_number_of(error)
    if zeroed and used_before:
        ctypes.memset(buffer.address, 0, nbytes)
    return buffer


def _number_of(error: OSError) -> int:
    """Return the number of an error; Windows has none for a section that cannot be committed."""
    return errno.ENOMEM if getattr(error, "winerror", None) in (8, 1450, 1455) else error.errno or errno.EIO


def find(kind: type, address: int) -> Any:
    """Return an object of the class *kind* over the block of this process that contains an address, or -ENOENT."""
    with _Work():
        at = bisect_right(_bases, (address, b"\xff" * KEY_SIZE)) - 1
        if at >= 0:
            base, key = _bases[at]
            segment = _segments[key]
            inside = address - base - segment.data
            hold = _holds.get((key, inside // segment.cell_size)) if inside >= 0 else None
            if hold is not None and inside % segment.cell_size < max(hold.nbytes, 1):
                return _buffer_of(kind, hold)
    return -errno.ENOENT


# ---- handles ---------------------------------------------------------------------------------------------------------
#
#   key of the segment 16 | token 8 | index 4 | flags 4 | bytes of the block 8 | nothing 12 | checksum 4

HANDLE_SIZE = 56
_COPY = 1


def make_handle(block: Any, is_copy: bool) -> bytes:
    """Return the handle of a new message, whose entry in the segment keeps the block until it is received."""
    hold = block._allocated()
    with _Work(hold.segment):
        try:
            index, token = hold.segment.add(hold.cell, 0, segments.new_token())
        except OverflowError as error:
            raise MemoryError(f"a block cannot be sent: {error}; receive messages first") from None
    numbers = (token, 8), (index, 4), (_COPY if is_copy else 0, 4), (hold.nbytes, 8), (0, 12)
    body: bytes = hold.segment.key + b"".join(number.to_bytes(size, "little") for number, size in numbers)
    return body + binascii.crc32(body).to_bytes(4, "little")


def is_handle(handle: bytes) -> bool:
    """Return whether these bytes are a handle that is not damaged."""
    return len(handle) == HANDLE_SIZE and binascii.crc32(handle[:-4]) == int.from_bytes(handle[-4:], "little")


def _token_and_index(handle: bytes) -> tuple[int, int]:
    return int.from_bytes(handle[16:24], "little"), int.from_bytes(handle[24:28], "little")


def _segment_of(handle: bytes) -> Segment:
    key = handle[:KEY_SIZE]
    known = _segments.get(key)
    return known if known is not None else _know(with_descriptors(segments.attach, key))


def receive(kind: type, handle: bytes) -> Any:
    """Return an object of the class *kind* over the block of a handle, or -errno."""
    if not is_handle(handle):
        return -errno.EBADMSG
    token, index = _token_and_index(handle)
    try:
        with _Work():
            if _lingering:
                _unmap_received()
            segment = _segment_of(handle)
            with segment:
                if not (segment.has(index, token) and segment.is_in_flight(index)):
                    _leave_to_users(segment)
                    return -errno.ESTALE
                cell = segment.cell_of(index)
                hold = _holds.get((segment.key, cell))
                if hold is not None:
                    segment.drop(index)
                else:
                    segment.hand_over(index, os.getpid())
                    hold = _holds[segment.key, cell] = Hold(segment, cell, index, token)
            return _buffer_of(kind, hold)
    except ValueError:
        return -errno.EBADMSG
    except OSError as error:
        return -_number_of(error)


def read(handle: bytes) -> bytearray | int:
    """
    Return the bytes of the block of a handle that `make_handle` has made for one receiver, or -errno.

    For a receiver that has other locks than the sender, because its runtime folder was removed or is another one, or
    that cannot get the lock. So it takes none; nobody else uses the entry of such a message until its token is cleared,
    which is one store.
    """
    if not int.from_bytes(handle[28:32], "little") & _COPY:
        return -errno.EPERM
    token, index = _token_and_index(handle)
    try:
        with _Work():
            segment: Segment = with_descriptors(segments.attach, handle[:KEY_SIZE], True)
            if not (segment.has(index, token) and segment.is_in_flight(index)):
                return -errno.ESTALE
            cell = segment.cell_of(index)
            start = segment.offset(cell)
            data = bytearray(memoryview(segment.mapping)[start : start + segment.sizes[cell]])
            segment.tokens[index] = 0
            if not segment.has_flag(KEPT) and segment.is_unused():
                segment.unlink()
            return data
    except ValueError:
        return -errno.EBADMSG
    except OSError as error:
        return -_number_of(error)


def discard(handle: bytes) -> None:
    """Drop the in-flight reference of a handle. A handle that was received, or is damaged, changes nothing."""
    if not is_handle(handle):
        return
    token, index = _token_and_index(handle)
    try:
        with _Work():
            segment = _segment_of(handle)
            with segment:
                if segment.has(index, token) and segment.is_in_flight(index):
                    segment.drop(index)
                _leave_to_users(segment)
    except (OSError, ValueError):
        pass  # the segment is gone


def handle_alive(handle: bytes) -> bool:
    """Return whether the message of a handle is in flight, or its receiver has the block."""
    with _Work():
        segment = _segments.get(handle[:KEY_SIZE])
        token, index = _token_and_index(handle)
        return segment is not None and is_handle(handle) and segment.has(index, token)


# ---- statistics ------------------------------------------------------------------------------------------------------


_copied = 0


def count_copied(more: int) -> int:
    """Add *more* bytes that were copied into shared memory, and return the sum."""
    global _copied
    _copied += more
    return _copied


def counters() -> dict[str, int]:
    with _Work():
        own = [each for each in _segments.values() if each.is_own]
        cached = 0 if _own is None else _own.cached_bytes()
        return {
            "live_bytes": sum(hold.nbytes for hold in _holds.values()),
            "live_blocks": len(_holds),
            "in_flight_bytes": sum(_in_flight(each) for each in own),
            "cached_bytes": cached,
            "session_cached_bytes": cached,
            "cache_limit": 0 if _own is None else _own.limit,
            "segments": len(own),
            "mappings": len(_segments),
            "descriptors": 0,
            "lock_bytes": 0,
        }


def _in_flight(segment: Segment) -> int:
    return sum(segment.sizes[cell] for cell in {cell for _, cell, pid in segment.entries() if not pid})


def listed() -> list[tuple[Any, ...]]:
    """Return the fields of a `Segment` of mp_core.memory.stats for each segment of this process."""
    with _Work():
        found = []
        for each in filter(lambda each: each.is_own, _segments.values()):
            entries = each.entries()
            live = {cell for _, cell, _ in entries}
            live_bytes = sum(each.sizes[cell] for cell in live)
            cached = (each.cells - len(live)) * each.cell_size
            pids = tuple(sorted({pid & ~LEAVING for _, _, pid in entries if pid}))
            age = 0.0
            found.append(
                (each.key.hex(), 0, 1, os.getpid(), age, len(live), live_bytes, _in_flight(each), cached, pids)
            )
        return found


def empty_cache() -> None:
    """Unlink the segments that this process keeps and nobody uses; leave the others to their last users."""
    with _Work():
        if _own is not None:
            before = set(map(id, _own.all()))
            _own.stop_keeping()
            kept = {*map(id, _own.all())}
            for segment in [each for each in _segments.values() if id(each) in before - kept]:
                segment.is_own = False
                if not segment.holds:
                    _forget(segment)


# ---- the end of this process, and forks ------------------------------------------------------------------------------


def _leave() -> None:
    """
    At the end of this process: leave its segments to their last users.

    Its arrays stay usable, since handlers that run later may have some: their entries are marked, and count for nobody
    who looks for the last user. Under Windows the segments are gone with this process. So it waits until its messages
    are received, as a process of multiprocessing waits until its queues are written; but not for ever, and then it says
    what is lost.
    """
    deadline = time.monotonic() + EXIT_WAIT_S
    while segments.system.dies_with_last_handle() and (waiting := _unreceived()):
        if time.monotonic() > deadline:
            print(
                f"mp_core: process {os.getpid()} ends, and {waiting} bytes that it has sent were not received in "
                f"{EXIT_WAIT_S:g} seconds; they are lost",
                file=sys.stderr,
            )
            break
        time.sleep(0.01)
    with _Work():
        for segment in [each for each in _segments.values() if each.is_own or each.holds]:
            try:
                segment.lock()
            except OSError:
                continue
            try:
                if segment.is_own:
                    segment.abandon()
                for index, _, pid in segment.entries():
                    if pid == os.getpid():
                        segment.hand_over(index, pid | LEAVING)
                if segment.is_left_to_its_users():
                    segment.unlink_if_unused()
            finally:
                segment.unlock()
        key_files.remove()
        key_files.clean_up()
    del Buffer.__del__  # the interpreter may collect arrays when it has taken this module down


def _unreceived() -> int:
    with _Work():
        _unmap_received()
        return sum(map(_in_flight, {each.key: each for each in (*_lingering, *_segments.values())}.values()))


_for_child: list[tuple[Hold, int, int]] = []


def _before_fork() -> None:
    """Make the entries of a child, see Note [Forks], and keep other threads out."""
    global _working
    _lock.acquire()
    _working = True
    by_segment: dict[Segment, list[Hold]] = {}
    for hold in _holds.values():
        by_segment.setdefault(hold.segment, []).append(hold)
    pid, token = os.getpid(), segments.new_token()
    for segment, holds in by_segment.items():
        try:
            with segment:
                _for_child.extend((hold, *segment.add(hold.cell, pid, token)) for hold in holds)
        except (OverflowError, OSError):
            segment.set_flag(PINNED, True)  # nobody can know any more who has it
    _working = False


def _after_fork_in_parent() -> None:
    _for_child.clear()
    _lock.release()
    _work_off()


def _after_fork_in_child() -> None:
    """Take the entries."""
    global _own, _is_registered
    _is_registered = False
    _own = None
    pid = os.getpid()
    for hold, index, token in _for_child:
        if not hold.segment.has(index, token):
            os.write(2, b"mp_core: the parent of this process died while it forked; its shared memory is gone\n")
            os._exit(1)
        hold.segment.hand_over(index, pid)
        hold.index, hold.token = index, token
    _for_child.clear()
    for segment in list(_segments.values()):
        segment.is_own = False
        if not segment.holds:
            _forget(segment)
    _lingering.clear()
    _lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
