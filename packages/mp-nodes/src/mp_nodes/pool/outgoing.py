"""`Outgoing`: what a node's rank is about to tell the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from mp_nodes.pool.messages import Done, Outcome

#: Seconds for which an outcome waits for those of the other tasks that the node has: a message costs the driver more.
TOGETHER = 0.002


class Outgoing:
    """
    A queue of messages. Outcomes are put into one message; that of the node's last task waits for no other.

    The node measures how fast its workers are, as the driver would also measure the network. *ready* tells whether all
    of them have started; before that there is nothing to measure.
    """

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._changed = threading.Condition()
        self._outcomes: list[Outcome] = []
        self._others: list[Any] = []
        # The number of tasks that the node has, and since when, or since when it has told of none.
        self._tasks = 0
        self._since: float | None = None
        self._at_once = False

    def expect(self, tasks: int) -> None:
        """Note that the node has got so many tasks; fewer than 0 if it gives some back."""
        with self._changed:
            if self._tasks == 0:
                self._since = self._now()
            self._tasks += tasks
            if self._tasks == 0:
                self._wake()

    def put(self, message: Any) -> None:
        with self._changed:
            self._others.append(message)
            self._wake()

    def end(self, outcome: Outcome) -> None:
        with self._changed:
            self._outcomes.append(outcome)
            self._tasks -= 1
            if self._tasks == 0:
                self._wake()
            elif len(self._outcomes) == 1:
                self._changed.notify()

    def _wake(self) -> None:
        self._at_once = True
        self._changed.notify()

    def _now(self) -> float | None:
        return time.monotonic() if self._ready() else None

    def take(self) -> list[Any]:
        """Wait for messages and return them."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_once or self._outcomes)
            self._changed.wait_for(lambda: self._at_once, TOGETHER)
            self._at_once = False
            taken = []
            if self._outcomes:
                before, self._since = self._since, self._now()
                seconds = None if before is None or self._since is None else self._since - before
                taken.append(Done(self._outcomes, seconds))
                self._outcomes = []
            taken += self._others
            self._others = []
            return taken
