"""torch's tensors on mp-all's queues after `mp_all.torch_install()`."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers.base import Courier, Peer


class TorchInstalled(Peer):
    """`mp_all.SimpleQueue` after `torch_install()`, with torch's tensors, one thread."""

    name = "torch ours"
    module = "mp_all"
    needs = "mp_torch"
    distribution = "torch"
    option = "--torch"

    def open(self) -> None:
        super().open()
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(1)
        self.mp.torch_install()

    def fresh(self, nbytes: int) -> Any:
        return self.torch.ones(nbytes, dtype=self.torch.uint8)

    def shared(self, nbytes: int) -> Any:
        return self.torch.zeros(nbytes, dtype=self.torch.uint8).share_memory_()

    def courier(self) -> Courier:
        return InstalledCourier()


class InstalledCourier(Courier):
    def __setstate__(self, state: dict[str, Any]) -> None:
        # The child process begins here.
        self.__dict__.update(state)
        importlib.import_module("torch").set_num_threads(1)
