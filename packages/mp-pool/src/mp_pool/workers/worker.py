"""`Worker`: the parent's side of one worker, with a ring for tasks and results, and a pidfd.

Note [Tasks that can be taken back]
-----------------------------------
The tasks of a worker are numbered in the order in which they are sent. One word of its ring, the claim cursor, says how
many it has begun; whoever moves it past a number has that task (`task_rings.py`). So the parent takes tasks back that
the worker has not begun: when another worker is idle, when the task before them takes long, and when the worker died.

- The worker dies: its results are in the ring, and each is there before the next task is claimed. Tasks that are not
  claimed go to other workers. At most one task is claimed and has no result: the one that the worker was running.
- The worker is stopped anywhere: its tasks are taken back all the same. It drops them unread when it continues.
- The parent dies: the kernel kills the worker, busy or not, as the other end of its death pipe is closed
  (`mp_core.children.death_pipe`). Other children that were forked meanwhile have closed theirs.
- No room in the ring, no descriptor for a new worker: the task stays in the queue.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial

from mp_core.sharing.backend import LONGEST, recorders
from mp_core.system.descriptor import Descriptor, close_in_children, keep_in_children
from mp_pool.tasks import task_messages
from mp_pool.tasks.batches import packed, shared_by
from mp_pool.tasks.in_flight import Handles, forget, release
from mp_pool.tasks.task import Delivery, Item, Outcome, Task, as_task, delivery, name_of, note_task
from mp_pool.tasks.task_messages import BATCH, END, FORGET, PART, Frame
from mp_pool.workers.environment import NameThatSets
from mp_pool.workers.stdin import left_alone
from mp_pool.workers.task_rings import TaskSocket, WorkerEnds, make_task_ring
from mp_pool.workers.worker_main import Settings, work
from mp_pool.workers.zygote import Zygote, ZygotePopen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.children.death_pipe import DeathPipe
    from mp_pool.tasks.shared_function import SharedFunction

MOST = 512  # tasks


class Worker:
    """One worker process. Not thread-safe: the caller holds the scheduler's lock, except in `read`."""

    def __init__(self, settings: Settings, index: int) -> None:
        self.tasks: dict[int, Task | Item] = {}  # sent and not answered, by their numbers, in this order
        self._sent = 0  # the number of the next task
        self.backlog: deque[Frame] = deque()  # messages for which there was no room yet
        self._parts: list[bytes] = []  # of a result
        self.functions: set[int] = set()  # the numbers of those it has been sent
        # Those that it may not have received, each with the kind and data of its message, and the references in it.
        self._announced: dict[int, tuple[int, Any, Handles]] = {}
        self.ready = False
        self.most = MOST  # the highest limit for the length of `tasks`,
        self.window = 4  # and the present one
        self.pace: float | None = None  # seconds per task, measured by the answers
        self.recalled = False  # tasks were taken back since the last answer
        self.ran_dry = False  # it had begun all its tasks when it last answered
        self.left = settings.max_tasks
        self.since = time.monotonic()  # the latest start of the oldest task, as far as the parent can know
        # Once the pool has killed it: the task that it is killed for, and the exception of that.
        self.killed_for: tuple[Task, Exception] | None = None
        self.was_cut_off = False  # it was killed, since no result could come any more
        self.looked = self.since  # when its memory was last looked at
        self.told_to_end = False
        self.began_nothing = False  # it has ended before the first of the tasks that it had
        self.failure: BaseException | None = None  # the exception of its initializer
        self.ring: Any = None
        self.death = Descriptor(closed_in_children=True)
        self.index = index
        self._ends = WorkerEnds(index=index)  # for the worker, until it has them; a forked one keeps them

    def start(
        self,
        make: Callable[..., Any],
        settings: Settings,
        initializer: SharedFunction | None,
        death: DeathPipe,
        stacks: int,
        zygote: Zygote | None,
    ) -> None:
        """
        Start the process, or have *zygote* do it; it ends when the pipe *death* does, and writes to the file *stacks*.

        If that fails or is interrupted, `abandon` ends it.
        """
        self.ring = make_task_ring()
        close_in_children(self.ring)
        if isinstance(self.ring, TaskSocket):
            self.most = self.window = 1
        ends = self._ends
        with closing(ends):
            fd, memory = self.ring.ends()
            ends.fd = os.dup(fd)
            if memory >= 0:
                ends.memory = os.dup(memory)
            ends.death, ends.stacks = os.dup(death.fd), stacks
            self.ring.close_ends()
            self.process = make(target=work, args=(ends, settings))
            self.process.reports_missing_guard = True
            method = getattr(self.process, "_start_method", None)
            if zygote is not None:
                self.process._Popen = partial(ZygotePopen, zygote, ends)
            if settings.environment:
                self.process.name = NameThatSets(self.process.name, settings.environment)
                if method == "forkserver":
                    from mp_core.children import fork_server

                    fork_server.start_without_libraries()
            # A Ctrl-C before the worker has installed its handler would end it with a traceback.
            # The fork server, which this may start, would pass the mask on to unrelated processes.
            # The mask is read first, and the functions are those in C: a handler that raises in the middle of one
            # of signal's own, which are written in Python, would leave the signal blocked.
            mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
            # A process that is not forked takes nothing of its parent's threads with it.
            beside_threads = method == "fork" and zygote is None and threading.active_count() > 1
            try:
                if method == "fork":
                    # A handler that raises after the fork would leave a process that nobody knows. (A thread of a
                    # library takes the signals that are not sent to this one: then it is left, and soon ends.)
                    ends.mask = mask
                    _signal.pthread_sigmask(signal.SIG_BLOCK, _signal.valid_signals())
                elif method == "spawn":
                    _signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
                with left_alone(self.process) if beside_threads else nullcontext():
                    self.process.start()
            finally:
                _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid: int = self.process.pid
        # The sentinel of a process stays open while a child of its own lives; a pidfd does not.
        try:
            self.death.fd = os.pidfd_open(self.pid) if zygote is None else os.dup(self.process.sentinel)
        except (AttributeError, OSError):
            pass  # an old kernel, or a container that forbids it; or it has been reaped
        if initializer is not None:
            self._announce(initializer)
        self.sentinel: int = self.process.sentinel if self.death.fd < 0 else self.death.fd

    def abandon(self, gone: Any) -> None:
        """End a worker whose start has failed or was interrupted, and which nobody else knows; then release *gone*."""
        process = getattr(self, "process", None)
        try:
            if process is not None and process.pid is not None:
                process.kill()
                process.join()
        finally:
            self._drop_announcements()
            self.close()
            gone.release()

    def close(self) -> None:
        if self.ring is not None:
            self.ring.close()
            keep_in_children(self.ring)
        for descriptor in (self._ends, self.death):
            descriptor.close()

    def send(self, task: Task) -> bool:
        """Send *task*, which is pickled; return False if there is no room for it now. Never waits."""
        if self.send_at_once(task):
            return True
        function = task.shared
        if self.backlog or (len(task.payload) <= LONGEST and (function is None or function.number in self.functions)):
            return False
        if function is not None and function.number not in self.functions:
            self._announce(function)
        self._note([task])
        self._send_later(self._sent - 1, task.kind, task.payload)
        return True

    def send_at_once(self, task: Task) -> bool:
        """Send *task* if its message can be sent whole and now, and the worker needs no other for it."""
        payload, function = task.payload, task.shared
        if self.backlog or len(payload) > LONGEST:
            return False
        if function is not None and function.number not in self.functions:
            return False
        number, now = self._sent, time.monotonic()
        # No signal handler runs from here to the send: nothing is called.
        if not self.tasks:
            self.since = now
        if self.left is not None:
            self.left -= 1
        self._sent = number + 1
        self.tasks[number] = task
        task.worker = self
        try:
            self.ring.send(number, task.kind, payload)
        except BlockingIOError:
            del self.tasks[number]
            task.worker = None
            self._sent = number
            if self.left is not None:
                self.left += 1
            return False
        return True

    def send_batch(self, tasks: list[Task] | list[Item]) -> bool | None:
        """Send *tasks* in one message; return False if there is no room for it now, None if it is too long."""
        payload = packed(tasks)
        if payload is None:
            return None
        for function in shared_by(tasks):
            if function.number not in self.functions:
                self._announce(function)
        if self.backlog or not self._send(self._sent, BATCH, payload):
            return False
        self._note(tasks)
        return True

    def _send(self, number: int, kind: int, data: Any) -> bool:
        try:
            self.ring.send(number, kind, data)
        except BlockingIOError:
            return False
        return True

    def _note(self, tasks: list[Task] | list[Item]) -> None:
        if not self.tasks:
            self.since = time.monotonic()
        self.tasks.update(enumerate(tasks, self._sent))
        self._sent += len(tasks)
        if isinstance(tasks[0], Task):  # then each is one
            for task in tasks:
                task.worker = self
        if self.left is not None:
            self.left -= len(tasks)

    def _send_later(self, number: int, kind: int, payload: Any) -> None:
        """Send a message as soon as there is room for each of its parts: the worker answers a part by `MORE`."""
        view = memoryview(payload)
        while len(view) > LONGEST:
            self.backlog.append((number, PART, view[:LONGEST]))
            view = view[LONGEST:]
        self.backlog.append((number, kind, view))
        self.send_backlog()

    def send_backlog(self) -> None:
        """Send as much of the backlog as there is room for."""
        while self.backlog and self._send(*self.backlog[0]):
            self.backlog.popleft()

    def _announce(self, function: SharedFunction) -> None:
        announced = kind, payload, _ = function.announcement()
        self._announced[function.number] = announced
        self.functions.add(function.number)
        self._send_later(function.number, kind, payload)

    def forget(self, number: int) -> None:
        """Tell the worker that no more tasks call the function *number*."""
        if number in self.functions:
            self.functions.discard(number)
            self._send_later(number, FORGET, b"")

    def tell_to_end(self, at_once: bool) -> None:
        """Ask the worker, which has no tasks that it has not begun, to end; *at_once* with no more than finalizers."""
        self.told_to_end = True
        self._send_later(0, END, b"\1" if at_once else b"")

    def is_leaving(self) -> bool:
        """Tell whether the worker has nothing more to do, and is about to end."""
        return self.hung_up or (self.told_to_end and self.ready and not self.tasks and not self.backlog)

    def signal(self, number: int) -> None:
        """Send a signal to the worker, never to another process that has its pid by now."""
        try:
            if self.death.fd >= 0:
                signal.pidfd_send_signal(self.death.fd, number)
                return
        except ProcessLookupError:
            return
        except OSError:
            pass  # a container may allow pidfd_open and forbid this
        try:
            if number == signal.SIGTERM:
                self.process.terminate()
            else:
                self.process.kill()
        except OSError:
            pass  # it has ended

    def has_begun(self, task: Task) -> bool:
        """Tell whether the worker has begun *task*, or has it no more. Any thread may ask."""
        for number, each in list(self.tasks.items()):
            if each is task:
                return bool(number < self.ring.claimed)
        return True

    def has_begun_all(self) -> bool:
        """Tell whether the worker has no task left that it has not begun."""
        return bool(self.ring.claimed >= self._sent)

    def has_unbegun(self) -> bool:
        """Tell whether tasks wait in its ring: behind another one, or because it is stopped."""
        return self.most > 1 and bool(self.tasks) and (len(self.tasks) > 1 or not self.has_begun_all())

    def take_back(self, count: int | None = None) -> list[Task | Item]:
        """Return the tasks that the worker has not begun, of those at most the oldest *count*."""
        until = self._sent if count is None else min(self._sent, self.ring.claimed + count)
        back = [self.tasks.pop(number) for number in range(self.ring.take_back(until), until)]
        if self.left is not None:
            self.left += len(back)
        return back

    def take_all_back(self) -> list[Task | Item]:
        """Return every task that a worker, which takes no more, has not begun; those left in `tasks` it had begun."""
        self.backlog.clear()
        self._drop_announcements()
        back = self.take_back()
        self.began_nothing = self.began_nothing or (bool(back) and not self.tasks and self.pace is None)
        return back

    def _drop_announcements(self) -> None:
        """Release the resources of the functions that the worker may not have received."""
        while self._announced:
            number, (kind, payload, handles) = self._announced.popitem()
            self.functions.discard(number)
            release(kind, payload, handles)

    def has_function(self, number: int) -> None:
        """Record that the worker has received a function."""
        _, _, handles = self._announced.pop(number, (0, b"", ()))
        forget(handles)

    def answered(self, results: list[tuple[int, Outcome]], again: list[Task]) -> list[Delivery]:
        """
        Remove the tasks of *results*, each behind its number; return the outcomes on their way. Those that have failed
        and are to be repeated are added to *again*.
        """
        tasks = self.tasks
        if recorders:
            for number, _ in results:
                if number in tasks:
                    task = as_task(tasks[number])
                    for recorder in recorders:
                        recorder.answered(self.pid, number, task.position, task.items)
        deliveries: list[Delivery] = []
        for number, outcome in results:
            sent = tasks.pop(number, None)
            if outcome[0] is False and sent is not None:
                sent = as_task(sent)
                note_task(outcome[1], sent, f"worker {self.pid}")
            if isinstance(sent, Task):
                sent.has_answer()
                if outcome[0] is False and sent.is_repeated_after(outcome[1]):
                    again.append(sent)
                    continue
                deliveries.append(delivery(sent, outcome))
            elif sent is not None:
                deliveries.append((sent[0], sent[1], outcome, sent))
        return deliveries

    def record_lost(self, terminated: bool = False) -> None:
        """Record the tasks in which the worker has died, or its pool was terminated, if a timeline is recorded."""
        for recorder in recorders:
            for number, each in self.tasks.items():
                task = as_task(each)
                again = task.retries > 0 and not terminated
                recorder.lost(self.pid, number, task.position, task.items, name_of(task), again, terminated)

    def read(self) -> list[Frame]:
        """Return the messages of the worker so far. It needs no lock: only one thread reads."""
        frames: list[Frame] = []
        while not frames and (messages := self.ring.take_all()):
            frames = task_messages.assembled(messages, self._parts)
        return frames

    @property
    def hung_up(self) -> bool:
        """Whether the worker has closed its end."""
        return bool(self.ring.hung_up)
