"""`Feeder`: a thread that makes tasks from the user's iterable, which may block or raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from mp_pool.scheduling.scheduler import CLOSED, Scheduler
from mp_pool.tasks.task import Task
from mp_pool.tasks.task_messages import RICH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: At most so many tasks of one iterable wait in the queue.
WAITING = 1024
#: A task whose pickle has shared memory takes the room of so many.
HEAVY = 32


class Feeder(threading.Thread):
    """
    Submits a task for each of *items*, as many as the queue takes, then calls *ended* with their number and the error.
    It stops before if the pool ends or *result* is over. Then the result fails with the pool, or has its error already.

    *make* makes the task from its index and item. At most *limit* items are read. A task is pickled before the next
    item is asked for, as in the standard pool: a generator may fill one array anew for each item.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        items: Iterable[Any],
        make: Callable[[int, Any], Task],
        ended: Callable[[int, BaseException | None], None],
        limit: int | None = None,
        result: Any = None,
    ) -> None:
        super().__init__(name="mp_pool-feeder", daemon=True)
        self._scheduler, self._items, self._make, self._ended, self._limit = scheduler, items, make, ended, limit
        self._result = result
        self.room = threading.Semaphore(WAITING)
        scheduler.feeders.add(self)

    def run(self) -> None:
        """Read the iterable until it, or the pool, ends."""
        count = 0
        error = None
        stopped = False
        try:
            for item in islice(self._items, self._limit):
                self.room.acquire()
                if stopped := self._scheduler.state > CLOSED or getattr(self._result, "is_over", False):
                    break
                task = self._make(count, item)
                task.feeder = self
                self._scheduler.prepare(task)
                for _ in range(self.weight(task) - 1):
                    if self._scheduler.state <= CLOSED:
                        self.room.acquire()
                self._scheduler.submit(task)
                count += 1
                del item, task
        except BaseException as raised:  # also `sys.exit`: without it, the results would seem to be complete
            error = raised
            if not isinstance(raised, Exception) and threading.current_thread() is not self:
                raise  # `run` was called in a thread of the program, for which it is
        finally:
            if stopped:
                self._scheduler.fail_if_ended()  # it may have ended before there was this result
            else:
                self._ended(count, error)
            del self._items, self._make, self._ended, self._result, error
            self._scheduler.feeders.discard(self)
            self._scheduler.wake()

    def stop(self) -> None:
        """Have it find out that the pool has ended, whatever it waits for."""
        self.room.release(HEAVY)

    @staticmethod
    def weight(task: Task) -> int:
        """Return the room that *task* takes until it begins."""
        return HEAVY if task.kind == RICH else 1


def batches(items: Iterable[Any], size: int) -> Iterator[Sequence[Any]]:
    """
    Yield *items* in sequences of *size*; the last one may be shorter, also where *items* raises. Those of a range are
    ranges, whose pickles are small.

    >>> list(batches("abcde", 2))
    [('a', 'b'), ('c', 'd'), ('e',)]
    >>> list(batches(range(5), 2))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    if type(items) is range:
        for start in range(0, len(items), size):
            yield items[start : start + size]
        return
    iterator = iter(items)
    while True:
        batch: list[Any] = []
        try:
            batch.extend(islice(iterator, size))
        except Exception:  # and no Ctrl-C, which must not wait for the next batch
            if batch:  # what *items* gave before it raised
                yield tuple(batch)
            raise
        if not batch:
            return
        yield tuple(batch)
