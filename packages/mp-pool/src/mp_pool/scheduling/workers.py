"""`Workers`: starts, awaits, times, replaces and ends the workers of a pool."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable
from multiprocessing import connection
from resource import RUSAGE_CHILDREN, getrusage  # now: a program may lose the right to import it

from mp_core.children.main_module import is_missing_guard, missing_guard, receivers_may_differ, sends_definitions
from mp_core.system.descriptor import Descriptor
from mp_core.system.handler_errors import is_of_handler
from mp_core.system.kernel_files import has_signal
from mp_core.system.oom_kills import oom_kills, own_kills_between
from mp_pool.errors import OF_A_START, TaskMemoryError, TaskTimeoutError, WorkerLostError
from mp_pool.scheduling.dispatcher import LONG_TASK, Dispatcher
from mp_pool.tasks.definitions import Definitions
from mp_pool.tasks.shared_function import INITIALIZER, share
from mp_pool.tasks.task import Delivery, as_task, delivery, name_of, note_task, options_of
from mp_pool.workers.memory import private_bytes_above
from mp_pool.workers.task_rings import TaskSocket
from mp_pool.workers.worker import Worker
from mp_pool.workers.worker_main import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.children.death_pipe import DeathPipe

ATTEMPTS = 3  # starts of workers, in a row, none of which became ready
KILLED = 10  # the same, if each was killed from outside, which is no fault of the initializer
LEAVING = 0.2  # seconds for a worker that has no task to leave by itself, before SIGTERM
GRACE = 2.0  # seconds from the end of the pool to SIGKILL,
SAVING = 30.0  # and for a worker that has a handler of SIGTERM
HANG_UP = 1.0  # seconds between the end of a worker's ring and the end of the worker
TOGETHER = 1.0  # seconds between the deaths of workers that the kernel killed for lack of memory at once
LOOK = 0.1  # seconds between two looks at the memory of a worker
SHORTAGE = 10.0  # seconds in which no worker runs, and none can be started, until a pool that has run ends
RETRY = 0.2  # seconds from a failed start of a process to the next attempt, or of a message that found no room


class Workers:
    """
    The workers. The caller holds the scheduler's lock.

    *make* makes a process and *size* is the number of workers; with *lazily*, they start when there is work for them.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        size: int,
        settings: Settings,
        lazily: bool,
        lost: type[WorkerLostError],
        definitions: Definitions,
    ) -> None:
        initializer = None
        if not settings.forked:
            receivers_may_differ()
        if settings.initializer is not None and not settings.forked:
            # With the arguments of each worker, large arrays would be copied for each.
            initializer = share(functools.partial(settings.initializer, *settings.initargs), INITIALIZER, None)
            if sends_definitions():  # the workers may have what it sets, and what cannot be pickled
                from mp_core.messages.definitions import identify

                identify()
        if initializer is not None:
            settings = settings.without_initializer()
        self.reason: BaseException | None = None  # the error that has ended the pool
        self.dispatcher = Dispatcher(make, settings, initializer, definitions)
        self.size = size
        self.wanted = 0 if lazily else size
        self.forks = settings.forked
        self._lazily, self._lost = lazily, lost
        self.watches = False  # some tasks have limits of their time or memory
        self._leaving: list[Worker] = []  # workers that take no more tasks, and have not ended yet
        self._refused_starts = 0  # in a row, where the system had no room for a process
        self._refused_since = 0.0
        self._has_run = False  # a worker has become ready
        self._failures = 0  # of workers that had started, since one became ready
        self._useless = 0  # workers in a row that became ready, and ended before they began one of their tasks
        self._retry_at: float | None = None
        self._oom_kills = oom_kills(above=False)
        self._unexplained = 0  # kills for which no worker was found yet, counted at `_counted_at`
        self._counted_at = 0.0
        # The scheduler's thread waits for these rings and descriptors.
        self._waker: tuple[Descriptor, ...] = ()
        self._rings: dict[Any, Worker] = {}
        self._packets: dict[int, Worker] = {}
        self._deaths: dict[int, Worker] = {}
        self._awaited: tuple[list[Any], list[int]] = [], []

    def _fill(self) -> None:
        """Start workers until there are `wanted`."""
        if len(self.dispatcher.workers) >= self.wanted:
            self._retry_at, self._refused_starts = None, 0
            return
        now = time.monotonic()
        if self._retry_at is not None and now < self._retry_at:
            return
        self._retry_at = None
        while len(self.dispatcher.workers) < self.wanted and self.reason is None:
            try:
                self.dispatcher.start_worker()
                self._refused_starts = 0
            except Exception as error:
                if is_of_handler(error):
                    raise
                # Memory, descriptors or processes are short now. The running workers go on.
                if not self._refused_starts or self.dispatcher.workers:
                    self._refused_since = now
                self._refused_starts += 1
                longest = SHORTAGE if self._has_run and isinstance(error, OSError | MemoryError | EOFError) else 0.0
                is_over = self._refused_starts >= ATTEMPTS and now > self._refused_since + longest
                if is_over and not self.dispatcher.workers:
                    error.add_note("no worker runs, and none can be started: the pool has ended, make another one")
                    self.reason = error
                self._retry_at = now + RETRY
                self.dispatcher.news = True
                return

    def _watch(self) -> None:
        """Have the scheduler's thread wait for every worker, including new ones."""
        if not self.dispatcher.changed:
            return
        self.dispatcher.changed = False
        workers = [*self.dispatcher.workers, *self._leaving]
        with_ring = [worker for worker in workers if not worker.hung_up]
        self._rings = {worker.ring: worker for worker in with_ring if not isinstance(worker.ring, TaskSocket)}
        self._packets = {worker.ring.fileno(): worker for worker in with_ring if isinstance(worker.ring, TaskSocket)}
        self._deaths = {worker.sentinel: worker for worker in workers}
        self._awaited = [*self._rings], [self._waker[0].fileno(), *self._packets, *self._deaths]

    def _delay(self) -> float:
        """Return for how many milliseconds to wait at most; -1 for no limit."""
        times = [] if self._retry_at is None else [self._retry_at]
        for worker in self.dispatcher.workers:
            if worker.has_unbegun() and not worker.recalled:
                times.append(worker.since + LONG_TASK)
            if self.watches and worker.tasks and worker.killed_for is None:
                options = options_of(next(iter(worker.tasks.values())))
                if options.timeout is not None:
                    times.append(worker.since + options.timeout)
                if options.memory_limit is not None:
                    times.append(worker.looked + LOOK)
            if worker.backlog:
                times.append(time.monotonic() + RETRY)
            if worker.hung_up:
                times.append(worker.since + HANG_UP)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else -1.0

    def _check_times(self, now: float) -> None:
        for worker in self.dispatcher.workers:
            if worker.backlog:
                worker.send_backlog()
            if worker.hung_up and now > worker.since + HANG_UP:
                worker.was_cut_off = True
                worker.signal(signal.SIGKILL)  # a task has closed its ring, so no result will come
            if not worker.tasks:
                continue
            if worker.has_unbegun() and now > worker.since + LONG_TASK and not worker.recalled:
                # Others may have later tasks in their rings, which must not begin before these.
                for each in self.dispatcher.workers:
                    if len(each.tasks) > 1 or each is worker:  # an idle one stays free
                        self.dispatcher.recall(each)
            if self.watches and worker.tasks and worker.killed_for is None:
                self._check_limits(worker, now)

    def _check_limits(self, worker: Worker, now: float) -> None:
        """Kill a worker whose running task has exceeded one of its limits."""
        number, first = next(iter(worker.tasks.items()))
        task = worker.tasks[number] = as_task(first)
        limit, memory = task.options.timeout, task.options.memory_limit
        if limit is not None and now > worker.since + limit:
            late = TaskTimeoutError(worker.pid, limit, name_of(task), task.position)
            self.dispatcher.kill_for(worker, task, late)
        elif memory is not None and now >= worker.looked + LOOK:
            begun = time.monotonic()
            used = private_bytes_above(memory, worker.pid)
            # The look at a large process takes long: a tenth of this thread's time at most.
            worker.looked = time.monotonic() + 9 * (time.monotonic() - begun)
            if used:
                large = TaskMemoryError(worker.pid, memory, used, name_of(task), task.position)
                self.dispatcher.kill_for(worker, task, large)

    # Ends of workers.

    def _hung_up(self, worker: Worker, now: float) -> None:
        """Handle the end of a worker's ring: the worker is about to end, or cannot answer any more."""
        self.dispatcher.changed = True
        if worker not in self.dispatcher.workers:
            return
        self.dispatcher.take_from(worker)
        worker.since = now
        if worker.ready and not worker.tasks:
            # It may take long to end, or never end. Another takes its place, in a lazy pool when there is work.
            self.dispatcher.workers.remove(worker)
            self._leaving.append(worker)
            self.wanted -= self._lazily

    def _died(self, worker: Worker) -> list[Delivery]:
        """Take the tasks of a dead worker back, or fail those that it had begun."""
        self.dispatcher.changed = True
        before = getrusage(RUSAGE_CHILDREN).ru_maxrss
        exitcode = _exitcode(worker)
        # Counted for each death: a kill that ended an idle worker, or one over its time, explains no later death.
        out_of_memory = self._out_of_memory(exitcode)
        stack = self.dispatcher.stacks.take(worker.index, exitcode)
        outcomes: list[Delivery] = []
        if worker in self._leaving:
            self._leaving.remove(worker)
            self.wanted += self._lazily and exitcode != 0  # it was killed
            self._count_failure(worker, exitcode, out_of_memory)
        elif worker in self.dispatcher.workers:
            self.dispatcher.take_from(worker)
            self.dispatcher.workers.remove(worker)
            worker.record_lost()
            for each in reversed(worker.tasks.values()):
                task = as_task(each)
                task.drop(begun=True)
                if worker.killed_for is not None and worker.killed_for[0] is task:
                    error = worker.killed_for[1]
                else:
                    error = self._lost(worker.pid, exitcode, name_of(task), task.position, out_of_memory)
                note_task(error, task, f"worker {worker.pid}")
                if out_of_memory:
                    _note_memory(error, before)
                if worker.was_cut_off and exitcode == -signal.SIGKILL:
                    error.add_note("the pool has killed it: its main thread had ended, or closed its ring")
                if stack:
                    error.add_note(f"Python stack of the worker:\n{stack}")
                if task.is_repeated_after(error):
                    self.dispatcher.requeue([task])
                    continue
                outcomes.append(delivery(task, (False, error)))
            self._count_failure(worker, exitcode, out_of_memory)
            if self._lazily and exitcode == 0 and not worker.tasks:
                self.wanted -= 1  # it was asked to end; another starts when there is work
            worker.tasks.clear()  # each refers to the worker, whose descriptors would wait for the collector
        worker.killed_for = None  # the same
        worker.close()
        return outcomes

    def _count_failure(self, worker: Worker, exitcode: int | None, out_of_memory: bool) -> None:
        killed = worker.failure is None and exitcode in (-signal.SIGKILL, -signal.SIGTERM)
        if worker.told_to_end or (worker.ready and (killed or not worker.began_nothing)):
            return
        if is_missing_guard(exitcode, worker.process._popen):
            self.reason = missing_guard()
            return
        share = ATTEMPTS if killed else KILLED  # of what ends the pool: ten kills, three failures, or some of both
        if worker.ready:
            self._useless += share
        else:
            self._failures += share
        if max(self._failures, self._useless) >= ATTEMPTS * KILLED:
            what = "the start of its first task" if worker.ready else OF_A_START
            self.reason = worker.failure or self._lost(worker.pid, exitcode, what, 0, out_of_memory)

    def _out_of_memory(self, exitcode: int | None) -> bool:
        if exitcode != -signal.SIGKILL:
            return False
        # One look may find the kills of several workers, or of another process, which explains no later death.
        now = time.monotonic()
        before, self._oom_kills = self._oom_kills, oom_kills(above=False)
        kills = own_kills_between(before, self._oom_kills)
        if kills > 0 or now - self._counted_at > TOGETHER:
            self._unexplained, self._counted_at = kills, now
        self._unexplained -= 1
        return self._unexplained >= 0


def _note_memory(error: BaseException, before: int) -> None:
    """
    Add to the error of a worker that the kernel has killed how much memory it had, if it is known to be the largest
    child so far, of *before* KiB, and what to do.
    """
    largest = getrusage(RUSAGE_CHILDREN).ru_maxrss
    had = f"it had {largest >> 10:,} MiB of resident memory; " if largest > before else ""
    error.add_note(
        f"{had}memory_limit= ends such a task with TaskMemoryError before the kernel chooses a process; "
        "fewer workers, or max_memory_per_child= for workers that grow from task to task, need less"
    )


def _exitcode(worker: Worker) -> int | None:
    """Return the exit code of a worker that is known to have ended."""
    code: int | None = None
    for _ in range(100):
        worker.process.join(0.1)
        code = worker.process.exitcode
        if code is not None:
            break
        time.sleep(0.001)  # another thread has got it from the kernel, and is about to store it
    return code


def end_workers(workers: list[Worker], at_once: Callable[[], bool], death: DeathPipe | None) -> None:
    """
    End *workers*, and wait for their ends. Those that do a task get SIGTERM at once; the others leave by themselves, so
    that what they have to do at their end is done, and get it after `LEAVING` seconds. Who then lives on is killed by
    SIGKILL, as are all once *at_once* returns True.

    The end of *death* kills those to which this process, of another user by now, may send no signal.
    """
    begun = time.monotonic()
    alive = {worker.sentinel: worker for worker in workers}
    unasked = list(workers)
    kills = [begun + GRACE, begun + SAVING]  # the times of the first one, which spares some, and of the second one
    while alive:
        now = time.monotonic()
        if kills and (at_once() or now > kills[0]):
            saving = [each for each in alive.values() if now < kills[-1] and not at_once() and _handles_sigterm(each)]
            for worker in alive.values():
                if worker not in saving:
                    worker.signal(signal.SIGKILL)
            del kills[: 1 if saving else 2]
            if not kills and death is not None:
                death.close()
        for worker in unasked[:]:
            if kills and (now > begun + LEAVING or not worker.is_leaving()):
                unasked.remove(worker)
                worker.signal(signal.SIGTERM)
        for sentinel in connection.wait(list(alive), 0.05):
            _exitcode(alive.pop(sentinel))  # type: ignore[arg-type]


def _handles_sigterm(worker: Worker) -> bool:
    """Tell whether a worker has a handler for it, which may be saving what the worker has done."""
    return has_signal(worker.pid, signal.SIGTERM, "SigCgt") is True
