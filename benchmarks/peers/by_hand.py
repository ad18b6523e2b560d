"""`multiprocessing.shared_memory` by hand, as an expert would write it for one stream of messages."""

from __future__ import annotations

from multiprocessing import shared_memory
from typing import Any

import numpy as np

from benchmarks.peers.base import Courier, Peer


class ByHand(Peer):
    """
    One `SharedMemory`, attached once, copied into for each message; a name and a length on the `SimpleQueue`.

    The program must ensure that nothing is written before the last message was read; this is not measured.
    """

    name = "by hand"
    _buffer: shared_memory.SharedMemory | None = None

    def _room(self, nbytes: int) -> shared_memory.SharedMemory:
        if self._buffer is None or self._buffer.size < nbytes:
            self._give_back()
            self._buffer = shared_memory.SharedMemory(create=True, size=nbytes)
            self._view: np.ndarray[Any, Any] = np.ndarray(self._buffer.size, np.uint8, self._buffer.buf)
        return self._buffer

    def _give_back(self) -> None:
        if self._buffer is not None:
            del self._view
            self._buffer.close()
            self._buffer.unlink()
            self._buffer = None

    def pack(self, message: Any) -> Any:
        if not isinstance(message, np.ndarray):
            return message
        buffer = self._room(message.nbytes)
        self._view[: message.nbytes] = message
        return buffer.name, message.nbytes

    def courier(self) -> Courier:
        return HandCourier()

    def close(self) -> None:
        super().close()
        self._give_back()


class HandCourier(Courier):
    def __init__(self) -> None:
        self._name = ""

    def touch(self, packed: Any) -> float:
        if not isinstance(packed, tuple):
            return float(packed)
        name, nbytes = packed
        if name != self._name:
            self._attached = shared_memory.SharedMemory(name=name)
            self._name = name
        view: np.ndarray[Any, Any] = np.ndarray(nbytes, np.uint8, self._attached.buf)
        return float(view[0]) + float(view[-1])
