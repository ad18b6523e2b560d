"""Block: an allocation of shared memory that can be sent to other processes.

Its memory is libshm's, or that of portable sharing (`backend.py`).

A block is pickled, for another process only, as a handle of 56 bytes that is good for one receiver, which then has the
same memory.
"""

from __future__ import annotations

import errno
import operator
import os
from multiprocessing.reduction import ForkingPickler

from mp_core.memory import receive_errors
from mp_core.sharing import backend, strategy
from mp_core.sharing.backend import Buffer, rebuild_block, rebuild_copy, reduce_block, reduce_copy
from mp_core.sharing.failed_calls import failed_call
from mp_core.system import settings
from mp_core.system.errors import NO_MANAGER
from mp_core.system.fan_out import declare_one_receiver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Block", "Copied", "allocate", "block_at", "error_of", "rebuild_block", "rebuild_copy", "reduce_block"]

if TYPE_CHECKING:

    class _Base:
        @property
        def nbytes(self) -> int: ...
        @property
        def address(self) -> int: ...
        @property
        def _pointer(self) -> int: ...
        @property
        def _strategy(self) -> int: ...
        def _end(self) -> bool: ...
        def _others(self) -> int: ...
        def _revoke(self) -> None: ...
        def _sign(self) -> None: ...
        def _signer_lives(self) -> bool: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...

else:
    _Base = Buffer


class Block(_Base):
    """
    Allocate zeroed bytes of shared memory, under the current sharing strategy.

    A block has the buffer protocol (writable, aligned to 64 bytes). You can put it on a queue or a pipe, or pass it to
    a process as an argument: the receiver gets the same memory. It is freed when the last process has released it and
    no message in flight carries it.

    Parameters
    ----------
    nbytes : int
        Its size in bytes; 0 is allowed.

    Raises
    ------
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        The size is not an integer.
    ValueError
        The size is negative.

    Examples
    --------
    >>> block = mp.Block(1000)
    >>> memoryview(block)[0] = 7
    >>> block.nbytes, block.is_shared
    (1000, True)
    """

    __slots__ = ()  # keeps a million of them cheap

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
            "a Block can be sent to another process (on a queue, through a pipe, as an argument) but cannot be "
            "pickled to be stored; use bytes(block) for a copy"
        )


def allocate(nbytes: int, *, zeroed: bool) -> Block:
    """
    Allocate a block of *nbytes* bytes, whose content is undefined unless *zeroed*. Users call `Block`.

    It raises the errors of `Block`.

    >>> allocate(1000, zeroed=False).nbytes
    1000
    """
    size = operator.index(nbytes)
    name = strategy.get_sharing_strategy()
    if size < 0:
        raise ValueError(f"a block cannot have {size} bytes; give 0 or more")
    if size >= 2**63:
        raise MemoryError(_no_room(size, name))
    block = backend.allocate(Block, strategy.CODES[name], size, zeroed)
    if isinstance(block, Block):
        return block
    raise _error(-block, size, name)


def error_of(number: int, nbytes: int) -> MemoryError | OSError:
    """Return the error of `Block` for a function that returned -*number* for *nbytes* bytes."""
    return _error(number, nbytes, strategy.get_sharing_strategy())


def _error(number: int, size: int, name: str) -> MemoryError | OSError:
    if number in _NO_ROOM:
        return MemoryError(_no_room(size, name))
    message = f"cannot allocate {size} bytes of shared memory ({name}): {reason(number)}"
    return MemoryError(message) if number in _NO_RESOURCE else OSError(number, message)


def block_at(address: int) -> Block | None:
    """
    Return the block of this process that contains *address*, or None; for memory that is known by its address alone.

    >>> block = Block(1000)
    >>> block_at(block.address + 10).nbytes, block_at(1)
    (1000, None)
    """
    block = backend.find(Block, address)
    return block if isinstance(block, Block) else None


class Copied:
    """
    An in-flight reference to a block whose bytes were copied for one receiver, which expects no sharing.

    Send it once. It arrives as a `Block`, or as a `bytearray` of the same bytes where memory cannot be shared.
    """

    __slots__ = ("handle",)

    def __init__(self, block: Block) -> None:
        _, (self.handle,) = reduce_copy(block)


def _reduce_copied(copied: Copied) -> Any:
    return rebuild_copy, (copied.handle,)


# ---- error messages --------------------------------------------------------------------------------------------------

_NO_ROOM = {errno.ENOMEM, errno.ENOSPC}
_NO_RESOURCE = {
    errno.EMFILE,
    errno.ENFILE,
    errno.EUSERS,
    errno.EFBIG,
    errno.ENOBUFS,
    errno.EDQUOT,
    errno.ENODEV,
    errno.EOPNOTSUPP,
}

_REASONS = {
    errno.EMFILE: "this process has no descriptor left; raise the limit (ulimit -n) or close files",
    errno.ENFILE: "the system has no descriptor left; close files, or raise fs.file-max",
    errno.EUSERS: "1024 processes of this session share memory already; let some of them end, or send a private array",
    errno.ENOBUFS: "the manager, which maps what each process of this session shares, has no address space left; raise "
    "the limit (ulimit -v), or let some processes end",
    errno.EFBIG: "this process may not make a file of the size that shared memory has, 8 MiB or more where arrays "
    "share a file; raise the limit (ulimit -f)",
    errno.EDQUOT: "the runtime folder, which has its control files, is full; free some space, or set "
    "MPSHM_RUNTIME_DIR to another folder",
    errno.ENODEV: "/dev/shm is missing or this user may not write to it; mount a tmpfs there, or use the "
    "file_descriptor strategy, which does not need it",
    errno.EOPNOTSUPP: "this system refuses memfd_create (a sandbox?), and /dev/shm cannot be used in its place; "
    "allow one of the two",
    **NO_MANAGER,
    errno.ENOENT: "the runtime folder {folder} is missing; set MPSHM_RUNTIME_DIR to an existing folder",
    errno.ENOTDIR: "the runtime folder {folder} is not a folder; set MPSHM_RUNTIME_DIR to one",
    errno.EACCES: "the runtime folder in {folder}, or its manager, belongs to another user, or cannot be written, or "
    "is a link or has another mode than 0700; set MPSHM_RUNTIME_DIR to a folder of your own",
    errno.EROFS: "the runtime folder in {folder} cannot be written, the disk is read-only; "
    "set MPSHM_RUNTIME_DIR to another folder",
}


def reason(number: int) -> str:
    """
    Return why memory could not be shared, for an error number, and what to do.

    >>> "ulimit -n" in reason(errno.EMFILE)
    True
    """
    folder = settings.runtime_root()
    if number == errno.ENOTDIR and os.path.isdir(folder or "/tmp"):
        folder = settings.runtime_folder()
    if number == errno.EINVAL and folder and not os.path.isabs(folder):
        return f"MPSHM_RUNTIME_DIR is {folder!r}, which is relative; give an absolute path, the same for all processes"
    if number == errno.EPROTO:
        return other_version()
    if number in (errno.ENOENT, errno.EACCES) and backend.MANAGER and not os.access(backend.MANAGER, os.X_OK):
        return (
            f"{backend.MANAGER} is missing or may not be executed, as after a copy that lost it; install mp-core again"
        )
    return _REASONS.get(number, "").replace("{folder}", folder or "/tmp") or failed_call(number)


def other_version() -> str:
    """
    Return a sentence that names the other version of the library that made the files of this process's session.

    >>> "version" in other_version()
    True
    """
    found, own = backend.refused_version() or "an older one", backend.compiled_version()
    return (
        f"its processes share through version {found} of libshm, and this process has version {own}; install the "
        "same mp-core for all of them"
    )


def _no_room(size: int, name: str) -> str:
    if not hasattr(os, "sysconf"):
        return f"cannot allocate {size} bytes of shared memory; drop arrays, or enlarge the paging file"
    if name == "file_system" and os.path.isdir("/dev/shm"):
        fs = os.statvfs("/dev/shm")
        free, total = fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize
        if size > free:
            return (
                f"cannot allocate {size} bytes of shared memory: /dev/shm has {free} of {total} bytes free; enlarge it "
                "(docker run --shm-size, mount -o remount,size=) or use the file_descriptor strategy, which it does "
                "not limit"
            )
    from mp_core.system.control_groups import memory_left  # a refusal alone needs it

    free = int(min(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_left()))
    return (
        f"cannot allocate {size} bytes of shared memory: about {free} bytes of memory are free; "
        "drop arrays, or check the limits of this process (ulimit -v) and of its container"
    )


backend.setup(Block)
receive_errors.setup()
ForkingPickler.register(Block, reduce_block)
ForkingPickler.register(Copied, _reduce_copied)


declare_one_receiver(Block)
