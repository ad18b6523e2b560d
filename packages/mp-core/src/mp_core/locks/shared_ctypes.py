"""The memory of `Value`, `Array`, `RawValue` and `RawArray` is a block of ours.

So they travel in messages like locks and queues, and an array over one (`np.frombuffer(raw)`) is recognised as shared.
Where memory cannot be shared, it is the standard library's.
"""

from __future__ import annotations

from mp_core.children.inheritance import assert_travels
from mp_core.locks.sync import handle_of, receive
from mp_core.memory.block import Block, allocate
from mp_core.sharing import backend
from mp_core.system.fan_out import declare_one_receiver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Memory:
    """The memory of one object: stands for multiprocessing's `BufferWrapper`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def create_memoryview(self) -> memoryview:
        return memoryview(self._block)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (handle_of(self, self._block),)


def _received(handle: bytes) -> Memory:
    return Memory(receive(handle))


def _new_value(kind: Any) -> Any:
    """Return an object of ctypes in shared memory, as the function of this name in multiprocessing."""
    # Not at the top: a child that receives a `Memory` may import this module first, and this one installs it here.
    import ctypes
    from multiprocessing import heap, sharedctypes

    size = ctypes.sizeof(kind)
    wrapper: Any
    try:
        wrapper = Memory(allocate(size, zeroed=False)) if backend.LIBSHM else heap.BufferWrapper(size)
    except (MemoryError, OSError):
        wrapper = heap.BufferWrapper(size)
    names: Any = sharedctypes
    return names.rebuild_ctype(kind, wrapper, None)


def install() -> None:
    """Have the objects that are made from now on live in blocks, and all of them travel in messages that may share."""
    from multiprocessing import sharedctypes

    names: Any = sharedctypes
    names._new_value = _new_value
    names.assert_spawning = assert_travels


declare_one_receiver(Memory)
