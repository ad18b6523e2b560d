"""Inputs: private arrays that several tasks read, in memory once, and writable in each task.

The array is copied once, into a file in memory, and each task maps that: see Note [Private mappings] in
`mp_core.memory.mapped_buffers`. A read-only array is mapped read-only.

- An array is read at its first task of a call: to change it before the call ends is a race, as with any executor.
- Each task keeps its inputs until its result has come. So the caller may drop the array, and the cache is short.
- Without memory or descriptors, beyond a quarter of the limit of descriptors, and from a process that has changed its
  user (`can_open`), an array travels as any other does.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

from mp_core.memory.mapped_buffers import MappedBuffer, can_open, map_privately
from mp_reductions import is_shared

Array = np.ndarray[Any, Any]

KEPT = 32  # inputs that have no task


class Inputs:
    """The inputs of a call: arrays of at least *least* bytes."""

    def __init__(self, least: int) -> None:
        self.least = least
        self._lock = threading.Lock()
        # By the array that owns the memory, and the part of it: the owner, and the copy of the part.
        self._kept: OrderedDict[tuple[int, int, int], tuple[weakref.ref[Array], MappedBuffer]] = OrderedDict()

    def reduce(self, array: Array, held: list[MappedBuffer]) -> Any:
        """Return a reduced form of *array* whose file lives in *held*; None if the array is not for here."""
        if array.nbytes < self.least or array.dtype.hasobject or not array.flags.forc or is_shared(array):
            return None
        if not can_open():
            return None
        content = array.ravel("K").view(np.uint8)
        try:
            found = self._find(array, content)
        except OSError:
            return None  # no memory or no descriptor
        held.append(found)
        order = "C" if array.flags.c_contiguous else "F"
        return map_input, (*found.place, array.shape, array.dtype, order, array.flags.writeable)

    def _find(self, array: Array, content: Array) -> MappedBuffer:
        owner = array
        while type(owner.base) is np.ndarray:
            owner = owner.base
        key = id(owner), content.ctypes.data, content.nbytes
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and kept[0]() is owner:
            return kept[1]
        found = MappedBuffer(content)
        with self._lock:
            self._kept[key] = weakref.ref(owner), found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def clear(self) -> None:
        """Drop all copies that no task needs."""
        with self._lock:
            self._kept.clear()


def map_input(
    pid: int,
    fd: int,
    device: int,
    inode: int,
    nbytes: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    order: Any,
    writeable: bool,
) -> Array:
    """Map an input privately, in a worker; `FileNotFoundError` if the caller has it no longer."""
    mapping = map_privately(pid, fd, device, inode, nbytes, writeable)
    return np.ndarray(shape, dtype, mapping, order=order)
