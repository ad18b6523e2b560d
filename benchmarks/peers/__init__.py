"""The measured libraries: a file for each, in the order of the tables. `base.py` defines a peer."""

from __future__ import annotations

from benchmarks.peers.base import Courier, Peer
from benchmarks.peers.by_hand import ByHand
from benchmarks.peers.by_hand_new import ByHandNew
from benchmarks.peers.faster_fifo_queue import FasterFifo
from benchmarks.peers.iceoryx import Iceoryx2
from benchmarks.peers.joblib_loky import JoblibLoky
from benchmarks.peers.mpire_pool import Mpire
from benchmarks.peers.ours import Ours
from benchmarks.peers.pebble_pool import Pebble
from benchmarks.peers.pool import Pool
from benchmarks.peers.portable import Portable
from benchmarks.peers.raw_pipe import RawPipe
from benchmarks.peers.ray_actor import RayActor
from benchmarks.peers.shared_array import SharedArrayReused
from benchmarks.peers.stdlib import StandardLibrary
from benchmarks.peers.torch_fd import TorchDescriptors
from benchmarks.peers.torch_fs import TorchFiles
from benchmarks.peers.torch_ours import TorchInstalled

__all__ = ["PEERS", "Courier", "Peer"]

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Ours,
        StandardLibrary,
        ByHand,
        TorchDescriptors,
        TorchFiles,
        ByHandNew,
        SharedArrayReused,
        Iceoryx2,
        FasterFifo,
        RawPipe,
        Pool,
        Mpire,
        Pebble,
        JoblibLoky,
        RayActor,
        TorchInstalled,
        Portable,
    )
}
