"""`multiprocessing.shared_memory` by hand, a new one for each message, which needs no protocol for reuse."""

from __future__ import annotations

from multiprocessing import shared_memory
from typing import Any

import numpy as np

from benchmarks.peers.base import Courier, Peer


class ByHandNew(Peer):
    """A new `SharedMemory` for each message, which its receiver unlinks; a name and a length on the `SimpleQueue`."""

    name = "by hand, new"
    slow = True

    def pack(self, message: Any) -> Any:
        if not isinstance(message, np.ndarray):
            return message
        memory = shared_memory.SharedMemory(create=True, size=message.nbytes)
        view: np.ndarray[Any, Any] = np.ndarray(message.nbytes, np.uint8, memory.buf)
        view[:] = message
        del view
        memory.close()
        return memory.name, message.nbytes

    def courier(self) -> Courier:
        return UnlinkingCourier()


class UnlinkingCourier(Courier):
    def touch(self, packed: Any) -> float:
        if not isinstance(packed, tuple):
            return float(packed)
        name, nbytes = packed
        memory = shared_memory.SharedMemory(name=name)
        view: np.ndarray[Any, Any] = np.ndarray(nbytes, np.uint8, memory.buf)
        ends = float(view[0]) + float(view[-1])
        del view
        memory.close()
        memory.unlink()
        return ends
