"""`multiprocessing.Pool`, a task for each array, as in most programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.base import Ask, Courier, Peer, stand_apart

if TYPE_CHECKING:
    from benchmarks.driver import Stage


class Pool(Peer):
    """`multiprocessing.Pool(1).apply` of a function that touches the array."""

    name = "Pool"
    slow = True

    def connect(self, stage: Stage) -> Ask:
        self._pool = stage.context.Pool(1, stand_apart)
        apply, touch = self._pool.apply, Courier().touch
        apply(touch, (0,))
        return lambda message: apply(touch, (message,))

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()
            self._pool.join()
