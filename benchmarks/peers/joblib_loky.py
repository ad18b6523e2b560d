"""joblib on its loky processes: large arguments are written to files that the worker maps."""

from __future__ import annotations

import importlib
import uuid
from typing import Any

from benchmarks.peers.base import Ask, Courier, Peer, Starter, stand_apart

MEMMAP_FROM = 128 << 10


class JoblibLoky(Peer):
    """
    A task on joblib's loky executor; arrays above 128 KiB are memory-mapped from `/dev/shm` (its default is 1 MiB).

    It uses the executor under `Parallel` and not `Parallel` itself, which polls for results every 10 ms: a single task
    would never take less.
    """

    name = "joblib"
    needs = "joblib"
    distribution = "joblib"
    slow = True

    def connect(self, starter: Starter) -> Ask:
        executor = importlib.import_module("joblib.executor")
        self._executor = executor.get_memmapping_executor(
            1, initializer=stand_apart, max_nbytes=MEMMAP_FROM, context_id=uuid.uuid4().hex
        )
        submit, touch = self._executor.submit, Courier().touch
        submit(touch, 0).result()

        def ask(message: Any) -> Any:
            return submit(touch, message).result()

        return ask

    def close(self) -> None:
        if hasattr(self, "_executor"):
            self._executor.terminate()
