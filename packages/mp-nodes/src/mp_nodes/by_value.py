"""Pickle for another machine: everything by value, and nothing that belongs to this machine."""

from __future__ import annotations

import math
import pickle
import socket
import sys
from multiprocessing import synchronize
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue, SimpleQueue
from typing import Any

from mp_core.memory.lease import Lease, LeaseReference
from mp_core.sharing.backend import pickled
from mp_spawn.calls.pickling import dumps, foreign_reducer

# Objects that refer to a file, a process or the memory of this machine.
_LOCKS = (synchronize.SemLock, synchronize.Condition, synchronize.Event, synchronize.Barrier)
LOCAL_ONLY = (Connection, socket.socket, Lease, LeaseReference, Queue, SimpleQueue, *_LOCKS)
LARGE = 16 * 1024  # bytes: a smaller buffer stays in the pickle


def refuse_what_is_local(thing: Any) -> None:
    """Raise `TypeError` for an object that cannot be used on another machine."""
    kind = type(thing)
    in_shared_memory = "create_memoryview" in vars(kind)  # the memory of a RawValue, a Value or an Array
    named = sys.modules.get("multiprocessing.shared_memory")  # another machine may have other memory of that name
    is_named = named is not None and isinstance(thing, (named.SharedMemory, named.ShareableList))
    if in_shared_memory or is_named or isinstance(thing, LOCAL_ONLY):
        name = "ctypes objects in shared memory" if in_shared_memory else f"{kind.__name__} objects"
        raise TypeError(f"{name} cannot reach another machine; leave them out")


def without_file(thing: Any) -> Any:
    """
    Return a memory-mapped array as a plain one: its reducer sends a path, and another machine may have another file.
    """
    numpy = sys.modules.get("numpy")
    return numpy.asarray(thing) if numpy is not None and isinstance(thing, numpy.memmap) else thing


class _Large(list[pickle.PickleBuffer]):
    """Takes buffers of at least *least* bytes out of a pickle."""

    def __init__(self, least: float) -> None:
        self._least = least

    def append(self, buffer: pickle.PickleBuffer) -> bool:  # type: ignore[override]
        """Take the buffer; return True, for pickle, if it stays inside."""
        if buffer.raw().nbytes < self._least:
            return True
        super().append(buffer)
        return False


class _ByValue:
    """Decides how objects are pickled."""

    def __init__(self, least: float) -> None:
        self.buffers = _Large(least)

    def reduce(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        refuse_what_is_local(thing)
        return NotImplemented if foreign_reducer(type(thing)) is None else without_file(thing).__reduce_ex__(5)


def dumps_by_value(thing: Any, what: str) -> bytes:
    """
    Pickle *thing* for another machine; `pickle.loads` loads it. *what* names it in the error.

    >>> pickle.loads(dumps_by_value([1, "a"], "a list"))
    [1, 'a']
    """
    return pack_by_value(thing, what, math.inf)[0]


def pack_by_value(thing: Any, what: str, least: float = LARGE) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle *thing* likewise, with its buffers of at least *least* bytes beside the pickle."""
    found = _ByValue(least)
    # The message is dropped with its references: there is no receiver on this machine.
    data = pickled(dumps, thing, what, "", False, found).data
    return data, list(found.buffers)
