"""pebble: a pool of processes that also goes on when a worker is killed; arguments are pickled."""

from __future__ import annotations

from benchmarks.peers.base import Ask, Courier, Peer, Starter, stand_apart


class Pebble(Peer):
    """`ProcessPool(1).schedule` of a function that touches the array, under the spawn start method."""

    name = "pebble"
    needs = "pebble"
    distribution = "pebble"
    slow = True

    def connect(self, starter: Starter) -> Ask:
        self._pool = self.api.ProcessPool(1, context=starter.context, initializer=stand_apart)
        schedule, touch = self._pool.schedule, Courier().touch
        schedule(touch, (0,)).result()
        return lambda message: schedule(touch, (message,)).result()

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.stop()
            self._pool.join()
