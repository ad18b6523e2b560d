"""`Worker`: the parent's side of one worker, with a socket for tasks, a pipe for results, and a pidfd.

Note [Tasks that can be taken back]
-----------------------------------
Tasks go through a SOCK_SEQPACKET pair: one packet is one task, and the kernel gives each packet whole to one reader.
The parent keeps a descriptor of the worker's end. So it can read back a task that the worker has not read yet: when
another worker is idle, when the task before it takes long, and when the worker has died. A task in the socket was not
begun; a task that has left the socket and has no result was begun. This needs no other state and no shared lock.

- The worker dies: the parent empties the socket and the pipe. At most one task is left, which the worker was running.
- The worker is stopped: its socket fills, and the parent's sends, which never wait, fail. Tasks are taken back.
- The parent dies: all descriptors of its end are closed, and the worker reads end-of-file. Other children that were
  forked meanwhile have closed theirs (`_close_in_child`).
- No room for a packet, no descriptor for a new worker: the task stays in the queue.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import os
import signal
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import closing, nullcontext

from mp_pool._batches import AT_ONCE, Batches
from mp_pool._descriptor import Descriptor, close_in_children, keep_in_children
from mp_pool._environment import NameThatSets
from mp_pool._in_flight import Handles, forget, release
from mp_pool._result_pipe import Frame, ResultPipe
from mp_pool._stdin import left_alone
from mp_pool._worker_ends import WorkerEnds
from mp_pool.task import Task
from mp_pool.wire import ALONE, BATCH, FORGET, HEADER, JOURNAL, PACKET, RICH
from mp_pool.worker_main import Settings, work

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Worker"]

if TYPE_CHECKING:
    from mp_pool._shared_function import SharedFunction

_ROOM = PACKET - HEADER.size


class Worker:
    """One worker process. Not thread-safe: the caller holds the scheduler's lock, except in `read`."""

    def __init__(self, settings: Settings) -> None:
        self.tasks: dict[int, Task] = {}  # sent and not answered, in this order
        # Packets for which there was no room yet, each with the descriptor to send, if any.
        self.backlog: deque[tuple[memoryview, Descriptor | None]] = deque()
        self.batches = Batches()
        self.in_parts = False  # the only task of this worker comes in more than one packet, or late
        self.functions: set[int] = set()  # the numbers of those it has been sent
        self._announced: bytes | None = None  # the packet of a function that the worker may not have received
        self._handles: Handles = ()  # in it
        self._to_forget: list[int] = []
        self.ready = False
        self.window = 4  # the limit for the length of `tasks`
        self.pace: float | None = None  # seconds per task, measured by the answers
        self.recalled = False  # tasks were taken back since the last answer
        self.left = settings.max_tasks
        self.since = time.monotonic()  # the latest start of the oldest task, as far as the parent can know
        self.killed_for: int | None = None  # the number of the task that took too long
        self.told_to_end = False
        self.failure: BaseException | None = None  # the exception of its initializer
        self.results = ResultPipe()
        self.death = Descriptor()
        self._ends = WorkerEnds()  # for the worker, until it has them; a forked one keeps them

    def start(self, make: Callable[..., Any], settings: Settings, initializer: SharedFunction | None) -> None:
        """
        Start the process. If that fails or is interrupted, `abandon` ends it.
        """
        # The result of a call has an owner at once: a signal handler that raises may run after any call. The objects of
        # the standard library's module socket make others of the numbers of these.
        self._near, self._far = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        close_in_children(self._near)
        close_in_children(self._far)
        ends = self._ends
        with closing(ends):
            self.results.fd, ends.results = os.pipe()
            ends.tasks = os.dup(self._far.fileno())
            self._near.setblocking(False)
            os.set_blocking(self.results.fd, False)
            self.process = make(target=work, args=(ends, settings))
            self.process.reports_missing_guard = True
            method = getattr(self.process, "_start_method", None)
            if settings.environment:
                self.process.name = NameThatSets(self.process.name, settings.environment)
                if method == "forkserver":
                    from mp_core import fork_server

                    fork_server.start_without_libraries()
            # A Ctrl-C before the worker has installed its handler would end it with a traceback.
            # The fork server, which this may start, would pass the mask on to unrelated processes.
            # The mask is read first, and the functions are those in C: a handler that raises in the middle of one
            # of signal's own, which are written in Python, would leave the signal blocked.
            mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
            # A process that is not forked takes nothing of its parent's threads with it.
            beside_threads = method == "fork" and threading.active_count() > 1
            try:
                if method in ("fork", "spawn"):
                    _signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
                with left_alone(self.process) if beside_threads else nullcontext():
                    self.process.start()
            finally:
                _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid: int = self.process.pid
        # The sentinel of a process stays open while a child of its own lives; a pidfd does not.
        try:
            self.death.fd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            pass  # an old kernel, or a container that forbids it; or it has been reaped
        if initializer is not None:
            self._announce(initializer, getattr(self.process, "_popen", None))
            self.send_backlog()
        self.sentinel: int = self.process.sentinel if self.death.fd < 0 else self.death.fd

    def abandon(self) -> None:
        """
        End a worker whose start has failed or was interrupted: nobody else knows it.
        """
        process = getattr(self, "process", None)
        try:
            if process is not None and process.pid is not None:
                process.kill()
                process.join()
        finally:
            self._drop_announcement()
            self.close()

    def close(self) -> None:
        """
        Close all descriptors.
        """
        for each in (getattr(self, "_near", None), getattr(self, "_far", None)):
            if each is not None:
                each.close()
                keep_in_children(each)
        for descriptor in (self._ends, self.results, self.death):
            descriptor.close()

    def send(self, task: Task, alone: bool = False) -> bool:
        """
        Send *task*, which is pickled; return False if there is no room for it now. Never waits.
        """
        if (sent := self.send_packet(task, alone)) or self.tasks:
            return bool(sent)  # a long task is sent alone, as is the first of a function
        payload, function = task.payload, task.shared
        if function is not None and function.number not in self.functions:
            self._announce(function)
        self.in_parts, view = True, memoryview(payload)
        header = HEADER.pack(task.number, len(payload), task.kind | ALONE if alone else task.kind)
        self.backlog.append((memoryview(header + view[:_ROOM]), None))
        self.backlog.extend((view[at : at + PACKET], None) for at in range(_ROOM, len(payload), PACKET))
        self.send_backlog()
        task.payload, task.sent = None, payload if task.kind & RICH else None
        self.since = time.monotonic()
        self.tasks[task.number] = task
        task.at_worker = True
        if self.left is not None:
            self.left -= 1
        return True

    def send_packet(self, task: Task, alone: bool) -> bool | None:
        """
        Send *task* in one packet; return False if there is no room for it now, None if it needs more than one, or a
        function that the worker has not been sent.
        """
        payload, function = task.payload, task.shared
        if len(payload) > _ROOM or (function is not None and function.number not in self.functions):
            return None
        header = HEADER.pack(task.number, len(payload), task.kind | ALONE if alone else task.kind)
        packet = header + payload if type(payload) is bytes else header + bytes(payload)
        sent, now = payload if task.kind & RICH else None, time.monotonic()
        # No signal handler runs from here to the send: nothing is called.
        if not self.tasks:
            self.since = now
        if self.left is not None:
            self.left -= 1
        self.tasks[task.number] = task
        task.at_worker, task.payload, task.sent = True, None, sent
        try:
            self._near.send(packet)
        except OSError as error:
            del self.tasks[task.number]
            task.at_worker, task.payload, task.sent = False, payload, None
            if self.left is not None:
                self.left += 1
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM):
                raise
            return False
        return True

    def offer_journal(self) -> None:
        """
        Prepare for batches, unless that has been tried.
        """
        if self.in_parts or (fd := self.batches.make_journal()) < 0:
            return
        try:
            self._send_with(HEADER.pack(0, 0, JOURNAL), fd)
        except OSError:
            pass  # there is no room: its tasks go one by one
        finally:
            os.close(fd)

    def takes_batch(self) -> bool:
        """Tell whether a batch may be sent."""
        return self.batches.ready and len(self.batches.at_worker) < AT_ONCE

    def send_batch(self, tasks: list[Task]) -> bool | None:
        """
        Send *tasks* in one packet; return False if there is no room for it now, None if it is too long.
        """
        packet = self.batches.pack(tasks)
        if packet is None:
            return None
        try:
            self._near.send(packet)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM):
                raise
            self.batches.unsent()
            return False
        if not self.tasks:
            self.since = time.monotonic()
        for task in tasks:
            self.tasks[task.number] = task
            task.at_worker = True
        if self.left is not None:
            self.left -= len(tasks)
        return True

    def send_backlog(self) -> None:
        """
        Send as much of a long task as there is room for.
        """
        try:
            while self.backlog:
                packet, file = self.backlog[0]
                if file is None:
                    self._near.send(packet)
                else:
                    self._send_with(packet, file.fd)
                self.backlog.popleft()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM):
                raise

    def _announce(self, function: SharedFunction, starting: Any = None) -> None:
        kind, payload, self._handles = function.announcement(starting)
        self._announced = HEADER.pack(function.number, len(payload), kind) + payload
        self.backlog.append((memoryview(self._announced), function.file))
        self.functions.add(function.number)

    def forget(self, number: int) -> None:
        """
        Tell the worker that no more tasks call the function *number*.
        """
        if number in self.functions:
            self.functions.discard(number)
            self._to_forget.append(number)
            self._send_forgotten()

    def _send_forgotten(self) -> None:
        try:
            # Behind the parts of a task it would look like an unread part.
            while self._to_forget and not self.in_parts:
                self._near.send(HEADER.pack(self._to_forget[-1], 0, FORGET))
                self._to_forget.pop()
        except OSError:
            pass  # there is no room, so it is told later; or it has ended

    def writable_fd(self) -> int:
        """Return the descriptor to wait on while there is a backlog."""
        return self._near.fileno()

    def tell_to_end(self) -> None:
        """
        Ask the worker, which has no tasks, to end. Its socket is empty, so there is room.
        """
        self.told_to_end = True
        try:
            self._near.send(HEADER.pack(0, 0, 0))
        except OSError:
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """
        Send a signal to the worker, never to another process that has its pid by now.
        """
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

    def take_back(self) -> list[Task]:
        """
        Return the tasks of the oldest packet that the worker has not read, or those of its batch that it has not begun.
        """
        if self.in_parts or not self.tasks:
            return []
        back = self._unread()
        for task in back:
            del self.tasks[task.number]
        if self.left is not None:
            self.left += len(back)
        return back

    def _unread(self) -> list[Task]:
        while True:
            try:
                packet = self._far.recv(PACKET, socket.MSG_DONTWAIT)
            except OSError:
                return self.batches.recall()
            number, length, kind = HEADER.unpack_from(packet)
            if kind == FORGET:
                self._to_forget.append(number)
            elif kind == JOURNAL:
                self.batches.journal = None  # it is made again
            elif kind == BATCH:
                return self.batches.take_unread(number)
            else:
                task = self.tasks[number]
                task.payload, task.sent = packet[HEADER.size :], None
                assert len(task.payload) == length
                return [task]

    def take_all_back(self) -> list[Task]:
        """
        Read back and return every task that a dead worker has not begun; those left in `tasks` it had begun.
        """
        if not self.ready:
            self._drop_announcement()
            return []
        if self.in_parts:
            # If a part is left, the worker has not begun. The pickle is incomplete now and is made again.
            unread = bool(self.backlog) or self._has_unread()
            self._drop_announcement()
            self.backlog.clear()
            back = list(self.tasks.values()) if unread else []
            if unread:
                self.tasks.clear()
                for each in back:
                    each.drop()
            return back
        back = []
        while some := self.take_back():
            back += some
        return back

    def _drop_announcement(self) -> None:
        """
        Release the resources of the packet that announces a function, unless the worker has received it.
        """
        announced, handles = self._announced, self._handles
        self._announced, self._handles = None, ()
        if announced is not None:
            number, _, kind = HEADER.unpack_from(announced)
            self.functions.discard(number)
            release(kind, announced[HEADER.size :], handles)

    def has_function(self) -> None:
        """
        Record that the worker has received the function that it was sent last.
        """
        forget(self._handles)
        self._announced, self._handles = None, ()

    def _send_with(self, packet: bytes | memoryview, fd: int) -> None:
        self._near.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))])

    def _has_unread(self) -> bool:
        try:
            return bool(self._far.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except OSError:
            return False

    def is_ready(self) -> None:
        """
        Record that the worker has run its initializer.
        """
        self.ready = True
        self.has_function()

    def answered(self, number: int) -> Task | None:
        """
        Remove and return the task of a result.
        """
        self.in_parts = False
        if self._announced is not None:
            self.has_function()
        if self._to_forget:
            self._send_forgotten()
        task = self.tasks.pop(number, None)
        if task is not None:
            task.has_answer()
        return task

    def read(self) -> list[Frame]:
        """
        Return the results of the worker so far. It needs no lock: only one thread reads.
        """
        frames = self.results.read()
        # At the end of the pipe the worker does no more, so this finds the last results.
        return frames + self.batches.read() if self.batches.at_worker else frames

    @property
    def hung_up(self) -> bool:
        """Whether the pipe has ended."""
        return self.results.hung_up
