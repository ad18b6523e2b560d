"""Inputs: private arrays that several tasks read, in memory once, and writable in each task.

Note [Private mappings]
-----------------------
Many tasks of one call get the same array. A message of its own for each costs a copy each; one shared array would show
the writes of a task to the others. So the array is copied once, into a file in memory without a name (memfd), and each
task maps that file privately: pages are shared until a task writes to them, and then the kernel copies the page for
that task. A read-only array is mapped read-only.

    caller   array --> Inputs.reduce --> memfd, and a message of about 200 bytes
    worker   opens /proc/<caller>/fd/<number>, checks device and inode, maps it, closes it

- The file lives as long as a descriptor in the caller or a mapping in a worker: if they are killed, nothing is left.
- If the caller dies before a worker opens the file, that worker, its child, also ends.
- An array is read at its first task of a call: to change it before the call ends is a race, as with any executor.
- Each task keeps its inputs until its result has come. So the caller may drop the array, and the cache is short.
- All pages are allocated by the copy, and the size is sealed: an access cannot be a bus error. Without memory or
  descriptors, beyond a quarter of the limit of descriptors, and from a process that has changed its user (`_can_open`),
  an array travels as any other does.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np

from mp_reductions import is_shared

__all__ = ["Input", "InputBuffer", "Inputs", "map_input"]

Array = np.ndarray[Any, Any]

KEPT = 32  # inputs that have no task

_open: weakref.WeakSet[Input] = weakref.WeakSet()
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Input:
    """A copy of some bytes in a file in memory, which lives until this object is dropped."""

    def __init__(self, content: Array) -> None:
        self.fd = os.memfd_create("mp_all input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd).atexit = False
        _open.add(self)
        # Writing allocates the pages; writing through a mapping would have the kernel clear them before.
        rest = content.data
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        status = os.fstat(self.fd)
        self.place = os.getpid(), self.fd, status.st_dev, status.st_ino, content.nbytes


class Inputs:
    """The inputs of a call: arrays of at least *least* bytes."""

    def __init__(self, least: int) -> None:
        self.least = least
        self._lock = threading.Lock()
        # By the array that owns the memory, and the part of it: the owner, and the copy of the part.
        self._kept: OrderedDict[tuple[int, int, int], tuple[weakref.ref[Array], Input]] = OrderedDict()

    def reduce(self, array: Array, held: list[Input]) -> Any:
        """
        Return a reduced form of *array* whose file lives in *held*; None if the array is not for here.
        """
        if array.nbytes < self.least or array.dtype.hasobject or not array.flags.forc or is_shared(array):
            return None
        if not _can_open():
            return None
        content = array.ravel("K").view(np.uint8)
        try:
            found = self._find(array, content)
        except OSError:
            return None  # no memory or no descriptor
        held.append(found)
        order = "C" if array.flags.c_contiguous else "F"
        return map_input, (*found.place, array.shape, array.dtype, order, array.flags.writeable)

    def _find(self, array: Array, content: Array) -> Input:
        owner = array
        while type(owner.base) is np.ndarray:
            owner = owner.base
        key = id(owner), content.ctypes.data, content.nbytes
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and kept[0]() is owner:
            return kept[1]
        found = Input(content)
        with self._lock:
            self._kept[key] = weakref.ref(owner), found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def clear(self) -> None:
        """Drop all copies that no task needs."""
        with self._lock:
            self._kept.clear()


class InputBuffer:
    """The content of a buffer, which each task gets as a private mapping of one copy."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._content = content
        self._input: Input | None = None
        if _can_open():
            with suppress(OSError):  # no memory or no descriptor
                self._input = Input(np.frombuffer(content, np.uint8))
                self._content = content[:0]

    def __reduce__(self) -> tuple[Any, ...]:
        writable = isinstance(self._content, bytearray)
        if self._input is None:
            return type(self._content), (self._content,)
        place = self._input.place
        return map_input, (*place, place[-1:], np.dtype(np.uint8), "C", writable)


def _can_open() -> bool:
    """
    Return whether this process may open one more input, and its workers that: not after a change of its user.
    """
    few = len(_open) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    try:
        return few and os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:
        return False  # without /proc


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
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileNotFoundError(f"an input of a task is gone: its process {pid} has ended or dropped it") from error
    try:
        status = os.fstat(own)
        if (status.st_dev, status.st_ino, status.st_size) != (device, inode, nbytes):
            raise FileNotFoundError(f"an input of a task is gone: descriptor {fd} of process {pid} is another file")
        access = mmap.PROT_READ | mmap.PROT_WRITE if writeable else mmap.PROT_READ
        mapping = mmap.mmap(own, nbytes, mmap.MAP_PRIVATE, access)
    finally:
        os.close(own)
    return np.ndarray(shape, dtype, mapping, order=order)
