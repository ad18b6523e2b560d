"""`Scheduler`: a thread that waits for results and deaths of all workers at once.

Note [Threads and the lock]
---------------------------
The thread that holds the lock may change any state. A thread that submits a task sends it to a worker itself if the
lock is free; otherwise it leaves the task in the queue and wakes the scheduler. So a call from a callback, from
`__reduce__` or from a signal handler cannot deadlock; an end of the pool that is asked for there is not waited for.
Results are unpickled and delivered without the lock.

Note [Who receives]
-------------------
A result that the scheduler's thread receives costs two switches of threads: the thread takes the GIL and wakes the
thread that waits. So a thread that waits for a short call receives the result itself, if no other task is at a worker:

    scheduler's thread    waits for the rings | does not, as long as somebody receives every millisecond | waits again
    thread that waits                         spins, receives | submits | spins, receives | submits ...

A wait without a result sends the scheduler's thread back to the rings. A signal handler may raise anywhere in the
waiting thread, so a result stays in the ring until it is delivered: looked at, set, its task forgotten, dropped from
the ring. If the last steps are left out, the scheduler's thread does them, and finds the result set, or no task for it.
Only results without resources are received so, since they can be unpickled twice.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from multiprocessing import ProcessError
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

from mp_core import get_message_timeout
from mp_core.children.death_pipe import DeathPipe
from mp_core.children.main_module import MissingGuardError, check_guard
from mp_core.sharing.backend import TryLock, copied_bytes, is_small, plain_loads, wait_any
from mp_core.system.descriptor import Descriptor
from mp_core.system.handler_errors import is_of_handler
from mp_pool.errors import WorkerLostError
from mp_pool.scheduling.green_threads import check_threads
from mp_pool.scheduling.progress import Progress
from mp_pool.scheduling.unopened import imports_under_way, unopened
from mp_pool.scheduling.workers import Workers, end_workers
from mp_pool.tasks import task_messages
from mp_pool.tasks.definitions import Definitions
from mp_pool.tasks.in_flight import Handles, is_interrupted, is_used_again, withdraw
from mp_pool.tasks.shared_function import SharedFunction, share
from mp_pool.tasks.task import Delivery, Task, TaskSource, abort_all, cancelled, deliver, deliver_all, report, take_next
from mp_pool.workers.worker import Worker
from mp_pool.workers.worker_main import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNNING, CLOSED, TERMINATED, ENDED = range(4)

SHORT_CALL = 0.0005  # seconds: for the result of a longer one, a thread does not spin
LOOK = 1.0  # milliseconds
# Of the tasks that are pickled before a worker takes them: all, those that are large, and the bytes of these.
MOST_AHEAD, MOST_LARGE, BYTES_AHEAD = 1024, 64, 16 << 20
ASKED = 1.0  # seconds: the scheduler's thread may be in a callback, which may wait for the thread that asks

TERMINATE_TEXT = "the pool was terminated before this task was done"


class Scheduler(Workers):
    """
    Workers, a queue of tasks, and the thread that sends the tasks to the workers.

    *make* makes a process and *size* is the number of workers; with *lazily*, they start when there is work.
    *cause* makes the `__cause__` of a worker's exception from its traceback. *broken* makes the exception of all tasks
    from the error that has ended the pool, None for `terminate`. *lost* is the exception of a dead worker's task.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        size: int,
        settings: Settings,
        *,
        lazily: bool = False,
        progress: Progress | None = None,
        cause: Callable[[str], BaseException] = RemoteTraceback,
        broken: Callable[[BaseException | None], BaseException] = lambda error: error or ProcessError(TERMINATE_TEXT),
        lost: type[WorkerLostError] = WorkerLostError,
    ) -> None:
        numbers = self._function_numbers = itertools.count(1)
        # Weakly: a task at a worker of this scheduler may have the function. The callback of a `WeakMethod` is Python
        # code, in which the exception of a signal handler would be lost.
        this = weakref.ref(self)
        forget = self._weak_forget = lambda: getattr(this(), "_forget", None)
        definitions = Definitions(
            lambda function, inheritance: share(function, next(numbers), forget, True, inheritance), settings.forked
        )
        super().__init__(make, size, settings, lazily, lost, definitions)
        self.state, self.has_started = RUNNING, False
        #: The unfinished results of the pool; `_abort` of each is called when the pool ends.
        self.sinks: dict[int, Any] = {}
        self.feeders: set[Any] = set()  # threads that read an iterable
        # See `prepare_ahead`: small tasks and large ones, with their bytes. Each change is one call in C.
        self._ahead: tuple[dict[Task, int], dict[Task, int]] = {}, {}
        self._late: dict[Task, int] = {}  # one that could not be among them; those behind it are not either
        self._refused: deque[tuple[int, Any, Handles]] = deque()  # its message, for a thread that no handler interrupts
        self._cause, self._broken = cause, broken
        self._progress = progress
        self._lock: Any = TryLock()
        self._asleep = self._at_once = self._ended = False
        # What other threads ask this scheduler's thread to do with the lock, and the locks by which they wait for it.
        self._asked: deque[tuple[Callable[[], object], Any]] = deque()
        self._answered: list[Any] = []  # such locks, once it is done
        self._aborted: list[tuple[Any, BaseException]] = []  # sinks that get no more results
        self._received = 0  # results that were received by threads that waited for them
        self._is_received = False  # a thread that waits receives the next result
        self._is_beside = False  # the scheduler's thread leaves the rings to it
        self._attention = True  # the first step finds out what to wait for
        self._next = -1.0, 0.0  # how long the next step waits, and sleeps before
        self._pid, self._main = os.getpid(), threading.main_thread().ident
        self.thread = threading.Thread(target=self._run, name="mp_pool", daemon=True)
        self._running = threading.Lock()  # the thread has it

    # Called by any thread.

    def start(self) -> None:
        """Start `wanted` workers, and the thread."""
        if self.state != RUNNING:
            raise ValueError("the pool has ended")
        check_threads()
        _ = self.dispatcher.definitions.inheritance  # before the first fork
        if not self.forks:
            check_guard()  # here, and not in the thread
        gone = allocate_lock()
        gone.acquire()
        try:
            read, write = self._waker = (Descriptor(closed_in_children=True), Descriptor(closed_in_children=True))
            read.fd, write.fd = os.pipe()
            for descriptor in self._waker:
                os.set_blocking(descriptor.fd, False)
            self.dispatcher.death = DeathPipe()
            self.dispatcher.stacks.open()
            while len(self.dispatcher.workers) < self.wanted:
                self.dispatcher.start_worker(first=True)
            self.dispatcher.start_zygote()  # while the workers get ready
            self.thread.start()
            self.has_started = True
        except BaseException as error:
            # In a thread, where no handler of a second signal interrupts it.
            try:
                start_new_thread(self._abandon, (gone,))
            except RuntimeError as refusal:  # there can be no more threads
                if not is_of_handler(refusal):
                    self._abandon(gone)
            gone.acquire()
            if isinstance(error, MissingGuardError):
                error.with_traceback(None)  # it says all; below are the places of a fork server's start
            raise

    def _abandon(self, gone: Any) -> None:
        """End a scheduler whose start has failed or was interrupted; then release *gone*."""
        try:
            self.state, self._at_once = TERMINATED, True
            self.wake()
            self._running.acquire()  # the thread has ended, or has not begun, but may be about to
            self._end_once()
        finally:
            gone.release()

    def prepare(self, task: Task) -> None:
        """Pickle a task that may change before it is sent. An error is found again, and is its outcome."""
        if task.may_change():
            self._pickle_early(task)

    def _pickle_early(self, task: Task) -> None:
        try:
            task.pickle(self.dispatcher.definitions)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or is_of_handler(error):
                raise

    def prepare_ahead(self, task: Task) -> None:
        """
        Pickle a task at its submission, as far as the standard pool does: its pipe takes some, and then is full.

        A program may fill one list or array anew for each task. But the pickles of all tasks could fill the memory, or
        have more references to one array than there are: see Note [A reference that was used again]. And messages with
        a timeout are pickled late, as it begins then.
        """
        if task.payload is not None or not task.may_change() or get_message_timeout() is not None:
            return
        if not task.kwds and is_small(task.args):
            task.shared = self.dispatcher.definitions.kept(task.function)
            if task.shared is not None:
                return  # as it is now
        small, large = self._ahead
        if self._late or len(small) >= MOST_AHEAD or len(large) >= MOST_LARGE:
            return
        if sum(list(large.values())) >= BYTES_AHEAD:
            return
        task.ahead, small[task] = small, 0  # before it has resources: see `withdraw`
        before = copied_bytes(0)
        self._pickle_early(task)
        size = len(task.payload or b"") + copied_bytes(0) - before
        if is_used_again(task.handles):
            payload, handles = task.payload, task.handles
            task.payload, task.handles = None, ()
            self._refused.append((task.kind, payload, handles))
            task.ahead, self._late[task] = self._late, 0
            del small[task]
        elif size > BYTES_AHEAD // MOST_AHEAD:
            task.ahead, large[task] = large, size
            del small[task]

    def withdraw(self, task: Task) -> None:
        """Release what a task has that an exception has kept from the queue, if it has."""
        try:
            self._lock.wait()
            # Nobody has begun it then.
            if task.ahead is not None and task not in self.dispatcher.queue:
                task.drop()
        finally:
            self._lock.release()

    def is_pickled_here(self, task: Task) -> bool:
        """
        Pickle *task* in this thread, because another one might wait for a module that this one is importing; return
        False if that has failed, which is its outcome.
        """
        try:
            task.pickle(self.dispatcher.definitions)
        except Exception as error:
            if is_of_handler(error):
                raise
            deliver(task.sink, task.index, (False, error))
            return False
        return True

    def submit(self, work: Task | TaskSource, items: int = 0) -> None:
        """Queue a task, or a source of tasks, of *items*; send as many tasks as the workers take."""
        self.check_own()
        if imports_under_way:
            works = deque([work])
            while (task := take_next(works)) is not None:
                if self.is_pickled_here(task):
                    self.enqueue(task)
        else:
            try:
                if isinstance(work, Task):
                    self.prepare_ahead(work)
                self.enqueue(work, items)
            except BaseException:  # of a signal handler
                if isinstance(work, Task):
                    self.withdraw(work)
                raise
        self.hand_out()

    def enqueue(self, work: Task | TaskSource, items: int = 0) -> None:
        """Do the first half of `submit`, in our own process; it cannot be lost to a `close` that comes after it."""
        if self._progress is not None:
            self._progress.expect(work.items if isinstance(work, Task) else items)
        self.dispatcher.queue.append(work)

    def share(self, function: Callable[..., Any]) -> SharedFunction | None:
        """
        Return *function* for tasks that all call it, so that each worker gets it once; None if they have to carry it.
        """
        definitions = self.dispatcher.definitions
        return definitions.of(function, often=True) or share(
            function, next(self._function_numbers), self._weak_forget, False, definitions.inheritance
        )

    def _forget(self, number: int) -> None:
        # Called where the last task is dropped: by any thread, also with the lock.
        self.dispatcher.forgotten.append(number)
        self.wake()

    def hand_out(self) -> None:
        """
        Do the second half of `submit`: send tasks, in the main thread one, if the lock is free. The scheduler's thread
        does the rest.
        """
        done = False
        try:
            if self._lock.acquire() and self.state <= CLOSED:
                if self._lazily and self.wanted < min(self.size, self.dispatcher.unfinished()):
                    self.wanted += 1
                    self._fill()
                is_main = threading.get_ident() == self._main
                done = self.dispatcher.send_first() if is_main else self.dispatcher.dispatch()
        finally:
            try:
                self._lock.release()
            finally:
                if not done or self.dispatcher.news or self.state != RUNNING:
                    self.wake()
        self.fail_if_ended()

    def fail_if_ended(self) -> None:
        """Fail the unfinished results if the pool has ended; until then its thread does that, at its end."""
        if self.state == ENDED:
            self._abort()

    def receive(self, task: Task) -> None:
        """
        Wait a moment for the result of *task*, in the thread that asks for it, and deliver it: see Note [Who receives].
        """
        worker, seen, done = task.worker, False, False
        if worker is None or not self._may_be_received(task, worker):
            self._return_to_rings()
            return
        try:
            self._is_received = True
            seen = worker.ring.spin()
            if seen:
                try:
                    done = self._lock.acquire() and self._deliver_first(worker, task)
                finally:
                    self._lock.release()
        finally:
            if not done or self.state != RUNNING:
                self._return_to_rings(seen)

    def _may_be_received(self, task: Task, worker: Worker) -> bool:
        dispatcher = self.dispatcher
        if worker.pace is None or worker.pace > SHORT_CALL or worker.left is not None or task.handles:
            return False
        if dispatcher.queue or task.options.is_watched or self._progress is not None or self.state != RUNNING:
            return False
        if len(worker.tasks) != 1 or not self.is_own():
            return False
        busy = 0
        for each in dispatcher.workers:
            busy += bool(each.tasks)
        return busy == 1

    def _deliver_first(self, worker: Worker, task: Task) -> bool:
        message = worker.ring.first()
        if (
            message is None
            or message[1] != task_messages.DONE | task_messages.PLAIN
            or worker.tasks.get(message[0]) is not task
            or worker.killed_for is not None
            or imports_under_way  # this thread would wait for one with the scheduler's lock
        ):
            return False
        sink: Any = task.sink
        value = plain_loads(message[2])
        if not sink._set_alone(value):
            return False
        self._received += 1
        self._useless = 0
        worker.answered([(message[0], (True, value))], [])
        self.dispatcher.has_answered(worker, 1, time.monotonic())
        worker.ring.skip(message[0])
        return True

    def _return_to_rings(self, seen: bool = False) -> None:
        self._is_received = False
        if seen or self._is_beside:
            self.wake()  # it cannot see, in its sleep, a message that was looked at and stays

    def has_begun(self, task: Task) -> bool:
        worker = task.worker
        return worker is not None and worker.has_begun(task)

    def recall(self, then: Callable[[], object] = bool) -> None:
        """
        Take the tasks that no worker has begun back into the queue, and call *then* before they are handed out again;
        wait a moment for it.
        """

        def recall() -> None:
            self.dispatcher.recall_all()
            then()

        self._ask(recall)

    def await_starts(self) -> None:
        """Wait until the processes are started that the tasks so far need, for at most `ASKED` seconds."""
        self._ask(lambda: None)

    def check_cancel(self, running: bool) -> None:
        """Refuse what this kind of scheduler cannot do: nothing, its workers are processes of this machine."""

    def cancel(self, sink: Any, running: bool, abort: bool = True) -> None:
        """
        Drop the tasks of *sink* that no worker has begun; with *running*, kill the workers of those that are begun.
        Then *abort* the sink, unless it is of one task and that goes on; wait a moment for all of it.
        """

        def cancel() -> None:
            goes_on = self.dispatcher.cancel(sink, running)
            if abort and not (goes_on and hasattr(sink, "task")):
                self._aborted.append((sink, cancelled()))

        self._ask(cancel)

    def _ask(self, action: Callable[[], object]) -> None:
        """
        Have the scheduler's thread do *action* with the lock, and wait a moment for it. A thread that has the lock, or
        may have it, goes on at once.
        """
        if not self.is_own() or self.thread.ident is None:
            return
        if self.thread is threading.current_thread():  # in a callback
            try:
                self._lock.wait()
                action()
                self._attention = True  # the next step hands out
            finally:
                self._lock.release()
            self._answer()
            return
        done = allocate_lock()
        done.acquire()
        self._asked.append((action, done))
        if not self._ended:
            self.wake()
            if not self._lock.is_mine() and not is_interrupted():
                done.acquire(timeout=ASKED)

    def _do_asked(self) -> None:
        while self._asked:
            action, done = self._asked.popleft()
            self._answered.append(done)
            action()

    def take_back(self, count: int) -> list[Task]:
        """
        Take the last tasks that no worker has, up to *count* of them, out of the queue and return them: the caller runs
        them elsewhere, and releases their resources by `Task.drop`. A source of tasks stays.
        """
        taken: list[Task] = []
        try:
            self._lock.wait()
            queue = self.dispatcher.queue
            while queue and len(taken) < count and isinstance(last := queue[-1], Task):
                queue.pop()
                if last.worker is None:
                    taken.append(last)
        finally:
            self._lock.release()
        return taken

    def is_ready(self) -> bool:
        """Tell whether each worker has started and run its initializer."""
        return all(worker.ready for worker in list(self.dispatcher.workers))

    def processes(self) -> list[Any]:
        return [worker.process for worker in list(self.dispatcher.workers)]

    def queued(self) -> int:
        """Return the number of tasks at no worker, counting a source or an iterable that is being read as one."""
        return len(self.dispatcher.queue) + len(self.feeders)

    def unfinished(self) -> int:
        """Return the number of tasks without a result, counted in the same way."""
        return self.dispatcher.unfinished() + len(self.feeders)

    def is_own(self) -> bool:
        """Tell whether this process made it, rather than a parent that forked."""
        return self._pid == os.getpid()

    def check_own(self) -> None:
        """Raise `ValueError` in a forked child."""
        if not self.is_own():
            raise ValueError(f"this pool belongs to process {self._pid}; a forked child has to make its own")

    def close(self) -> None:
        """Accept no more tasks; end when all are done."""
        if self.state == RUNNING:
            self.state = CLOSED
        self.wake()

    def terminate(self, at_once: bool = False) -> None:
        """Like `begin_end`, and wait for the end of the thread."""
        try:
            if self.begin_end(at_once):
                self.join()
        except BaseException:  # a second Ctrl-C
            self.begin_end(at_once=True)
            raise

    def begin_end(self, at_once: bool) -> bool:
        """
        End the workers now, by SIGTERM first unless *at_once*; return False if the pool has ended, or is not our own.
        """
        if not self.is_own():
            return False
        # No call between the test and the assignment: the pool could end there, and the state would lose it.
        if self.state == ENDED:
            return False
        self.state = TERMINATED
        self._at_once = self._at_once or at_once  # after a second Ctrl-C it stays so
        self.dispatcher.end_zygote()
        self.wake()
        return True

    def discard(self) -> None:
        """End a scheduler that has never been started."""
        if self.thread.ident is None and self.state != ENDED:
            self.state = TERMINATED
            self._running.acquire()  # `_abandon` may have it
            self._end_once()

    def join(self) -> None:
        """
        Wait until all workers have ended. From a callback, or a signal handler that has interrupted a submit of this or
        another pool, return at once: the scheduler's thread cannot end before they do.
        """
        if self.thread.ident is None or self.thread is threading.current_thread():
            return
        if self._lock.is_mine() or is_interrupted():
            return
        # CPython up to 3.12 takes a thread for ended when an exception has interrupted `join`. With a timeout, as a
        # handler that raises between the two lines keeps the lock.
        while not self._ended and self.is_own():
            if self._running.acquire(timeout=1.0):
                self._running.release()
        self.thread.join(1.0)

    def wake(self) -> None:
        """Have the scheduler's thread check the whole state."""
        self._attention = True
        if self._asleep:
            try:
                descriptor = self._waker[1].fileno()
                # From here to the write no signal handler runs: its own `wake` would take the thread for awake.
                self._asleep = False
                os.write(descriptor, b"\0")
            except OSError:
                pass  # the pipe is full, so the thread wakes; or it is closed, so the thread has ended
            except BaseException:  # of a signal handler, perhaps before the write
                self._asleep = True
                raise

    # The thread.

    def _run(self) -> None:
        self._running.acquire()
        try:
            while not self._ended and self._step():
                pass
        except BaseException as error:
            # A bug in the scheduler must not let the program hang.
            self.reason = error
            report(error)
        finally:
            self._end_once()

    def _end_once(self) -> None:
        """Do `_end` unless it is done, and give back `_running`, which the caller has."""
        try:
            if not self._ended:
                self._end()
        finally:
            self._ended = True
            while self._asked:
                self._answered.append(self._asked.popleft()[1])
            self._answer()
            self._running.release()

    def _step(self) -> bool:
        """Wait for events and handle them; return False at the end of the pool."""
        delay, nap = self._next
        if nap and not self._attention:
            time.sleep(nap)
        if self._is_received:
            self._stay_beside()
        self._asleep = True
        rings, fds = wait_any(*self._awaited, 0 if self._attention else delay)
        self._asleep = False
        read = [self._rings[ring] for ring in rings]
        dead: list[Worker] = []
        for fd in fds:
            if fd == self._waker[0].fileno():
                _drain(fd)
            elif fd in self._packets:
                read.append(self._packets[fd])
            else:
                dead.append(self._deaths[fd])
        held = unopened if imports_under_way else None
        answers = [(worker, task_messages.load(worker.read(), self._cause, held)) for worker in read]
        for worker in dead:
            while frames := worker.read():
                answers.append((worker, task_messages.load(frames, self._cause, held)))
        try:
            self._lock.wait()
            outcomes = self._take_in(answers, dead)
            more = self._go_on()
        finally:
            self._lock.release()
        del answers
        if self._progress is not None and outcomes:
            self._progress.done(sum(task.items if isinstance(task, Task) else 1 for *_, task in outcomes))
        self._next = self._delay(), self.dispatcher.nap()
        # Last: a thread that waits for an outcome wakes, and gets the GIL at once, since this one goes to wait.
        deliver_all(outcomes)
        if self._answered:
            self._answer()
        return more

    def _answer(self) -> None:
        """Abort the sinks of cancelled tasks, and wake the threads that have asked for something."""
        while self._aborted:
            sink, error = self._aborted.pop()
            abort_all({0: sink}, error)
        while self._answered:
            self._answered.pop().release()

    def _stay_beside(self) -> None:
        """Leave the rings to a thread that receives for itself, as long as it does so."""
        self._is_beside = True
        while self._is_received and not self._attention:
            before = self._received
            self._asleep = True
            _, fds = wait_any([], self._awaited[1], LOOK)
            self._asleep = False
            if fds or self._received == before or self._next[0] >= 0:
                break
        self._is_received = self._is_beside = False

    def _take_in(self, answers: list[Any], dead: list[Worker]) -> list[Delivery]:
        """Record results and deaths; return the outcomes to deliver."""
        self._attention = self.dispatcher.news = False
        outcomes, self.dispatcher.failed = self.dispatcher.failed, []
        now = time.monotonic()
        again: list[Task] = []
        for worker, (results, others) in answers:
            deliveries = worker.answered(results, again)
            outcomes += deliveries
            for number, kind, outcome in others:
                if kind == task_messages.READY:
                    worker.ready = self._has_run = True
                    self._failures = 0
                    self.dispatcher.may_be_free(worker)
                elif kind == task_messages.HAS_FUNCTION:
                    worker.has_function(number)
                elif kind == task_messages.INIT_FAILED:
                    worker.failure = outcome
            if worker.backlog:
                worker.send_backlog()
            if results:
                self._useless = 0
                self.dispatcher.has_answered(worker, len(results), now)
            elif others:
                self.dispatcher.may_be_free(worker)
        for worker, _ in answers:
            if worker.hung_up and worker not in dead:
                self._hung_up(worker, now)
        if again:
            self.dispatcher.requeue(again)
        for worker in dead:
            outcomes += self._died(worker)
        self._check_times(now)
        return outcomes

    def _go_on(self) -> bool:
        """Start and end workers, and send tasks; return False at the end of the pool."""
        dispatcher = self.dispatcher
        if self.state == TERMINATED or self.reason is not None:
            return False
        if self._lazily:
            self.wanted = max(self.wanted, min(self.size, dispatcher.unfinished()))
        dispatcher.forget()
        self._withdraw_refused()
        self._do_asked()
        dispatcher.dispatch()
        if self.state == CLOSED and not self.feeders and not dispatcher.unfinished() and not dispatcher.failed:
            if dispatcher.tell_all_to_end(at_once=False):
                dispatcher.end_zygote()
            self._watch()
            return bool(dispatcher.workers or self._leaving)
        self._fill()
        self._watch()
        # The callback of a failed task may submit another one: check again after it has run.
        self._attention = self._attention or bool(dispatcher.failed)
        return self.reason is None

    def _end_workers(self) -> list[Delivery]:
        """End all workers, and release the resources of undelivered messages; return outcomes that nobody has yet."""
        ended = [*self.dispatcher.workers, *self._leaving]
        self.dispatcher.end_zygote()
        try:
            self._lock.wait()
            self.dispatcher.tell_all_to_end(at_once=True)
        except Exception as error:  # a bug there must not keep the workers alive
            report(error)
        finally:
            self._lock.release()
        end_workers(ended, lambda: self._at_once, self.dispatcher.death)
        # From here on `submit` fails its task itself.
        try:
            self._lock.wait()
            outcomes, self.dispatcher.failed = self.dispatcher.failed, []
            for worker in ended:
                try:
                    self.dispatcher.empty(worker)
                except Exception as error:  # a bug there must not keep a future waiting
                    report(error)
            # The pool may live on, and the process objects have descriptors.
            workers, free = self.dispatcher.workers, self.dispatcher.free
            for known in (workers, free, self._leaving, self._rings, self._packets, self._deaths):
                known.clear()
            self.state = ENDED
        finally:
            self._lock.release()
        return outcomes

    def _end(self) -> None:
        """End all workers, and fail the unfinished tasks."""
        outcomes = self._end_workers()
        try:
            deliver_all(outcomes)
            self._abort()
        finally:
            for feeder in list(self.feeders):
                feeder.stop()
            for descriptor in self._waker:
                descriptor.close()
            self.dispatcher.stacks.close()
            for each in (self.dispatcher.zygote, *self.dispatcher.former_zygotes):
                if each is not None:
                    each.close()
            if self.dispatcher.death is not None:
                self.dispatcher.death.close()
            if self._progress is not None:
                self._progress.close()

    def _withdraw_refused(self) -> None:
        while self._refused:
            try:
                withdraw(*self._refused.popleft())
            except IndexError:
                break  # another thread has taken the last one

    def _abort(self) -> None:
        self._withdraw_refused()
        error = self._broken(self.reason)
        queue = self.dispatcher.queue
        while queue:
            try:
                item = queue.popleft()
            except IndexError:
                break  # another thread has taken the last one
            if isinstance(item, Task):
                item.drop()
                deliver(item.sink, item.index, (False, error))
        abort_all(self.sinks, error)


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass
