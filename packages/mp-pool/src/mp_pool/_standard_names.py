"""Names with an underscore of the standard classes that public programs use; docs/conformance.md has a list.

They show the state of the scheduler. What a program may change by them is the queue of a pool, `TaskQueue`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from mp_pool.scheduling.feeder import Feeder
from mp_pool.scheduling.scheduler import CLOSED
from mp_pool.scheduling.unopened import imports_under_way
from mp_pool.tasks.task import Outcome, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_pool.scheduling.scheduler import Scheduler


class Queue:
    """Stand for a queue of the standard library that a program looks at; *count* returns the number of its items."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.qsize = count

    def empty(self) -> bool:
        return not self.qsize()

    def full(self) -> bool:
        """Return False: it has no bound."""
        return False

    def _do_nothing(self) -> None:
        """Do nothing: no thread writes to it, and it has no descriptor."""

    close = join_thread = cancel_join_thread = _do_nothing


class TaskQueue(Queue):
    """
    The queue of a pool's methods: programs put the tasks of their own methods into it.

    *mappers* has our functions for those of the standard library.
    """

    def __init__(self, scheduler: Scheduler, mappers: dict[Any, Any]) -> None:
        super().__init__(scheduler.queued)
        self._scheduler, self._mappers = scheduler, mappers

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """
        Run the tasks of *item*, as the standard pool: ``(tasks, set_length)``, where a task is
        ``(job, index, function, args, kwds)`` and its outcome goes to the entry *job* of the pool's ``_cache``.
        """
        if item is None:
            return  # it ends a thread that there is not
        scheduler, (tasks, set_length) = self._scheduler, item
        last = _Entry({}, 0), -1

        def make(count: int, task: Any) -> Task:
            nonlocal last
            job, index, function, args, kwds = task
            last = _Entry(scheduler.sinks, job), index
            return Task(last[0], index, self._mappers.get(function, function), tuple(args), dict(kwds))

        def ended(count: int, error: BaseException | None) -> None:
            entry, index = last
            with suppress(KeyError):  # the result was dropped
                if error is not None:
                    index += 1
                    entry._set(index, (False, error))
                if set_length is not None and scheduler.state <= CLOSED:
                    set_length(index + 1)

        feeder = Feeder(scheduler, tasks, make, ended)
        (feeder.run if imports_under_way else feeder.start)()


class _Entry:
    """The sink of a task whose result may be a class of the program's; without `_set_all`, it gets each outcome."""

    __slots__ = ("_cache", "_job")

    def __init__(self, cache: dict[Any, Any], job: Any) -> None:
        self._cache, self._job = cache, job

    def _set(self, i: int, obj: Outcome, /) -> None:
        self._cache[self._job]._set(i, obj)


class NamesOfPool:
    """The names of a pool."""

    _scheduler: Any
    _mappers: dict[Any, Any]

    @property
    def _taskqueue(self) -> TaskQueue:
        return TaskQueue(self._scheduler, self._mappers)

    @property
    def _inqueue(self) -> Queue:
        return Queue(self._scheduler.unfinished)

    @property
    def _outqueue(self) -> Queue:
        return Queue(lambda: 0)  # a result is never left in a queue

    @property
    def _task_handler(self) -> threading.Thread:
        thread: threading.Thread = self._scheduler.thread
        return thread

    _worker_handler = _result_handler = _task_handler


class NamesOfExecutor:
    """The names of an executor."""

    _scheduler: Scheduler
    _admission: Any
    _cancel_pending_futures = False

    @property
    def _pending_work_items(self) -> Mapping[int, Any]:
        return WorkItems(self._scheduler)

    @property
    def _work_ids(self) -> Queue:
        return Queue(self._scheduler.queued)

    @property
    def _call_queue(self) -> Queue:
        scheduler = self._scheduler
        return Queue(lambda: scheduler.unfinished() - scheduler.queued())

    @property
    def _result_queue(self) -> Queue:
        return Queue(lambda: 0)

    @property
    def _queue_count(self) -> int:
        return self._scheduler.dispatcher.count()

    @property
    def _shutdown_thread(self) -> bool:
        closed: bool = self._admission.closed
        return closed

    @property
    def _executor_manager_thread_wakeup(self) -> Wakeup:
        return Wakeup(self._scheduler)

    @property
    def _safe_to_dynamically_spawn_children(self) -> bool:
        return not self._scheduler.forks


class Wakeup:
    """Wakes the scheduler's thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.wakeup = scheduler.wake


class WorkItems(Mapping[int, "Any"]):
    """The calls of an executor that have no result yet, as they are at each look."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._dispatcher = scheduler, scheduler.dispatcher

    def _calls(self) -> dict[int, Any]:
        # Lists and not iterators: other threads change both.
        calls = [task for worker in list(self._dispatcher.workers) for task in list(worker.tasks.values())]
        calls += list(self._dispatcher.queue)  # type: ignore[arg-type]
        return {id(call): call for call in calls}

    def __len__(self) -> int:
        return self._scheduler.unfinished()

    def __iter__(self) -> Iterator[int]:
        return iter(self._calls())

    def __getitem__(self, key: int) -> Any:
        return self._calls()[key]
