"""`torch.multiprocessing` with its default strategy on Linux, a descriptor for each tensor."""

from __future__ import annotations

import importlib
import resource
from typing import Any

from benchmarks.peers.base import Courier, Peer


class TorchDescriptors(Peer):
    """`torch.multiprocessing.SimpleQueue`, strategy `file_descriptor`, one thread, its descriptor limit raised."""

    name = "torch fd"
    module = "torch.multiprocessing"
    distribution = "torch"
    option = "--torch"
    strategy = "file_descriptor"
    slow = True

    def open(self) -> None:
        # Each tensor needs a descriptor on either side; with the usual limit a list of 1000 fails.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        super().open()
        self.torch = importlib.import_module("torch")
        # Two processes on two cores, as for all peers: helper threads would spin on the core of this one.
        self.torch.set_num_threads(1)
        self.mp.set_sharing_strategy(self.strategy)

    def fresh(self, nbytes: int) -> Any:
        return self.torch.ones(nbytes, dtype=self.torch.uint8)

    def shared(self, nbytes: int) -> Any:
        return self.torch.zeros(nbytes, dtype=self.torch.uint8).share_memory_()

    def courier(self) -> Courier:
        return TorchCourier(self.strategy)


class TorchCourier(Courier):
    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The child process begins here: it needs torch's reducers, the same strategy and few threads.
        self.__dict__.update(state)
        importlib.import_module("torch").set_num_threads(1)
        importlib.import_module("torch.multiprocessing").set_sharing_strategy(self.strategy)
