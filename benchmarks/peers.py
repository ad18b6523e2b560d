"""Who is measured: ours, the standard library, its shared memory by hand, torch with either strategy.

A peer says how to import its `multiprocessing`, what a message of so many bytes is to it (fresh, or in
shared memory already), and how to pack and unpack it where the user has to do that himself.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import resource
from multiprocessing import shared_memory
from typing import Any

import numpy as np


class Peer:
    """The standard library; the others say how they differ."""

    name = "stdlib"
    module = "multiprocessing"
    distribution = ""

    def open(self) -> None:
        """Import it; `ImportError` when it is not installed."""
        self.mp = importlib.import_module(self.module)

    def version(self) -> str:
        return importlib.metadata.version(self.distribution) if self.distribution else ""

    def fresh(self, nbytes: int) -> Any:
        """A message that was never sent before."""
        return np.ones(nbytes, np.uint8)

    def shared(self, nbytes: int) -> Any:
        """A message whose memory is shared already, where there is such a thing."""
        return self.fresh(nbytes)

    def pack(self, message: Any) -> Any:
        """What is put on the queue for *message*."""
        return message

    def courier(self) -> Courier:
        """What the receiving process needs in order to unpack."""
        return Courier()

    def close(self) -> None:
        pass


class Courier:
    """The receiving side of a peer: picklable, so that the child process can have it."""

    def touch(self, packed: Any) -> float:
        """Read the first and the last element of what was received."""
        if isinstance(packed, (int, float)):
            return float(packed)
        if isinstance(packed, list):
            return float(packed[0][0]) + float(packed[-1][-1])
        return float(packed[0]) + float(packed[-1])


class Ours(Peer):
    name = "ours"
    module = "mp_all"
    distribution = "mp-all"

    def shared(self, nbytes: int) -> Any:
        # What was never written to costs nothing, so that 4 GiB can be sent on a small machine.
        return self.mp.shared.zeros(nbytes, np.uint8)


class ByHand(Peer):
    """
    `multiprocessing.shared_memory` as an expert would use it for one stream of messages: one buffer, attached
    once, copied into for each message, and only a length on the queue. He answers for it that nobody writes
    before the last message was read.
    """

    name = "by hand"
    _buffer: shared_memory.SharedMemory | None = None

    def _room(self, nbytes: int) -> shared_memory.SharedMemory:
        if self._buffer is None or self._buffer.size < nbytes:
            self.close()
            self._buffer = shared_memory.SharedMemory(create=True, size=nbytes)
            self._view: np.ndarray[Any, Any] = np.ndarray(self._buffer.size, np.uint8, self._buffer.buf)
        return self._buffer

    def pack(self, message: Any) -> Any:
        if not isinstance(message, np.ndarray):
            return message
        buffer = self._room(message.nbytes)
        self._view[: message.nbytes] = message
        return buffer.name, message.nbytes

    def courier(self) -> Courier:
        return HandCourier()

    def close(self) -> None:
        if self._buffer is not None:
            del self._view
            self._buffer.close()
            self._buffer.unlink()
            self._buffer = None


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


class TorchDescriptors(Peer):
    name = "torch fd"
    module = "torch.multiprocessing"
    distribution = "torch"
    strategy = "file_descriptor"

    def open(self) -> None:
        # Each tensor costs it a descriptor on either side; without this a list of 1000 fails.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        super().open()
        self.torch = importlib.import_module("torch")
        # Two processes on two cores, as everybody here: its helper threads would spin on the core of this one.
        self.torch.set_num_threads(1)
        self.mp.set_sharing_strategy(self.strategy)

    def fresh(self, nbytes: int) -> Any:
        return self.torch.ones(nbytes, dtype=self.torch.uint8)

    def shared(self, nbytes: int) -> Any:
        return self.torch.zeros(nbytes, dtype=self.torch.uint8).share_memory_()

    def courier(self) -> Courier:
        return TorchCourier(self.strategy)


class TorchFiles(TorchDescriptors):
    name = "torch fs"
    strategy = "file_system"


class TorchCourier(Courier):
    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Here the child process begins: it needs torch's reducers, the same strategy and few threads.
        self.__dict__.update(state)
        importlib.import_module("torch").set_num_threads(1)
        importlib.import_module("torch.multiprocessing").set_sharing_strategy(self.strategy)


PEERS: dict[str, type[Peer]] = {p.name: p for p in (Ours, Peer, ByHand, TorchDescriptors, TorchFiles)}
