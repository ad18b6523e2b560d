"""Block: an allocation of shared memory that knows how to travel.

The engine is C (`libshm/`); this is its face. A block is pickled, for another process only, as a handle of 56 bytes
that is good for one claim; whoever claims it holds the same memory.
"""

from __future__ import annotations

import errno
import operator
import os
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

from mp_core import _native, _receiving, strategy
from mp_core._native import Buffer, rebuild_block, rebuild_copy, reduce_block, reduce_copy

__all__ = ["Block", "Copied", "allocate", "block_at", "rebuild_block", "reduce_block"]

if TYPE_CHECKING:

    class _Base:
        @property
        def nbytes(self) -> int: ...
        @property
        def _address(self) -> int: ...
        @property
        def _strategy(self) -> int: ...
        def _others(self) -> int: ...
        def _revoke(self) -> None: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...

else:
    _Base = Buffer


class Block(_Base):
    """
    Zeroed bytes of shared memory, under the sharing strategy of the moment.

    A block has the buffer protocol (writable, aligned to 64 bytes) and can be put on a queue or a pipe, or given to a
    process as an argument: the receiver gets the same memory. It is freed when the last holder, in whatever process,
    has dropped it and no message that carries it is under way.

    Parameters
    ----------
    nbytes : int
        Its size in bytes; 0 is allowed.

    Raises
    ------
    MemoryError
        There is not so much; the message has the sizes and what to do.
    TypeError
        The size is no integer.
    ValueError
        The size is negative.

    Examples
    --------
    >>> block = mp.Block(1000)
    >>> memoryview(block)[0] = 7
    >>> block.nbytes, block.is_shared
    (1000, True)
    """

    __slots__ = ()  # a million of them are cheap

    def __new__(cls, nbytes: int) -> Block:
        return allocate(nbytes, zeroed=True)

    @property
    def is_shared(self) -> bool:
        """True: a block lives in shared memory."""
        return True

    @property
    def strategy(self) -> str:
        """The sharing strategy under which this block was made."""
        return strategy.NAMES[self._strategy]

    def __repr__(self) -> str:
        return f"<Block of {self.nbytes} bytes, {self.strategy}>"

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
    block = _native.allocate(Block, strategy.CODES[name], size, zeroed)
    if isinstance(block, Block):
        return block
    if -block in _NO_ROOM:
        raise MemoryError(_no_room(size, name))
    if -block in _NO_MEANS:
        raise MemoryError(f"cannot allocate {size} bytes of shared memory ({name}): {_reason(-block)}")
    raise OSError(-block, f"cannot allocate {size} bytes of shared memory ({name}): {_reason(-block)}")


def block_at(address: int) -> Block | None:
    """
    The block of this process in which *address* lies, or None; for memory that came back without its Block.

    >>> block = Block(1000)
    >>> block_at(block._address + 10).nbytes, block_at(1)
    (1000, None)
    """
    block = _native.find(Block, address)
    return block if isinstance(block, Block) else None


class Copied:
    """
    A claim on a block whose bytes were copied for one receiver, who expects no sharing.

    Sent, once, it arrives as a `Block`, or as a `bytearray` of the same bytes where memory cannot be shared.
    """

    __slots__ = ("handle",)

    def __init__(self, block: Block) -> None:
        _, (self.handle,) = reduce_copy(block)


def _reduce_copied(copied: Copied) -> Any:
    return rebuild_copy, (copied.handle,)


# ---- what to say when it fails ---------------------------------------------------------------------------------------

_NO_ROOM = {errno.ENOMEM, errno.ENOSPC}
_NO_MEANS = {
    errno.EMFILE,
    errno.ENFILE,
    errno.EUSERS,
    errno.EFBIG,
    errno.EDQUOT,
    errno.ENODEV,
    errno.EOPNOTSUPP,
}

_REASONS = {
    errno.EMFILE: "this process has no descriptor left; raise the limit (ulimit -n) or close what is not needed",
    errno.ENFILE: "the system has no descriptor left; close some, or raise fs.file-max",
    errno.EUSERS: "1024 processes of this tree share memory already; let some of them end, or send a private array",
    errno.EFBIG: "this process may not make a file as large as that, and shared memory counts as one; raise the "
    "limit (ulimit -f)",
    errno.EDQUOT: "the folder that its small files go into is full; free some of it, or set MPSHM_RUNTIME_DIR to "
    "another",
    errno.ENODEV: "/dev/shm is missing or this user may not write to it; mount a tmpfs there, or use the "
    "file_descriptor strategy, which does not need it",
    errno.EOPNOTSUPP: "this system refuses memfd_create (a sandbox?), and /dev/shm cannot be used in its place; "
    "allow one of the two",
    errno.ETIMEDOUT: "the shared memory manager (shm-manager) does not answer; if it is stopped, kill -CONT it",
    errno.EAGAIN: "the shared memory manager (shm-manager) does not answer; if it is stopped, kill -CONT it",
    errno.ENOENT: "the folder that its files go into is missing; set MPSHM_RUNTIME_DIR to one that is there",
    errno.ENOTDIR: "what its files should go into is no folder; set MPSHM_RUNTIME_DIR to one",
    errno.EACCES: "its files cannot be written; set MPSHM_RUNTIME_DIR to a folder that this user may write to",
    errno.EROFS: "its files cannot be written, the disk is read-only; set MPSHM_RUNTIME_DIR to another folder",
    errno.EPERM: "its folder or its manager belongs to somebody else; set MPSHM_RUNTIME_DIR to another folder",
}


def _reason(number: int) -> str:
    folder = os.environ.get("MPSHM_RUNTIME_DIR", "")
    if number == errno.EINVAL and folder and not os.path.isabs(folder):
        return f"MPSHM_RUNTIME_DIR is {folder!r}, which is relative; give an absolute path, the same for all processes"
    if number == errno.EPROTO:
        return other_version()
    return _REASONS.get(number, os.strerror(number))


def other_version() -> str:
    """
    Say which other version of the library has made the files of this process's tree.

    >>> "version" in other_version()
    True
    """
    found = _native.ffi.string(_native.lib.mpshm_refused_version()).decode() or "an older one"
    own = _native.ffi.string(_native.lib.mpshm_version()).decode()
    return (
        f"its processes share through version {found} of libshm, and this one has version {own}; install the same "
        "mp-core for all of them"
    )


def _no_room(size: int, name: str) -> str:
    if name == "file_system" and os.path.isdir("/dev/shm"):
        fs = os.statvfs("/dev/shm")
        free, total = fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize
        return (
            f"cannot allocate {size} bytes of shared memory: /dev/shm has {free} of {total} bytes free; enlarge it "
            "(docker run --shm-size, mount -o remount,size=) or use the file_descriptor strategy, which it does not "
            "limit"
        )
    pages, page = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return (
        f"cannot allocate {size} bytes of shared memory: about {pages * page} bytes of memory are free; "
        "drop arrays, or look at the limits of this process (ulimit -v) and of its container"
    )


_native.setup(Block)
_receiving.setup()
ForkingPickler.register(Block, reduce_block)
ForkingPickler.register(Copied, _reduce_copied)
