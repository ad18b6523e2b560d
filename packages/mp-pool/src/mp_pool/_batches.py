"""`Batches`: many tiny tasks in one packet for one worker, and the journal in which it records what it has done.

Note [Tiny tasks]
-----------------
A packet, a wake-up and a write for each task cost more than a tiny task itself. So a worker gets up to `MOST` of them
in one packet, with one pickle. It must stay known which of them has begun, since only that one is lost when the worker
dies, and those that have not begun must be taken back from behind a long one. The worker's journal
(`mp_core/native/journal.c`), memory that both processes map, answers both:

    the worker   claims each task in it before it begins it, and appends each result before it claims the next
    the parent   reads the results at the end of a batch, of which the worker tells through the pipe, and every
                 `LOOK` until then; and takes the tasks back that the worker has not claimed

Two batches are at a worker at a time, so that it need not wait for the second. A result that is large, or has
resources, and an exception go through the pipe, before the journal notes them.

- The worker dies: the journal has all results of tasks that it has done, and names the one that it was running.
- The worker is stopped: its unclaimed tasks are taken back; it will not begin them when it continues.
- The parent dies: see `_worker.py`. The memory has no name. Its mapping keeps a descriptor on each side.
- No descriptor or no memory for a journal, here or in the worker: it gets its tasks one by one.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections import deque
from collections.abc import Callable
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from types import ModuleType

from mp_core.native import LIBSHM, Journal, is_small
from mp_pool._result_pipe import Frame
from mp_pool.task import Task
from mp_pool.wire import BATCH, DONE, FUNCTIONS, HEADER, PACKET, is_plain

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["AT_ONCE", "LOOK", "MOST", "Batch", "Batches", "fits"]

MOST = 256  # tasks of a batch
AT_ONCE = 2  # batches at a worker: the journal has two halves
LOOK = 0.002  # seconds
MEMORY = 1 << 17  # bytes of a journal


class Batch:
    """The tasks of one packet, in the order in which the worker begins them."""

    __slots__ = ("number", "read", "recalled", "tasks")

    def __init__(self, number: int, tasks: list[Task]) -> None:
        self.number = number
        self.tasks = tasks
        self.read = 0  # results
        self.recalled = False


class Batches:
    """The batches at one worker. The caller holds the scheduler's lock, except in `read`."""

    def __init__(self) -> None:
        self.journal: Any = None
        self.ready = False  # the worker has it, too
        self.at_worker: deque[Batch] = deque()
        self._made = 0

    def make_journal(self) -> int:
        """
        Make the journal, once; return the descriptor to send to the worker, which the caller closes, or -1.
        """
        if self.journal is not None or not LIBSHM:
            return -1
        self.journal = False  # one attempt
        try:
            fd = os.memfd_create("mp-journal", os.MFD_CLOEXEC)
        except OSError:
            return -1
        try:
            os.ftruncate(fd, MEMORY)
            self.journal = Journal(mmap.mmap(fd, MEMORY))
        except (OSError, ValueError, MemoryError):
            os.close(fd)
            return -1
        return fd

    def pack(self, tasks: list[Task]) -> bytes | None:
        """
        Return the packet for *tasks*; None if it is too long, or a function cannot be pickled.

        Each function has a pickle of its own in it: one that the worker does not find fails its own tasks only.
        """
        half = 1 - self.at_worker[0].number % 2 if self.at_worker else 0
        number = 2 * (self._made + 1) + half
        functions: dict[Any, int] = {}
        calls = [(functions.setdefault(task.function, len(functions)), task.args) for task in tasks]
        try:
            pickles = [pickle.dumps(function, 5) for function in functions]
            payload = pickle.dumps(([task.number for task in tasks], pickles, calls), 5)
        except Exception:
            return None
        if len(payload) > PACKET - HEADER.size:
            return None
        self._made += 1
        self.at_worker.append(Batch(number, tasks))
        return HEADER.pack(number, len(payload), BATCH) + payload

    def unsent(self) -> None:
        """
        Undo `pack`: there is no room for the packet.
        """
        self.at_worker.pop()

    def take_unread(self, number: int) -> list[Task]:
        """
        Return the tasks of a batch whose packet was read back; it is the last one.
        """
        batch = next(batch for batch in self.at_worker if batch.number == number)
        self.at_worker.remove(batch)
        return batch.tasks

    def recall(self) -> list[Task]:
        """
        Return the tasks that the worker has not begun. No packet of a batch is in its socket.
        """
        if not self.at_worker or self.at_worker[-1].recalled:
            return []
        batch = self.at_worker[-1]  # the worker has begun those before it
        batch.recalled = True
        begun = min(self.journal.recall(batch.number), len(batch.tasks))
        back = batch.tasks[begun:]
        batch.tasks = batch.tasks[:begun]
        self.forget_finished()
        return back

    def read(self) -> list[Frame]:
        """
        Return the new results. It needs no lock: only one thread reads.
        """
        frames: list[Frame] = []
        for batch in tuple(self.at_worker):
            tasks, at = batch.tasks, batch.read
            for data in self.journal.results(batch.number):
                if data is not None and at < len(tasks):
                    frames.append((tasks[at].number, DONE, data))
                at += 1
            batch.read = at
        return frames

    def forget_finished(self) -> None:
        """
        Drop the batches whose results have all been read.
        """
        at_worker = self.at_worker
        while at_worker and at_worker[0].read >= len(at_worker[0].tasks):
            at_worker.popleft()

    def waits(self) -> bool:
        """Tell whether the journal may have results of which the worker does not tell yet."""
        return any(batch.read + 1 < len(batch.tasks) for batch in self.at_worker)


def fits(task: Task) -> bool:
    """
    Tell whether *task* may be in a batch: what it is called with is small, is not changed by any task, and needs no
    reducers, so that one pickle for many is the same as a pickle for each.
    """
    function: Callable[..., Any] = task.function
    if task.payload is not None or task.kwds or task.shared is not None or type(function) not in FUNCTIONS:
        return False
    if not isinstance(getattr(function, "__self__", None), ModuleType | None):
        return False  # a method of an object, which each task gets a copy of
    return function is not mapstar and function is not starmapstar and is_small(task.args) and is_plain(function)
