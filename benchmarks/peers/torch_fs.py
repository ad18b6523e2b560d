"""`torch.multiprocessing` with a name in `/dev/shm` for each tensor."""

from __future__ import annotations

from benchmarks.peers.torch_fd import TorchDescriptors


class TorchFiles(TorchDescriptors):
    """`torch.multiprocessing.SimpleQueue`, strategy `file_system`, one thread."""

    name = "torch fs"
    strategy = "file_system"
