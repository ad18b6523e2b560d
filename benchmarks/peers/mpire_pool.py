"""mpire: a pool of processes whose arguments are pickled, as in the standard library's."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.base import Ask, Courier, Peer, Starter, stand_apart


class Mpire(Peer):
    """`WorkerPool(1, start_method="spawn", keep_alive=True).apply` of a function that touches the array."""

    name = "mpire"
    needs = "mpire"
    distribution = "mpire"
    slow = True

    def connect(self, starter: Starter) -> Ask:
        self._pool = self.api.WorkerPool(1, start_method="spawn", keep_alive=True)
        apply, touch = self._pool.apply, Courier().touch
        apply(apart_and_touch, (0,))
        return lambda message: apply(touch, (message,))

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.stop_and_join()


def apart_and_touch(message: Any) -> float:
    stand_apart()
    return Courier().touch(message)
