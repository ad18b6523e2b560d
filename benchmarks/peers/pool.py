"""`multiprocessing.Pool`, a task for each array, as in most programs."""

from __future__ import annotations

from benchmarks.peers.base import Ask, Courier, Peer, Starter, stand_apart


class Pool(Peer):
    """`multiprocessing.Pool(1).apply` of a function that touches the array."""

    name = "Pool"
    slow = True

    def connect(self, starter: Starter) -> Ask:
        self._pool = starter.context.Pool(1, stand_apart)
        apply, touch = self._pool.apply, Courier().touch
        apply(touch, (0,))
        return lambda message: apply(touch, (message,))

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()
            self._pool.join()
