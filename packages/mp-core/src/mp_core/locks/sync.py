"""The block of shared memory that a lock lives in: made, sent to a child, received.

Every lock, condition, event and barrier is a block of libshm with a kind. It travels to a child among the arguments of
`Process`, like the standard library's, and in any message that may share memory: to a pool's task, or through a queue.
"""

from __future__ import annotations

import math
import warnings
from multiprocessing import context

from mp_core.children.inheritance import assert_travels
from mp_core.memory.block import Block, reason
from mp_core.sharing import backend, strategy
from mp_core.sharing.backend import ffi, lib, rebuild_block, sync_handle
from mp_core.system.errors import OwnerDiedWarning, SharedMemoryWarning, user_stack_level, warn_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The result of `create` where memory cannot be shared: the caller makes the standard library's object.
NOT_SHARED = None
#: SEM_VALUE_MAX of Linux.
MOST = 2**31 - 1


def create(kind: int, value: int = 0, most: int = 1) -> Block | None:
    """Make a block of that kind, or return NOT_SHARED. A bad number is a `ValueError`."""
    if not 0 <= value <= most <= MOST:
        raise ValueError(f"a value of {value} of at most {most} is not possible")
    made = backend.create_sync(strategy.CODES[strategy.get_sharing_strategy()], kind, value, most)
    if isinstance(made, Block):
        return made
    if backend.LIBSHM:
        warn_user(
            "standard lock",
            "memory cannot be shared, so this lock (or condition, event, barrier) and others are the standard "
            f"library's, which are lost with a process that is killed: {reason(-made)}",
            SharedMemoryWarning,
        )
    return NOT_SHARED


def handle_of(thing: Any, block: Block) -> bytes:
    """Return the handle of the block, for one receiver; a `RuntimeError` where *thing* cannot travel."""
    assert_travels(thing)
    return bytes(sync_handle(block))


def receive(handle: bytes) -> Block:
    """Receive the block of `handle_of`."""
    return rebuild_block(handle)  # type: ignore[no-any-return]


def standard(kind: Any, *args: Any, ctx: Any) -> Any:
    """Make the standard library's object, for a process that cannot share memory."""
    return kind(*args, ctx=context._default_context.get_context() if ctx is None else ctx)


def nanoseconds(timeout: float | None) -> int:
    """Return a timeout in seconds as libshm takes it; None and more than thirty years have no end."""
    if timeout is None or timeout >= 1e9:
        return 2**64 - 1
    if timeout <= 0:
        return 0
    if timeout != timeout:
        raise ValueError("a timeout is a number of seconds, not nan")
    return math.ceil(timeout * 1e9)


class SharedBlock:
    """A block with the pointer by which cffi calls take it; it keeps both alive."""

    __slots__ = ("block", "pointer")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.pointer = ffi.cast("mpshm_block *", block._pointer)

    @classmethod
    def received(cls, handle: bytes, kind: int) -> SharedBlock:
        """Receive a block and check its kind: a handle of anything else is a `ValueError`."""
        self = cls(receive(handle))
        if lib.mpshm_sync_kind(self.pointer) != kind:
            raise ValueError(f"{self.block!r} is not of the kind that was sent")
        return self


_HELD = "the process that had this lock has died; what the lock guards may be half changed"
_UNITS = "a process that had acquired this semaphore has died, and its units have returned"


def _warn(is_semaphore: int) -> None:
    warnings.warn(_UNITS if is_semaphore else _HELD, OwnerDiedWarning, stacklevel=user_stack_level())


backend.setup_locks(_warn)
