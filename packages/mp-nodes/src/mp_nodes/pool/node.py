"""`Node`: the driver's knowledge about one node of a pool."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from mp_nodes.pool.buffers import KEPT
from mp_pool.tasks.task import Task

LONG = 0.1  # seconds without an answer, after which the tasks that wait at a node come back
AHEAD = 0.1  # seconds of work that a node may have beside what its workers run
MOST = 10_000  # tasks


class Node:
    """A node, its tasks, and how many it may have."""

    def __init__(self, index: int, name: str, size: int) -> None:
        self.index = index
        self.name = name
        #: The number of its workers.
        self.size = size
        #: Whether its rank has had its first message; whether it takes tasks.
        self.greeted = self.ready = self.lost = False
        #: The tasks that it has, by number.
        self.tasks: dict[int, Task] = {}
        #: The numbers of the functions that it has.
        self.functions: set[int] = set()
        # Those of the buffers, the one that was needed last at the end.
        self._buffers: OrderedDict[int, None] = OrderedDict()
        #: The first message to its rank.
        self.greeting = b""
        #: Whether it has been asked to give tasks back, and has not answered yet.
        self.asked = False
        self._since = 0.0
        # Seconds per task of the whole node, as it has measured them.
        self._pace: float | None = None

    def room(self) -> int:
        """
        Return how many more tasks it may have.

        >>> node = Node(0, "a", 4)
        >>> node.room(), setattr(node, "ready", True), node.room()
        (0, None, 4)
        """
        if self.lost or not self.ready:
            return 0
        ahead = 0 if self._pace is None else min(MOST, int(AHEAD / self._pace))
        return self.size + ahead - len(self.tasks)

    def waiting(self) -> int:
        """Return how many tasks wait here behind ones that last long, and note their pace."""
        count = len(self.tasks) - self.size
        if count <= 0 or self.asked or (since := time.monotonic() - self._since) < LONG:
            return 0
        self._pace = max(self._pace or 0.0, since)
        return count

    def begin(self, number: int, task: Task) -> None:
        """Add a task that is being sent."""
        if not self.tasks:
            self._since = time.monotonic()
        self.tasks[number] = task

    def need(self, buffers: Iterable[int]) -> list[int]:
        """Note that a task needs these buffers; return the numbers of those that the node has not."""
        new = [number for number in buffers if number not in self._buffers]
        for number in buffers:
            self._buffers[number] = None
            self._buffers.move_to_end(number)
        return new

    def too_many(self) -> list[int]:
        """Return the numbers of the buffers that it is to forget, since others were needed later."""
        return [self._buffers.popitem(last=False)[0] for _ in range(len(self._buffers) - KEPT)]

    def forget(self, number: int) -> bool:
        """Note that a function or a buffer is needed no longer; return whether it has it."""
        has = number in self.functions or number in self._buffers
        self.functions.discard(number)
        self._buffers.pop(number, None)
        return has

    def answered(self, count: int, seconds: float | None) -> None:
        """Note that so many tasks have ended in so many seconds, if that has been measured."""
        self._since = time.monotonic()
        if seconds is not None:
            pace = max(1e-6, seconds / count)
            self._pace = pace if self._pace is None else (self._pace + pace) / 2
