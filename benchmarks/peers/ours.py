"""mp-all: the standard library's program with the one import changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.base import Peer


class Ours(Peer):
    """`mp_all.SimpleQueue`: the standard library's program with the import changed."""

    name = "ours"
    module = "mp_all"
    distribution = "mp-all"
    option = ""

    def shared(self, nbytes: int) -> Any:
        # Untouched pages use no memory, so a small machine can send 4 GiB.
        return self.mp.shared.zeros(nbytes, np.uint8)
