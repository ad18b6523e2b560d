"""Block: an allocation of shared memory that knows how to travel.

Note [One block, one object]
----------------------------
A process that meets a block a second time, its own included, gets the object that it already has:

    put(block) --> handle --> get() --> rebuild_block --> _live[id] --> the same Block

So two handles to one block in one process are one memory and one mapping, and whatever stands on the block (two views
of one base, say) finds itself on common ground again.
"""

from __future__ import annotations

import errno
import operator
import os
import threading
import weakref
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from mp_core import file_descriptor, file_system, strategy
from mp_core._native import Buffer, check, ffi, lib

__all__ = ["Block", "allocate", "rebuild_block", "reduce_block"]

_STRATEGIES: dict[str, ModuleType] = {"file_descriptor": file_descriptor, "file_system": file_system}

_live: weakref.WeakValueDictionary[bytes, Block] = weakref.WeakValueDictionary()
_lock = threading.RLock()

if TYPE_CHECKING:

    class _Base:
        def __new__(cls, address: int) -> _Base: ...
        @property
        def nbytes(self) -> int: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...

else:
    _Base = Buffer


class Block(_Base):
    """
    *nbytes* zeroed bytes of shared memory, under the sharing strategy of the moment.

    A block has the buffer protocol (writable, page-aligned) and can be put on a queue or a pipe, or given to a process
    as an argument: the receiver gets the same memory. It is freed when the last holder, in whatever process, has
    dropped it.

    Raises `TypeError` for a size that is no integer, `ValueError` for a negative one, and `MemoryError`, with the
    sizes, when there is not so much.

    >>> block = Block(1000)
    >>> memoryview(block)[0] = 7
    >>> block.nbytes, block.is_shared
    (1000, True)
    """

    __slots__ = ("__weakref__", "_segment", "_strategy")

    _segment: Any
    _strategy: str

    def __new__(cls, nbytes: int) -> Block:
        return allocate(nbytes, zeroed=True)

    def __del__(self) -> None:
        segment = getattr(self, "_segment", None)
        if segment is not None:
            _STRATEGIES[self._strategy].forget(segment)

    @property
    def is_shared(self) -> bool:
        """True: a block lives in shared memory."""
        return True

    @property
    def strategy(self) -> str:
        """The sharing strategy under which this block was made."""
        return self._strategy

    def __repr__(self) -> str:
        return f"<Block of {self.nbytes} bytes, {self._strategy}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Block can travel to another process (on a queue, through a pipe, as an argument) but cannot be "
            "pickled for keeping; take bytes(block) for a copy"
        )


def allocate(nbytes: int, *, zeroed: bool) -> Block:
    """
    A block of *nbytes* bytes, whose content is undefined unless *zeroed*. `Block` is the friendlier way to ask.

    Errors are those of `Block`.

    >>> allocate(1000, zeroed=False).nbytes
    1000
    """
    size = operator.index(nbytes)
    name = strategy.get_sharing_strategy()
    if size < 0:
        raise ValueError(f"a block cannot have {size} bytes; give 0 or more")
    if size >= 2**63:
        raise MemoryError(_no_room(size, name))
    out = ffi.new("mpshm_segment **")
    rc = lib.mpshm_segment_create(_STRATEGIES[name].CODE, size, out)
    if -rc in _NO_ROOM:
        raise MemoryError(_no_room(size, name))
    check(rc, f"allocate {size} bytes of shared memory ({name})")
    return _adopt(out[0], name)


def _adopt(segment: Any, name: str) -> Block:
    block = _Base.__new__(Block, int(ffi.cast("uintptr_t", segment)))
    assert isinstance(block, Block)
    block._segment = segment
    block._strategy = name
    with _lock:
        _live[_id(segment)] = block
    return block


def _id(segment: Any) -> bytes:
    identity: bytes = ffi.buffer(lib.mpshm_segment_id(segment), lib.MPSHM_ID_SIZE)[:]
    return identity


# ---- out of memory ---------------------------------------------------------------------------------------------------

_NO_ROOM = {errno.ENOMEM, errno.ENOSPC, errno.EFBIG}


def _no_room(size: int, name: str) -> str:
    if name == "file_system":
        fs = os.statvfs("/dev/shm")
        free, total = fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize
        return (
            f"cannot allocate {size} bytes of shared memory: /dev/shm has {free} of {total} bytes free; enlarge it "
            "(docker run --shm-size, mount -o remount,size=) or use the file_descriptor strategy, which it does not limit"
        )
    pages, page = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"cannot allocate {size} bytes of shared memory: about {pages * page} bytes of memory are free"


# ---- travelling ------------------------------------------------------------------------------------------------------


def reduce_block(block: Block) -> tuple[Callable[..., Block], tuple[Any, ...]]:
    """The pickle of a block: which one it is, and how to meet it."""
    ticket = _STRATEGIES[block._strategy].describe(block._segment, block)
    return rebuild_block, (block._strategy, _id(block._segment), block.nbytes, ticket)


def rebuild_block(name: str, identity: bytes, nbytes: int, ticket: Any) -> Block:
    """The block that a handle speaks of: the one already here, or the segment mapped now."""
    module = _STRATEGIES.get(name)
    if module is None:
        raise ValueError(f"the handle of a block is damaged: there is no strategy {name!r}")
    segment = module.meet(ticket)
    if _id(segment) != identity or lib.mpshm_segment_nbytes(segment) != nbytes:
        lib.mpshm_segment_close(segment)
        raise ValueError(f"the handle of a block is damaged or stale: it speaks of {nbytes} bytes that are not there")
    with _lock:
        known = _live.get(identity)
        if known is None:
            return _adopt(segment, name)
    module.forget(segment)  # the message's claim
    lib.mpshm_segment_close(segment)
    return known


ForkingPickler.register(Block, reduce_block)


# ---- fork and exit ---------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """The child will hold what the parent holds now: claim it for the child before there is a child."""
    _lock.acquire()
    for block in _live.values():
        if block._strategy == "file_system":
            lib.mpshm_segment_claim(block._segment)


def _after_fork() -> None:
    _lock.release()


def _at_exit() -> None:
    """Modules may keep blocks alive past the interpreter's end, where no `__del__` runs: give the claims back."""
    with _lock:
        for block in list(_live.values()):
            segment, block._segment = block._segment, None
            _STRATEGIES[block._strategy].forget(segment)
        _live.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _arm_exit(_: object = None) -> None:
    # multiprocessing forgets its finalizers in a forked child, so each process arms its own.
    util.Finalize(None, _at_exit, exitpriority=-100)


_arm_exit()
util.register_after_fork(_lock, _arm_exit)
