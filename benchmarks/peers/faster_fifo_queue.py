"""faster-fifo: a ring of bytes in shared memory, into and out of which the pickled array is copied."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import Ask, Peer

if TYPE_CHECKING:
    from benchmarks.driver import Stage

RING_BYTES = 160 << 20
SMALL_RING_BYTES = 1 << 16


class FasterFifo(Peer):
    """`faster_fifo.Queue` of 160 MiB, one there and one back, with pickle's protocol 5 instead of its default."""

    name = "faster-fifo"
    needs = "faster_fifo"
    distribution = "faster-fifo"
    slow = True

    def connect(self, stage: Stage) -> Ask:
        there = self.api.Queue(RING_BYTES, dumps=dumps, loads=pickle.loads)
        return self.talk(stage, there, self.api.Queue(SMALL_RING_BYTES))

    def queue(self, stage: Stage, nbytes: int) -> Any:
        # Its size is in bytes, and a message is a little more than its array.
        return self.api.Queue(8 * (nbytes + 512), dumps=dumps, loads=pickle.loads)


def dumps(message: Any) -> bytes:
    return pickle.dumps(message, protocol=5)
