"""mp-all with portable sharing, as on macOS and Windows."""

from __future__ import annotations

import os

from benchmarks.peers.ours import Ours


class Portable(Ours):
    """`mp_all.SimpleQueue` with `MP_WITHOUT_LIBSHM=1`, as on macOS and Windows."""

    name = "portable"

    def open(self) -> None:
        os.environ["MP_WITHOUT_LIBSHM"] = "1"  # before the import, in this driver and its children
        super().open()
