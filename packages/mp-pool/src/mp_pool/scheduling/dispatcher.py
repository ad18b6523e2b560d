"""`Dispatcher`: decides which worker gets which task.

Note [How many tasks a worker has]
----------------------------------
A worker that waits for its next task costs two wake-ups of processes for each task. So it has more tasks in its ring,
as many as it completes in about ten milliseconds. While all workers have many, the scheduler sleeps for a part of that
time: one wake-up for many results, and no worker ever waits. Tiny tasks go in batches (`batches.py`). The tasks that a
worker has not begun are taken back when another worker is idle, or when the running task takes longer than `LONG_TASK`:
a long task delays no other, as in the standard pool.

Note [An exception in the middle]
---------------------------------
A signal handler may raise in the main thread after any call. A task that had left the queue and was at no worker, or
that a worker had and nobody knew of, would never be done. So the main thread only sends the first task, in one message,
and leaves all else to the scheduler's thread, where no handler runs:

    in the queue --> pickled --> noted as sent, and sent (no call in between) --> out of the queue

A task that was sent and is in the queue all the same, because of a handler that raised, is skipped there. One that was
pickled before it was in the queue, and never came there, is dropped by its submit.
"""

from __future__ import annotations

import signal
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence

from mp_core.system.handler_errors import is_of_handler
from mp_pool.tasks.batches import MOST as MOST_IN_BATCH
from mp_pool.tasks.batches import fits, function_fits
from mp_pool.tasks.definitions import Definitions
from mp_pool.tasks.shared_function import SharedFunction
from mp_pool.tasks.task import Delivery, Item, Task, TaskSource, as_task, cancelled, delivery, take_next
from mp_pool.tasks.task_messages import drop
from mp_pool.workers.stacks import Stacks
from mp_pool.workers.worker import Worker
from mp_pool.workers.worker_main import Settings
from mp_pool.workers.zygote import Zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.children.death_pipe import DeathPipe

LONG_TASK = 0.1  # seconds
SHORT = 0.001  # seconds: a task that takes longer should not delay those behind it
AHEAD = 0.01  # seconds of work that a worker may have in its ring
TINY = 0.00025  # seconds: shorter tasks go in batches
FEW = 4  # tasks: fewer go one by one
NAPS = (0.0001, 0.001)  # seconds


class Nobody:
    """Has the cancelled tasks that are in the queue yet: they are skipped."""

    pace = None

    def has_begun(self, task: Task) -> bool:
        """Return True: nobody waits for a result of *task*."""
        return True


NOBODY = Nobody()


class Dispatcher:
    """The queue and the workers. The caller holds the scheduler's lock."""

    def __init__(
        self,
        make: Callable[..., Any],
        settings: Settings,
        initializer: SharedFunction | None,
        definitions: Definitions,
    ) -> None:
        self.definitions = definitions
        self.death: DeathPipe | None = None  # of the workers, from the start of the scheduler on
        self.stacks = Stacks()
        self.zygote: Zygote | None = None
        self.former_zygotes: list[Zygote] = []
        self.workers: list[Worker] = []
        self.queue: deque[Task | TaskSource] = deque()
        self.free: dict[Worker, None] = {}  # ready, with fewer tasks than their window
        self.failed: list[Delivery] = []  # they never reached a worker
        self.news = False  # the scheduler's thread has something to look at
        self.changed = True  # it has other descriptors to look at
        self.forgotten: deque[int] = deque()  # the numbers of functions that no more tasks call; any thread adds
        self._make = make
        self._settings, self._initializer = settings, initializer
        self._numbers = 0

    def start_zygote(self) -> None:
        """Start the process that forks later workers, if workers are forked."""
        assert self.death is not None
        if self._settings.forked:
            self.zygote = Zygote(self._make, self._settings, self.death.fd, self.stacks.fd)
            self.zygote.start()

    def end_zygote(self) -> None:
        """Kill the zygote, so that it ends while the workers do, unless one is its child. No worker starts any more."""
        if self.zygote is not None:
            self.zygote.kill_if_childless()

    def start_worker(self, first: bool = False) -> None:
        """Start one more worker, the *first* ones from this thread; raise any exception of starting a process."""
        assert self.death is not None
        if not first and self.zygote is not None and not (self.zygote.runs and self.zygote.is_of_this_user):
            if self.zygote.runs:
                self.former_zygotes.append(self.zygote)  # which still knows the exit codes of its workers
            self.start_zygote()  # it was killed, or the program has another user now
        zygote = None if first or self.zygote is None or not self.zygote.runs else self.zygote
        taken = {worker.index for worker in self.workers}
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        worker, gone = Worker(self._settings, index), allocate_lock()
        gone.acquire()
        try:
            worker.start(self._make, self._settings, self._initializer, self.death, self.stacks.fd, zygote)
        except BaseException:
            # In a thread, where no handler of a second signal interrupts it.
            try:
                start_new_thread(worker.abandon, (gone,))
            except RuntimeError as error:  # there can be no more threads
                if not is_of_handler(error):
                    worker.abandon(gone)
            gone.acquire()
            raise
        self.news = self.changed = True
        self.workers.append(worker)

    def unfinished(self) -> int:
        """Return the number of tasks, counting a source as one."""
        return len(self.queue) + sum(len(worker.tasks) for worker in list(self.workers))

    def count(self) -> int:
        """Return how many tasks there have been so far, those of sources as far as they were made."""
        return self._numbers + sum(isinstance(task, Task) and not task.number for task in list(self.queue))

    def requeue(self, given: Sequence[Task | Item]) -> None:
        """
        Put tasks, which have been numbered, back into the queue, in the order in which they were first handed out.
        """
        tasks = [as_task(each) for each in given]
        for task in tasks:
            task.return_to_queue()
        front = {task.number: task for task in tasks}
        queue = self.queue
        while queue and isinstance(head := queue[0], Task) and head.number:
            if head.worker is None:
                front[head.number] = head
            queue.popleft()
        queue.extendleft(front[number] for number in sorted(front, reverse=True))

    def send_first(self) -> bool:
        """
        Send the first task to a worker that can take it at once; return False if the scheduler's thread has to look.

        It is for the main thread: see Note [An exception in the middle].
        """
        queue = self.queue
        if not queue or not self.free:
            return True
        task = queue[0]
        if not isinstance(task, Task) or task.worker is not None:
            return False
        for worker in self.free:
            if not worker.tasks:
                break
        else:
            worker = next(iter(self.free))
            if worker.pace is None or worker.pace < TINY:
                return False
        if not task.begin_at_once():
            return False
        if task.number == 0:
            self._numbers += 1
            task.number = self._numbers
        try:
            task.pickle(self.definitions)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or is_of_handler(error):
                raise
            return False  # the thread finds out again
        beside = bool(worker.tasks) or task.options.is_watched
        if not worker.send_at_once(task):
            return False
        if queue and queue[0] is task:
            queue.popleft()
        self._has_been_given(worker, True)
        return not beside and not (queue and self.free)

    def dispatch(self) -> bool:
        """Hand out tasks until the queue is empty or the workers have enough; return True."""
        if self.queue and self.free:
            idle = [worker for worker in self.free if not worker.tasks]
            if idle:
                self._recall_overtaken()
            for worker in idle:
                if not self.queue or not self._hand(worker):
                    break
            if self.queue:
                self._hand_to_free()
        if self.free and not self.queue:
            for worker in self.workers:
                if len(worker.tasks) > 1:
                    self._balance()
                    break
        return True

    def _hand_to_free(self) -> None:
        for worker in list(self.free):
            while self.queue and worker in self.free and self._hand(worker):
                pass

    def _hand(self, worker: Worker) -> bool:
        """Give *worker* the next task, or the next tiny ones; return False if there is none, or no room for it."""
        if worker.pace is not None and worker.pace < TINY:
            return self._hand_batch(worker)
        task = self._next()
        while task is not None and not self._is_pickled(task):
            task = self._next()
        if task is None:
            return False
        if worker.tasks or task.options.is_watched:
            self.news = True
        return self._send(worker, task)

    def _hand_batch(self, worker: Worker) -> bool:
        self.news = True
        most = min(MOST_IN_BATCH, max(1, worker.window // 2))
        if self.queue and isinstance(self.queue[-1], Task):
            most = min(most, -(-len(self.queue) // len(self.workers)))
        if worker.left is not None:
            most = min(most, worker.left)
        tasks, other = self._next_tiny(most)
        given = tasks if other is None else [*tasks, other]
        sent: bool | None = None
        if len(tasks) >= FEW:
            sent = worker.send_batch(tasks)
            if sent and other is not None:
                self.requeue([other])
            elif sent is False:
                self.requeue(given)
        if sent is None:
            # One goes now; the others may be in a shorter batch later.
            for at, each in enumerate(given):
                task = as_task(each)
                if self._is_pickled(task):
                    self.requeue(given[at + 1 :])
                    return self._send(worker, task)
            return False
        return self._has_been_given(worker, sent)

    def _next_tiny(self, most: int) -> tuple[list[Task] | list[Item], Task | None]:
        """Return the next tasks that may be in one batch, *most* of them, and the one after them that may not."""
        functions: dict[Any, Any] = {}
        source = self.queue[0] if self.queue else None
        if (
            isinstance(source, TaskSource)
            and function_fits(source.called, functions)
            and (items := source.take_items(most, self._numbers + 1))
        ):
            self._numbers += len(items)
            return items, None
        tasks: list[Task] = []
        while len(tasks) < most and (after := self._next()) is not None:
            if not fits(after, functions):
                return tasks, after
            tasks.append(after)
        return tasks, None

    def _is_pickled(self, task: Task) -> bool:
        """Pickle *task*, or record that it has failed. No signal handler runs in this thread."""
        try:
            task.pickle(self.definitions)
        except BaseException as error:
            self.failed.append(delivery(task, (False, error)))
            self.news = True
            return False
        return True

    def _send(self, worker: Worker, task: Task) -> bool:
        sent = worker.send(task)
        if not sent:
            self.requeue([task])
        elif worker.backlog:
            self.news = self.changed = True
        return self._has_been_given(worker, sent)

    def _has_been_given(self, worker: Worker, sent: bool) -> bool:
        if not sent or not self._may_have_more(worker):
            self.free.pop(worker, None)  # until it has answered
        return sent

    def _next(self) -> Task | None:
        while (task := take_next(self.queue)) is not None:
            if task.worker is not None:
                continue
            if not task.begin():
                task.drop()
                continue
            if task.number == 0:
                self._numbers += 1
                task.number = self._numbers
            return task
        return None

    def _balance(self) -> None:
        """Give idle workers tasks that others have not begun."""
        for worker in [worker for worker in self.free if not worker.tasks]:
            busiest = max(self.workers, key=lambda each: len(each.tasks))
            # Half of its tasks. It may begin the oldest at any moment.
            self._has_returned(busiest, busiest.take_back(len(busiest.tasks) // 2))
            while self.queue and worker in self.free and self._hand(worker):
                pass
            if busiest.tasks and worker.tasks:
                self.news = True
        self._hand_to_free()

    def recall(self, worker: Worker) -> None:
        """Take back the tasks that *worker* has not begun, because its running task takes long."""
        worker.window = 1
        worker.recalled = True
        self.free.pop(worker, None)
        self._has_returned(worker, worker.take_back())

    def recall_all(self) -> None:
        """Take back the tasks that no worker has begun. A worker that has others gets no more until it answers."""
        for worker in self.workers:
            if worker.tasks and worker.most > 1:  # the one task of a worker without a ring stays there
                self.recall(worker)

    def tell_all_to_end(self, at_once: bool) -> bool:
        """Ask all workers to end, after the task that each has begun; return False if all had been asked before."""
        self.recall_all()
        self.free.clear()
        asked = [worker for worker in self.workers if not worker.told_to_end]
        for worker in asked:
            worker.tell_to_end(at_once)
        return bool(asked)

    def kill_for(self, worker: Worker, task: Task, error: Exception) -> None:
        """
        Kill *worker*, so that *task* fails with *error*, unless its result is there already. What the worker has not
        begun goes to others first; *task* as well, if it is stopped and has not begun that.
        """
        if worker.most > 1:
            self.recall(worker)
        # Now the last one is the one that it runs: those before have answers that nobody has read.
        if worker.tasks and next(reversed(worker.tasks.values())) is not task:
            return
        worker.killed_for, worker.left = (task, error), 0
        self.free.pop(worker, None)
        worker.signal(signal.SIGKILL)

    def cancel(self, sink: Any, running: bool) -> bool:
        """
        Drop the tasks of *sink* that no worker has begun, and, with *running*, kill the workers of the others; return
        whether one of them goes on.
        """
        self.recall_all()
        only = getattr(sink, "task", None)
        queued: Any = [only]
        if isinstance(sink, Task):
            queued = []  # its `begin` finds out
        elif only is None:
            queued = list(self.queue)
        for work in queued:
            if work.sink is not sink:
                continue
            if isinstance(work, TaskSource):
                work.over(())
            elif work.worker is None:
                work.drop()
                work.worker = NOBODY
                if work.feeder is not None:
                    work.begin()  # the feeder may wait for the room
        is_one = only is not None or isinstance(sink, Task)
        goes_on = False
        for worker in self.workers:
            for number, each in list(worker.tasks.items()):
                if (each.sink if isinstance(each, Task) else each[0]) is not sink:
                    continue
                task = worker.tasks[number] = as_task(each)
                if running or not is_one:
                    task.retries = 0  # it is not begun again
                if next(reversed(worker.tasks)) != number:
                    continue  # it has been answered, see `kill_for`
                if not running:
                    goes_on = True
                elif worker.killed_for is None:
                    self.kill_for(worker, task, cancelled())
        return goes_on

    def _has_returned(self, worker: Worker, back: list[Task | Item]) -> None:
        self.requeue(back)
        if not worker.tasks:
            # It had begun none, so no answer comes.
            worker.recalled = False
            self.may_be_free(worker)

    def _recall_overtaken(self) -> None:
        """
        Take back the tasks that wait behind one that takes longer than those before: an idle worker begins them first.

        So tasks begin in the order of their submission, as in the standard pool, unless all are short.
        """
        for worker in self.workers:
            if len(worker.tasks) > 1 and not worker.recalled:
                longest = 0.0 if worker.pace is None else max(SHORT, 8 * worker.pace)
                if time.monotonic() - worker.since > longest:
                    self.recall(worker)

    def take_from(self, worker: Worker) -> None:
        """Take back the tasks not begun by a worker that has ended or is about to."""
        self.free.pop(worker, None)
        self.requeue(worker.take_all_back())

    def empty(self, worker: Worker) -> None:
        """Release what a worker that has ended leaves, and put all its tasks back."""
        try:
            while frames := worker.read():
                for _, kind, data in frames:
                    drop(kind, data)
            self.take_from(worker)
            worker.record_lost(terminated=True)
        finally:
            begun = [as_task(each) for each in worker.tasks.values()]
            worker.tasks.clear()
            self.requeue(begun)
            worker.close()
            for task in begun:
                task.drop(begun=True)

    def nap(self) -> float:
        """
        Return for how many seconds no worker needs a new task, if many small tasks are running; else 0.

        The pace of a worker that had no other task left is that of this thread, which would sleep too long by it.
        """
        if not self.workers:
            return 0.0
        least = NAPS[1]
        for worker in self.workers:
            if len(worker.tasks) < 16 or worker.pace is None or worker.ran_dry:
                return 0.0
            least = min(least, worker.pace * len(worker.tasks) / 2)
        return least if least >= NAPS[0] else 0.0

    def has_answered(self, worker: Worker, count: int, now: float) -> None:
        """Record that *worker* did *count* tasks since its last answer, and update its pace."""
        pace = (now - worker.since) / count
        worker.pace = pace if worker.pace is None else (3 * worker.pace + pace) / 4
        worker.since = now
        worker.recalled = False
        worker.ran_dry = worker.has_begun_all()
        if worker.pace > LONG_TASK / 2:
            worker.window = 1
        else:
            worker.window = min(worker.most, int(AHEAD / worker.pace) + 2)
        self.may_be_free(worker)

    def forget(self) -> None:
        """Have the workers release functions that no more tasks call."""
        while self.forgotten:
            number = self.forgotten.popleft()
            for worker in self.workers:
                worker.forget(number)

    def may_be_free(self, worker: Worker) -> None:
        """Add *worker* to `free` if it may get tasks."""
        if worker.ready and self._may_have_more(worker):
            self.free[worker] = None

    def _may_have_more(self, worker: Worker) -> bool:
        return worker.left != 0 and len(worker.tasks) < worker.window and not worker.backlog
