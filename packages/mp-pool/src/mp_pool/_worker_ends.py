"""`WorkerEnds`: a worker's descriptors, the socket of its tasks and the pipe of its results.

They could go to the worker as two connections. But a spawned process that receives a connection imports the standard
library's connections, and with them what messages need, before its first task: more than half of what it imports. So
their pickle carries what the pickle of a connection does (`mp_core.children`), and the worker imports the rest when it
first waits after a task.
"""

from __future__ import annotations

import os
from multiprocessing import reduction

from mp_core import children

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["WorkerEnds"]


class WorkerEnds:
    """The descriptors *tasks* and *results*, which are closed together, once; -1 until they are there."""

    def __init__(self, tasks: int = -1, results: int = -1) -> None:
        self.tasks = tasks
        self.results = results

    def close(self) -> None:
        """Close both. Idempotent; if a signal handler raises in the middle, call it again."""
        tasks, self.tasks = self.tasks, -1
        if tasks >= 0:
            os.close(tasks)
        results, self.results = self.results, -1
        if results >= 0:
            os.close(results)

    def __reduce__(self) -> tuple[Any, ...]:
        return children.with_state(_rebuild, (reduction.DupFd(self.tasks), reduction.DupFd(self.results)))


def _rebuild(tasks: Any, results: Any) -> WorkerEnds:
    return WorkerEnds(tasks.detach(), results.detach())
