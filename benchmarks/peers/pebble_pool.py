"""pebble: a pool of processes that also goes on when a worker is killed; arguments are pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.peers.base import Ask, Courier, Peer, stand_apart

if TYPE_CHECKING:
    from benchmarks.driver import Stage


class Pebble(Peer):
    """`ProcessPool(1).schedule` of a function that touches the array, under the spawn start method."""

    name = "pebble"
    needs = "pebble"
    distribution = "pebble"
    slow = True

    def connect(self, stage: Stage) -> Ask:
        self._pool = self.api.ProcessPool(1, context=stage.context, initializer=stand_apart)
        schedule, touch = self._pool.schedule, Courier().touch
        schedule(touch, (0,)).result()
        return lambda message: schedule(touch, (message,)).result()

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.stop()
            self._pool.join()
