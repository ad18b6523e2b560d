"""The scheduler: a thread that waits for results and deaths of all workers at once.

Note [Who does what]
--------------------
Whoever holds the lock may change anything. A thread that submits a task hands it out itself when the lock is free, and
otherwise leaves the task in the queue and wakes the scheduler. So a call from a callback, from `__reduce__` or from a
signal handler cannot deadlock. Results are unpickled, and given to their owners, without the lock.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import ProcessError, connection
from multiprocessing.pool import RemoteTraceback
from typing import Any

from mp_pool import _wire
from mp_pool._channel import Descriptor, Frame, Worker
from mp_pool._dispatch import PATIENCE, Dispatcher
from mp_pool._memory import OomCounter
from mp_pool._task import Outcome, Task, name_of
from mp_pool._worker import Settings
from mp_pool.errors import TaskTimeoutError, WorkerLostError

__all__ = ["CLOSED", "ENDED", "RUNNING", "TERMINATED", "Scheduler", "report"]

RUNNING, CLOSED, TERMINATED, ENDED = range(4)

ATTEMPTS = 3  # starts of workers, in a row, none of which became ready
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
HANG_UP = 1.0  # seconds between the end of a worker's pipe and its own
RETRY = 0.2  # seconds after a process could not be started

TERMINATE_TEXT = "the pool was terminated before this task was done"

_RESULTS, _DEATH, _ROOM = range(3)


class Scheduler:
    """
    Workers, a queue of tasks, and the thread that brings them together.

    *make* makes a process, *size* is how many there are to be; with *lazily* they start when there is work for them.
    *cause* makes the `__cause__` of a worker's exception from its traceback, and *broken* the exception of all tasks
    from what has ended the pool, None for `terminate`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        size: int,
        settings: Settings,
        *,
        timeout: float | None = None,
        lazily: bool = False,
        cause: Callable[[str], BaseException] = RemoteTraceback,
        broken: Callable[[BaseException | None], BaseException] = lambda error: error or ProcessError(TERMINATE_TEXT),
    ) -> None:
        self.size = size
        self.state = RUNNING
        #: Results of the owner's that wait for tasks; ended with `_abort` when the pool ends.
        self.sinks: dict[int, Any] = {}
        self.reason: BaseException | None = None  # what has ended the pool by itself
        self.feeders: set[Any] = set()  # threads that read an iterable
        self.dispatcher = Dispatcher(make, settings, timeout)
        self.wanted = 0 if lazily else size
        self._lazily, self._timeout, self._cause, self._broken = lazily, timeout, cause, broken
        self._lock = threading.Lock()
        self._holder = 0
        self._leaving: list[Worker] = []  # they take no more tasks, and have not ended yet
        self._failures = 0
        self._retry_at: float | None = None
        self._oom = OomCounter()
        self._attention = self._asleep = self._at_once = False
        self._in_poll: dict[int, tuple[Worker, int]] = {}
        self._poll = select.poll()
        self._pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name="mp_pool", daemon=True)
        self._waker: tuple[Descriptor, ...] = ()

    # Called by any thread.

    def start(self) -> None:
        """
        Start the workers that are wanted, and the thread.
        """
        self._waker = tuple(map(Descriptor, os.pipe()))
        for descriptor in self._waker:
            os.set_blocking(descriptor.fileno(), False)
        self._poll.register(self._waker[0].fileno(), select.POLLIN)
        try:
            while len(self.dispatcher.workers) < self.wanted:
                self.dispatcher.start_worker()
            self.thread.start()
        except BaseException:
            self.state, self._at_once = TERMINATED, True
            self._end()
            raise

    def submit(self, work: Task | Iterator[Task]) -> None:
        """
        Queue a task, or an iterator of tasks that never blocks, and hand out what can be handed out.
        """
        if not self.is_own():
            raise ValueError(f"this pool belongs to process {self._pid}; a forked child has to make its own")
        self.dispatcher.queue.append(work)
        self.attend()
        if self.state == ENDED:
            self._abort()  # nobody else will

    def attend(self) -> None:
        """
        Hand out tasks now if nobody else is at it, and else have the scheduler's thread do it.
        """
        if not self._enter(False):
            self.wake()
            return
        try:
            if self.state > CLOSED:
                return
            if self._lazily and self.wanted < min(self.size, self.dispatcher.unfinished()):
                self.wanted += 1
                self._fill()
            self.dispatcher.dispatch()
        finally:
            self._leave()
        if self.dispatcher.news or self.state != RUNNING:
            self.wake()

    def is_own(self) -> bool:
        """Whether this process has made it, and no parent that was forked."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """
        Take no more tasks; end when all are done.
        """
        if self.state == RUNNING:
            self.state = CLOSED
        self.wake()

    def terminate(self, at_once: bool = False) -> None:
        """
        End the workers now, by SIGTERM first unless *at_once*, and wait until all has ended.
        """
        if self.state == ENDED or not self.is_own():
            return
        self._at_once = at_once
        self.state = TERMINATED
        self.wake()
        try:
            self.join()
        except BaseException:  # a second ctrl-C
            self._at_once = True
            self.wake()
            raise

    def discard(self) -> None:
        """
        End what has never been started.
        """
        if self.thread.ident is None and self.state != ENDED:
            self.state = TERMINATED
            self._end()

    def join(self) -> None:
        """
        Wait until all workers have ended; at once from a callback.
        """
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def wake(self) -> None:
        """
        Let the scheduler's thread look at everything.
        """
        self._attention = True
        if self._asleep:
            self._asleep = False
            try:
                os.write(self._waker[1].fileno(), b"\0")
            except OSError:
                pass  # it is full, so it wakes; or closed, so all has ended

    def _enter(self, wait: bool) -> bool:
        me = threading.get_ident()
        if self._holder == me or not self._lock.acquire(wait):
            return False
        self._holder = me
        return True

    def _leave(self) -> None:
        self._holder = 0
        self._lock.release()

    # The thread.

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            # A fault of ours must not become a hang of theirs.
            self.reason = error
            report(error)
        finally:
            self._end()

    def _step(self) -> bool:
        """
        Wait for something to happen, and do what it asks for; False when the end has come.
        """
        delay = self._delay()
        nap = self.dispatcher.nap()
        if nap and not self._attention:
            time.sleep(nap)
        self._asleep = True
        events = self._poll.poll(0 if self._attention else delay)
        self._asleep = False
        answers: list[tuple[Worker, list[tuple[int, int, Any]]]] = []
        dead: list[Worker] = []
        for fd, _ in events:
            if fd == self._waker[0].fileno():
                _drain(fd)
                continue
            worker, what = self._in_poll.get(fd, (None, 0))
            if worker is not None and what == _RESULTS:
                answers.append((worker, self._load(worker.read())))
            elif worker is not None and what == _DEATH:
                dead.append(worker)
            else:
                self.dispatcher.changed = True
        for worker in dead:
            while not worker.hung_up and (frames := worker.read()):
                answers.append((worker, self._load(frames)))
        self._enter(True)
        try:
            outcomes = self._take_in(answers, dead)
            more = self._go_on()
        finally:
            self._leave()
        del answers
        for task, outcome in outcomes:
            _deliver(task, outcome)
        return more

    def _load(self, frames: list[Frame]) -> list[tuple[int, int, Any]]:
        loaded: list[tuple[int, int, Any]] = []
        for number, kind, data in frames:
            kind &= ~_wire.RICH
            outcome: Outcome | None = None
            try:
                if kind == _wire.DONE:
                    outcome = True, pickle.loads(data)
                elif kind != _wire.READY:
                    outcome = False, _wire.load_error(data, self._cause)
            except Exception as error:
                outcome = False, error  # of this task alone
            loaded.append((number, kind, outcome))
        return loaded

    def _take_in(self, answers: list[Any], dead: list[Worker]) -> list[tuple[Task, Outcome]]:
        """
        Note results and deaths; what has to be told to owners is returned.
        """
        self._attention = self.dispatcher.news = False
        outcomes, self.dispatcher.failed = self.dispatcher.failed, []
        now = time.monotonic()
        for worker, loaded in answers:
            count = 0
            for number, kind, outcome in loaded:
                if number:
                    task = worker.answered(number)
                    if task is not None:
                        outcomes.append((task, outcome))
                        count += 1
                elif kind == _wire.READY:
                    worker.ready = True
                    self._failures = 0
                    self.dispatcher.may_be_free(worker)
                else:
                    worker.failure = outcome[1]
            if count:
                self.dispatcher.has_answered(worker, count, now)
        for worker, _ in answers:
            if worker.hung_up and worker not in dead:
                self._hung_up(worker, now)
        for worker in dead:
            outcomes += self._died(worker)
        self._check_times(now)
        return outcomes

    def _go_on(self) -> bool:
        """
        Start and end workers, hand out tasks; False when the end has come.
        """
        dispatcher = self.dispatcher
        if self.state == TERMINATED or self.reason is not None:
            return False
        if self._lazily:
            self.wanted = max(self.wanted, min(self.size, dispatcher.unfinished()))
        dispatcher.dispatch()
        if self.state == CLOSED and not self.feeders and not dispatcher.unfinished() and not dispatcher.failed:
            for worker in dispatcher.workers:
                if not worker.told_to_end:
                    worker.tell_to_end()
            dispatcher.free.clear()
            self._watch()
            return bool(dispatcher.workers or self._leaving)
        self._fill()
        self._watch()
        # What a failed task's owner does is not known yet: look again when it has been told.
        self._attention = self._attention or bool(dispatcher.failed)
        return self.reason is None

    def _fill(self) -> None:
        """
        Start workers until there are as many as wanted.
        """
        now = time.monotonic()
        if self._retry_at is not None and now < self._retry_at:
            return
        self._retry_at = None
        while len(self.dispatcher.workers) < self.wanted and self.reason is None:
            try:
                self.dispatcher.start_worker()
            except Exception as error:
                # No memory, descriptors or processes now. Those that live go on.
                self._failures += 1
                if self._failures >= ATTEMPTS and not self.dispatcher.workers:
                    self.reason = error
                self._retry_at = now + RETRY
                self.dispatcher.news = True
                return

    def _watch(self) -> None:
        """
        Have poll look at every worker, new ones included.
        """
        if not self.dispatcher.changed:
            return
        self.dispatcher.changed = False
        wanted: dict[int, tuple[Worker, int]] = {}
        for worker in [*self.dispatcher.workers, *self._leaving]:
            wanted[worker.sentinel] = worker, _DEATH
            if not worker.hung_up:
                wanted[worker.results.fileno()] = worker, _RESULTS
            worker.send_backlog()
            if worker.backlog:
                wanted[worker.writable_fd()] = worker, _ROOM
        for fd in self._in_poll.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, (_, what) in wanted.items():
            if fd not in self._in_poll or self._in_poll[fd][1] != what:
                self._poll.register(fd, select.POLLOUT if what == _ROOM else select.POLLIN)
        self._in_poll = wanted

    def _delay(self) -> float | None:
        """
        How many milliseconds to wait at most, None for ever.
        """
        times = [] if self._retry_at is None else [self._retry_at]
        for worker in self.dispatcher.workers:
            if len(worker.tasks) > 1 and not worker.recalled:
                times.append(worker.since + PATIENCE)
            if worker.tasks and self._timeout is not None and worker.killed_for is None:
                times.append(worker.since + self._timeout)
            if worker.hung_up:
                times.append(worker.since + HANG_UP)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _check_times(self, now: float) -> None:
        for worker in self.dispatcher.workers:
            if worker.hung_up and now > worker.since + HANG_UP:
                worker.signal(signal.SIGKILL)  # a task has closed its pipe, so no result will come
            if not worker.tasks:
                continue
            if len(worker.tasks) > 1 and now > worker.since + PATIENCE and not worker.recalled:
                self.dispatcher.recall(worker)
            if self._timeout is not None and now > worker.since + self._timeout and worker.killed_for is None:
                worker.killed_for = next(iter(worker.tasks))
                worker.signal(signal.SIGKILL)

    # Workers that end.

    def _hung_up(self, worker: Worker, now: float) -> None:
        """
        The worker's pipe has ended: it is about to end itself, or can answer no more.
        """
        self.dispatcher.changed = True
        if worker not in self.dispatcher.workers:
            return
        self.dispatcher.take_from(worker)
        worker.since = now
        if worker.ready and not worker.tasks:
            # It may take its time to end, or never do it. Another takes its place, in a lazy pool when there is work.
            self.dispatcher.workers.remove(worker)
            self._leaving.append(worker)
            self.wanted -= self._lazily

    def _died(self, worker: Worker) -> list[tuple[Task, Outcome]]:
        """
        Take the tasks of a dead worker back, or fail those that it had begun.
        """
        self.dispatcher.changed = True
        exitcode = _exitcode(worker)
        outcomes: list[tuple[Task, Outcome]] = []
        if worker in self._leaving:
            self._leaving.remove(worker)
            self.wanted += self._lazily and exitcode != 0  # it was killed
        elif worker in self.dispatcher.workers:
            self.dispatcher.take_from(worker)
            self.dispatcher.workers.remove(worker)
            for task in reversed(worker.tasks.values()):
                if worker.killed_for == task.number:
                    seconds = self._timeout or 0.0
                    error: Exception = TaskTimeoutError(worker.pid, seconds, name_of(task), task.position)
                elif task.retries > 0:
                    task.retries -= 1
                    self.dispatcher.queue.appendleft(task)
                    continue
                else:
                    error = WorkerLostError(worker.pid, exitcode, name_of(task), task.position, self._starved(exitcode))
                outcomes.append((task, (False, error)))
            self._count_failure(worker, exitcode)
            if self._lazily and exitcode == 0 and not worker.tasks:
                self.wanted -= 1  # as it was asked to; there is another when there is work
        for fd in [fd for fd, (each, _) in self._in_poll.items() if each is worker]:
            self._poll.unregister(fd)
            del self._in_poll[fd]
        worker.close()
        return outcomes

    def _count_failure(self, worker: Worker, exitcode: int | None) -> None:
        if worker.ready or worker.told_to_end:
            return
        self._failures += 1
        if self._failures >= ATTEMPTS:
            self.reason = worker.failure or WorkerLostError(
                worker.pid, exitcode, "its initializer", 0, self._starved(exitcode)
            )

    def _starved(self, exitcode: int | None) -> bool:
        return exitcode == -9 and self._oom.increased()

    def _end(self) -> None:
        """
        End all workers, give back what nobody will receive, and tell the owners.
        """
        workers = [*self.dispatcher.workers, *self._leaving]
        _end_workers(workers, lambda: self._at_once)
        # From here on `submit` fails its task itself.
        self._enter(True)
        try:
            outcomes, self.dispatcher.failed = self.dispatcher.failed, []
            for worker in workers:
                while not worker.hung_up and (frames := worker.read()):
                    for _, kind, data in frames:
                        _wire.drop(kind, data)
                self.dispatcher.take_from(worker)
                self.dispatcher.queue.extend(worker.tasks.values())
                worker.close()
            self.dispatcher.workers.clear()
            self._leaving.clear()
            self.dispatcher.free.clear()
            self.state = ENDED
        finally:
            self._leave()
        for task, outcome in outcomes:
            _deliver(task, outcome)
        self._abort()
        for feeder in list(self.feeders):
            feeder.room.release()
        for descriptor in self._waker:
            descriptor.close()

    def _abort(self) -> None:
        """
        Fail everything that is left.
        """
        error = self._broken(self.reason)
        queue = self.dispatcher.queue
        while queue:
            try:
                item = queue.popleft()
            except IndexError:
                break  # two threads are at it
            if isinstance(item, Task):
                item.drop()
                _deliver(item, (False, error))
        for sink in list(self.sinks.values()):
            sink._abort(error)


def _exitcode(worker: Worker) -> int | None:
    """
    The exit code of a worker of which it is known that it has ended.
    """
    code: int | None = None
    for _ in range(100):
        worker.process.join(0.1)
        code = worker.process.exitcode
        if code is not None:
            break
        time.sleep(0.001)  # another thread has asked the kernel, and is about to note it
    return code


def _end_workers(workers: list[Worker], at_once: Callable[[], bool]) -> None:
    for worker in workers:
        if not at_once():
            worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    alive = {worker.sentinel: worker for worker in workers}
    killed = False
    while alive:
        if not killed and (at_once() or time.monotonic() > deadline):
            killed = True
            for worker in alive.values():
                worker.signal(signal.SIGKILL)
        for sentinel in connection.wait(list(alive), 0.05):
            _exitcode(alive.pop(sentinel))  # type: ignore[call-overload]


def _deliver(task: Task, outcome: Outcome) -> None:
    try:
        task.sink._set(task.index, outcome)
    except KeyError:
        pass  # nobody waits for it any more
    except Exception as error:
        report(error)


def report(error: BaseException) -> None:
    """
    Show what a callback raised, as it is shown of a thread.
    """
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass
