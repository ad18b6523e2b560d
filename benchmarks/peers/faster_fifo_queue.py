"""faster-fifo: the pickled array is copied into and out of a ring of bytes in shared memory."""

from __future__ import annotations

import pickle
from typing import Any

from benchmarks.peers.base import Ask, Peer, Starter

RING_BYTES = 160 << 20
SMALL_RING_BYTES = 1 << 16
A_DAY_S = 86400.0


class FasterFifo(Peer):
    """`faster_fifo.Queue` of 160 MiB, one there and one back, with pickle's protocol 5 instead of its default."""

    name = "faster-fifo"
    needs = "faster_fifo"
    distribution = "faster-fifo"
    slow = True

    def connect(self, starter: Starter) -> Ask:
        there = self.api.Queue(RING_BYTES, dumps=dumps, loads=pickle.loads)
        return self.talk(starter, Patient(there), Patient(self.api.Queue(SMALL_RING_BYTES)))

    def queue(self, starter: Starter, nbytes: int, places: int = 8) -> Any:
        # Its size is in bytes, and a message is a little more than its array.
        return Patient(self.api.Queue(places * (nbytes + 512), dumps=dumps, loads=pickle.loads))


class Patient:
    """Its queue, which by default gives up after ten seconds, with the patience of `multiprocessing`'s."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def put(self, message: Any) -> None:
        self.queue.put(message, timeout=A_DAY_S)

    def get(self) -> Any:
        return self.queue.get(timeout=A_DAY_S)

    def close(self) -> None:
        self.queue.close()

    def join_thread(self) -> None:
        """Do nothing: the queue has no thread."""


def dumps(message: Any) -> bytes:
    return pickle.dumps(message, protocol=5)
