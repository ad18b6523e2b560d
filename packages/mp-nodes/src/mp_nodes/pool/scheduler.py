"""`NodeScheduler`: the place of a pool's `Scheduler`, with nodes instead of workers."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import ProcessError
from multiprocessing.pool import MapResult, RemoteTraceback  # type: ignore[attr-defined]
from pickle import PickleBuffer
from typing import Any

from mp_core.system.waits import Gate
from mp_nodes.by_value import pack_by_value
from mp_nodes.driver.node_service import Event, NodeService
from mp_nodes.pool import messages
from mp_nodes.pool.buffers import Buffers
from mp_nodes.pool.calls import SharedFunction, is_name, pickled
from mp_nodes.pool.messages import Packed
from mp_nodes.pool.node import LONG, Node
from mp_nodes.pool.serve import serve
from mp_pool import TaskTimeoutError, WorkerLostError
from mp_pool.scheduling.green_threads import check_threads
from mp_pool.scheduling.scheduler import CLOSED, ENDED, RUNNING, TERMINATE_TEXT, TERMINATED
from mp_pool.tasks import task_messages
from mp_pool.tasks.task import (
    Task,
    TaskSource,
    abort_all,
    cancelled,
    deliver,
    is_of_many,
    name_of,
    note_task,
    report,
    take_next,
)
from mp_pool.workers.worker_main import Settings

BATCH = 1 << 20  # bytes of tasks in one message
CANCELLED_WITHIN = 1.0  # seconds


class NodeScheduler:
    """
    A queue of tasks, and the thread that takes the outcomes from the nodes.

    It has the part of `mp_pool`'s `Scheduler` that a pool uses. Only the thread changes the state of nodes and tasks;
    others queue tasks and events for it. So Ctrl-C, which interrupts the main thread anywhere, interrupts no sending.
    """

    def __init__(self, engine: Any, size: int, settings: Settings, timeout: float | None, progress: Any) -> None:
        self.state = RUNNING
        self.sinks: dict[int, Any] = {}
        self.feeders: set[Any] = set()
        self.reason: BaseException | None = None
        self._engine, self._size, self._settings, self._timeout = engine, size, settings, timeout
        self._progress = progress
        self._nodes: list[Node] = []
        self._queue: deque[Task | TaskSource] = deque()
        self._numbers = itertools.count(1)
        # Of functions and buffers.
        self._object_numbers = itertools.count(1)
        self._buffers: weakref.WeakKeyDictionary[Any, Buffers] = weakref.WeakKeyDictionary()
        self._forgotten: deque[int] = deque()
        # The numbers of tasks at nodes that were cancelled, and end if they come back.
        self._unwanted: set[int] = set()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        # Whether the queue of events has a "wake".
        self._woken = False
        self._pid = os.getpid()
        self._told_to_end = False
        self.thread = threading.Thread(target=self._run, name="mp-nodes pool", daemon=True)

    # Called by any thread.

    def start(self) -> None:
        """Place the ranks on the nodes; raise `EngineError` if there is no room."""
        check_threads()
        settings = self._settings
        initializer = None
        if settings.initializer is not None:
            initializer = Packed(*pack_by_value((settings.initializer, settings.initargs), "the initializer"))
        self._service = NodeService(self._engine, serve, (), self._size, self._events.put)
        for index, (node, size) in enumerate(zip(self._service.nodes, self._service.sizes, strict=True)):
            self._nodes.append(Node(index, str(node), size))
            own = messages.Settings(
                size, initializer, settings.max_tasks, self._timeout, settings.max_memory, settings.environment
            )
            self._nodes[-1].greeting = pickle.dumps(own, 5)
        self.thread.start()

    def receive(self, task: Task) -> None:
        """Leave the result to the scheduler's thread: none comes from another machine in a moment."""

    def check_cancel(self, running: bool) -> None:
        """Refuse to end running tasks, whose workers are on other machines."""
        if running:
            raise ValueError(
                "cancel(running=True) cannot end a task of a pool with engine=: cancel() drops the tasks that are at "
                "no node yet, terminate() ends the pool"
            )

    def is_own(self) -> bool:
        """Tell whether this process has made the pool."""
        return self._pid == os.getpid()

    def cancel(self, sink: Any, running: bool, abort: bool = True) -> None:
        """
        Drop the tasks of *sink* that are at no node yet. Then *abort* the sink, unless it is of one task and a node has
        that; wait a moment for all of it.
        """
        self.check_cancel(running)
        if not self.is_own() or self.thread.ident is None or self.state == ENDED:
            return
        if self.thread is threading.current_thread():  # in a callback
            self._cancel(sink, abort)
            return
        done = Gate()
        self._events.put((-1, "cancel", (sink, abort, done)))
        done.wait(CANCELLED_WITHIN)

    def prepare(self, task: Task) -> None:
        """Pickle a task whose arguments may change before it is sent. An error is found again, and is its outcome."""
        with suppress(Exception):
            task.payload, _ = pickled(task, False)

    def submit(self, work: Task | TaskSource, items: int = 0) -> None:
        """Queue a task, or a source of tasks, of *items*."""
        if self._pid != os.getpid():
            raise ValueError(f"this pool belongs to process {self._pid}; a forked child has to make its own")
        if self._progress is not None:
            self._progress.expect(work.items if isinstance(work, Task) else items)
        self._queue.append(work)
        self.wake()
        self.fail_if_ended()

    def fail_if_ended(self) -> None:
        """Fail the unfinished results if the pool has ended."""
        if self.state == ENDED:
            self._abort()

    def share(self, function: Callable[..., Any]) -> SharedFunction | None:
        """Return *function* for tasks that all call it, so that each node gets it once; None if it is just a name."""
        if is_name(function):
            return None
        try:
            packed = Packed(*pack_by_value(function, "the function"))
        except Exception:
            return None  # each task fails with this error
        shared = SharedFunction(next(self._object_numbers), packed)
        weakref.finalize(shared, self._forgotten.append, shared.number).atexit = False
        return shared

    def queued(self) -> int:
        """Return the number of tasks at no node, counting a source or an iterable that is being read as one."""
        return len(self._queue) + len(self.feeders)

    def unfinished(self) -> int:
        """Return the number of tasks without a result, counted in the same way."""
        return self.queued() + sum(len(node.tasks) for node in list(self._nodes))

    def processes(self) -> list[Any]:
        """Return the worker processes of this machine."""
        return []

    def close(self) -> None:
        """Accept no more tasks; end when all are done."""
        if self.state == RUNNING:
            self.state = CLOSED
        self.wake()

    def terminate(self) -> None:
        """End the nodes' ranks now."""
        if self._pid != os.getpid() or self.thread.ident is None:
            return
        if self.state != ENDED:
            self.state = TERMINATED
            self._service.terminate()
        self.join()

    def join(self) -> None:
        """Wait until all nodes have ended; from a callback, return at once."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def wake(self) -> None:
        """Have the thread look at the whole state."""
        if not self._woken:
            self._woken = True
            self._events.put((-1, "wake", None))

    # The thread.

    def _dispatch(self) -> None:
        """Send tasks until the queue is empty or the nodes have enough."""
        if self.state > CLOSED:
            return
        # Here, as the tasks that need them have been sent.
        while self._forgotten:
            self._forget(self._forgotten.popleft())
        batches: dict[Node, list[messages.Call]] = {}
        sizes: dict[Node, int] = {}
        while (node := self._emptiest()) is not None and (made := self._next()) is not None:
            task, data, buffers = made
            number = next(self._numbers)
            shared: Any = task.shared
            if shared is not None and shared.number not in node.functions:
                node.functions.add(shared.number)
                self._send(node, messages.Function(shared.number, shared.function))
            for new in node.need(buffers):
                self._send(node, messages.Buffer(new, buffers[new]))
            node.begin(number, task)
            call = messages.Call(number, shared.number if shared else 0, data, tuple(buffers))
            batches.setdefault(node, []).append(call)
            sizes[node] = sizes.get(node, 0) + len(data)
            too_many = node.too_many()
            if too_many or sizes[node] > BATCH:
                self._send(node, messages.Tasks(batches.pop(node)))
                sizes[node] = 0
            for old in too_many:
                self._send(node, messages.Forget(old))
        for node, tasks in batches.items():
            self._send(node, messages.Tasks(tasks))

    def _emptiest(self) -> Node | None:
        with_room = [node for node in self._nodes if node.room() > 0]
        return min(with_room, key=lambda node: len(node.tasks) / node.size) if with_room else None

    def _next(self) -> tuple[Task, bytes, dict[int, PickleBuffer]] | None:
        while (task := take_next(self._queue)) is not None:
            if task.number == 0:
                if not task.begin():
                    continue
                task.number = 1
            if task.payload is not None:
                return task, task.payload, {}
            try:
                # See Note [Arrays that several tasks have].
                buffers = self._buffers_of(task.sink) if isinstance(task.sink, MapResult) else None
                data, beside = pickled(task, buffers is not None)
                return task, data, buffers.numbers(beside) if buffers is not None else {}
            except Exception as error:
                self._events.put((-1, "failed", (task, error)))
        return None

    def _cancel(self, sink: Any, abort: bool) -> None:
        for _ in range(len(self._queue)):  # others append meanwhile
            work = self._queue.popleft()
            if work.sink is not sink:
                self._queue.append(work)
            elif isinstance(work, Task) and work.feeder is not None:
                work.begin()  # the feeder may wait for the room
        goes_on = False
        for number, task in (each for node in self._nodes for each in node.tasks.items()):
            if task.sink is sink:
                goes_on, task.retries = not is_of_many(task), 0
                if not goes_on:
                    self._unwanted.add(number)
        if abort and not goes_on:
            sink._abort(cancelled())

    def _buffers_of(self, call: Any) -> Buffers:
        if call not in self._buffers:
            self._buffers[call] = Buffers(functools.partial(next, self._object_numbers), self._forgotten.append)
        return self._buffers[call]

    def _send(self, node: Node, message: Any) -> None:
        self._service.send(node.index, pickle.dumps(message, 5))

    def _forget(self, number: int) -> None:
        for node in self._nodes:
            if node.forget(number):
                self._send(node, messages.Forget(number))

    def _run(self) -> None:
        try:
            more = True
            while more:
                try:
                    more = self._step(*self._events.get(timeout=self._time_to_look()))
                except queue.Empty:
                    self._balance()
        except BaseException as error:
            # A bug here must neither let the program hang nor the ranks live on.
            self.reason = error
            report(error)
            try:
                self._end()
            finally:
                self._service.terminate()
        else:
            self._end()

    def _step(self, index: int, kind: str, detail: Any) -> bool:
        """Handle an event; return False at the end of the pool."""
        if kind == "over":
            if detail is not None and self.reason is None:
                self.reason = detail
            return False
        outcomes: list[tuple[Task, tuple[bool, Any]]] = []
        if kind == "wake":
            self._woken = False
        elif kind == "started":
            node = self._nodes[index]
            self._service.send(index, node.greeting)
            node.greeted = True
            if self._told_to_end:
                self._send(node, messages.Close())
        elif kind == "lost":
            outcomes = self._lose(self._nodes[index], detail)
        elif kind == "failed":
            outcomes = [(detail[0], (False, detail[1]))]
        elif kind == "cancel":
            self._cancel(*detail[:2])
            detail[2].set()
        elif kind == "mail":
            outcomes = self._take(self._nodes[index], pickle.loads(detail))
        self._dispatch()
        self._balance()
        if outcomes and self._progress is not None:
            self._progress.done(sum(task.items for task, _ in outcomes))
        for task, outcome in outcomes:
            deliver(task.sink, task.index, outcome)
        del outcomes
        if self.reason is not None or (self.state == CLOSED and not self._told_to_end and not self.unfinished()):
            self._finish()
        return True

    def _time_to_look(self) -> float | None:
        """Return after how many seconds to look for tasks that wait; None if there are none."""
        return LONG if any(len(node.tasks) > node.size for node in self._nodes) else None

    def _balance(self) -> None:
        """Ask nodes with long tasks to give back those that wait behind them: other nodes may be idle first."""
        for node in self._nodes:
            if count := node.waiting():
                node.asked = True
                self._send(node, messages.GiveBack(count))

    def _finish(self) -> None:
        """End the nodes' ranks, at once if the pool is broken. "over" comes when they have ended."""
        if self._told_to_end:
            return
        self._told_to_end = True
        if self.reason is not None:
            self.state = TERMINATED
            threading.Thread(target=self._service.terminate, name="mp-nodes pool", daemon=True).start()
        for node in self._nodes:
            if node.greeted:  # the others are told as they start
                self._send(node, messages.Close())

    def _take(self, node: Node, message: Any) -> list[tuple[Task, tuple[bool, Any]]]:
        match message:
            case messages.Ready():
                node.ready = True
            case messages.GivenBack(numbers):
                node.asked = False
                back = {number: node.tasks.pop(number) for number in numbers}
                self._queue.extendleft(task for number, task in back.items() if number not in self._unwanted)
                self._unwanted.difference_update(numbers)
            case messages.Broken(error):
                self.reason = self.reason or task_messages.load_error(error, RemoteTraceback)
            case messages.Done(outcomes, seconds):
                ended = []
                self._unwanted.difference_update(outcome.number for outcome in outcomes)
                for outcome in outcomes:
                    task = node.tasks.pop(outcome.number)
                    if (result := self._outcome(node, task, outcome)) is not None:
                        ended.append((task, result))
                node.answered(len(outcomes), seconds)
                return ended
        return []

    def _outcome(self, node: Node, task: Task, outcome: messages.Outcome) -> tuple[bool, Any] | None:
        detail = outcome.detail
        try:
            if outcome.kind == "returned":
                return True, pickle.loads(detail)
            if outcome.kind == "raised":
                error = task_messages.load_error(detail, RemoteTraceback)
                note_task(error, task, f"node {node.name}")
                return False, error
        except Exception as error:
            return False, error
        if outcome.kind == "timeout":
            pid, seconds = detail
            return False, TaskTimeoutError(pid, seconds, name_of(task), task.position)
        pid, exitcode, out_of_memory = detail
        return self._outcome_of_lost(
            task, WorkerLostError(pid, exitcode, name_of(task), task.position, out_of_memory, node.name)
        )

    def _outcome_of_lost(self, task: Task, error: WorkerLostError) -> tuple[bool, Any] | None:
        """Return the outcome of a task whose worker is lost; None if it is repeated."""
        if task.retries > 0:
            task.retries -= 1
            self._queue.appendleft(task)
            return None
        return False, error

    def _lose(self, node: Node, reason: str) -> list[tuple[Task, tuple[bool, Any]]]:
        node.lost = True
        self._unwanted.difference_update(node.tasks)
        tasks, node.tasks = list(node.tasks.values()), {}
        if self.reason is not None or self.state == TERMINATED:
            self._queue.extend(tasks)  # they fail with the pool
            return []
        ended = []
        for task in tasks:
            error = WorkerLostError(0, None, name_of(task), task.position, False, node.name, reason)
            if (outcome := self._outcome_of_lost(task, error)) is not None:
                ended.append((task, outcome))
        if not self._told_to_end and all(each.lost for each in self._nodes):
            self.reason = WorkerLostError(0, None, "the tasks of the pool", 0, False, node.name, reason)
        return ended

    def _end(self) -> None:
        """Fail the unfinished tasks."""
        for node in self._nodes:
            self._queue.extend(node.tasks.values())
            node.tasks.clear()
        # From here on `submit` fails its task itself.
        self.state = ENDED
        self._abort()
        for feeder in list(self.feeders):
            feeder.stop()
        if self._progress is not None:
            self._progress.close()

    def _abort(self) -> None:
        error = self.reason or ProcessError(TERMINATE_TEXT)
        while self._queue:
            try:
                item = self._queue.popleft()
            except IndexError:
                break  # another thread has taken the last one
            if isinstance(item, Task):
                deliver(item.sink, item.index, (False, error))
        abort_all(self.sinks, error)
