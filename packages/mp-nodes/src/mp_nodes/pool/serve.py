"""The rank of a node: a pool for the tasks that come from the driver."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from mp_core.memory.block import allocate
from mp_nodes.pool import worker
from mp_nodes.pool.messages import (
    Broken,
    Buffer,
    Call,
    Close,
    Forget,
    Function,
    GiveBack,
    GivenBack,
    Outcome,
    Ready,
    Settings,
    Tasks,
)
from mp_nodes.pool.outgoing import Outgoing
from mp_nodes.pool.task_buffers import TaskBuffer
from mp_pool import TaskTimeoutError, WorkerLostError
from mp_pool.scheduling.scheduler import Scheduler
from mp_pool.tasks.task import Task
from mp_pool.tasks.task_options import TaskOptions
from mp_pool.workers.worker_main import Settings as WorkerSettings


def serve(rank: int, connection: Connection) -> None:
    """Run the node's pool until the driver closes it. The driver's end ends this process, by its death pipe."""
    settings = pickle.loads(connection.recv_bytes())
    NodePool(connection, settings).run()


def _new_worker(**options: Any) -> Any:
    return get_context("spawn").Process(daemon=True, **options)


class NodePool:
    """A pool whose tasks and outcomes are messages."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._functions: dict[int, tuple[worker.Caller, Any]] = {}
        self._buffers: dict[int, TaskBuffer] = {}
        # Those of the tasks that have not ended.
        self._needed: dict[int, list[TaskBuffer]] = {}
        os.environ.update(settings.environment or {})
        with suppress(MemoryError, OSError):
            # It starts the session's manager, which removes the session's folder if this rank is killed.
            self._first_block = allocate(1, zeroed=False)
        initargs = () if settings.initializer is None else (settings.initializer,)
        limits = settings.maxtasksperchild, settings.max_memory_per_child
        self._options = TaskOptions(timeout=settings.timeout)
        self._scheduler = Scheduler(
            _new_worker, settings.processes, WorkerSettings(worker.begin if initargs else None, initargs, *limits)
        )
        self._scheduler.watches = self._options.is_watched
        self._outgoing = Outgoing(self._scheduler.is_ready)
        # So that `_abort` is called when the pool ends by itself.
        self._scheduler.sinks[-1] = self
        self._scheduler.start()
        self._outgoing.put(Ready())
        self._sender = threading.Thread(target=self._send, name="mp-nodes pool", daemon=True)
        self._sender.start()

    def run(self) -> None:
        """Take messages until `Close`."""
        try:
            self._take_messages()
        except BaseException:
            self._scheduler.terminate()
            raise
        self._functions.clear()
        self._buffers.clear()
        self._scheduler.close()
        self._scheduler.join()
        self._outgoing.put(None)
        self._sender.join()

    def _take_messages(self) -> None:
        while True:
            message = pickle.loads(self._connection.recv_bytes())
            match message:
                case Tasks(tasks):
                    self._outgoing.expect(len(tasks))
                    for task in tasks:
                        self._scheduler.submit(self._task(task))
                case Function(number, function):
                    caller = worker.Caller(function)
                    self._functions[number] = caller, self._scheduler.share(caller)
                case Buffer(number, content):
                    self._buffers[number] = TaskBuffer(content)
                case Forget(number):
                    self._functions.pop(number, None)
                    self._buffers.pop(number, None)
                case GiveBack(count):
                    numbers = self._take_back(count)
                    self._outgoing.expect(-len(numbers))
                    self._outgoing.put(GivenBack(numbers))
                case Close():
                    return

    def _take_back(self, count: int) -> list[int]:
        """Take the last tasks that no worker has out of the queue; return their numbers."""
        numbers = []
        for task in self._scheduler.take_back(count):
            task.drop()
            self._needed.pop(task.index, None)
            numbers.append(task.index)
        return numbers

    def _task(self, call: Call) -> Task:
        buffers = [self._buffers[number] for number in call.buffers]
        if buffers:
            self._needed[call.number] = buffers
        args = (call.data, *buffers)
        if call.function == 0:
            return Task(self, call.number, worker.run, args, options=self._options)
        caller, shared = self._functions[call.function]
        return Task(self, call.number, caller, args, options=self._options, shared=shared)

    def _set(self, number: int, outcome: tuple[bool | None, Any]) -> None:
        """Take the outcome of a task: the sink of all tasks of the pool."""
        self._needed.pop(number, None)
        ended_well, value = outcome
        if ended_well is None:  # a module that it names is being imported; an agent's imports wait for no task
            ended_well, value = value.outcome()
        if ended_well:
            returned, data = value
            self._outgoing.end(Outcome(number, "returned" if returned else "raised", data))
        elif isinstance(value, WorkerLostError):
            self._outgoing.end(Outcome(number, "lost", (value.pid, value.exitcode, value.out_of_memory)))
        elif isinstance(value, TaskTimeoutError):
            self._outgoing.end(Outcome(number, "timeout", (value.pid, value.seconds)))
        else:
            self._outgoing.end(Outcome(number, "raised", worker.dump_error_by_value(value)))

    def _abort(self, error: BaseException) -> None:
        if self._scheduler.reason is not None:
            self._outgoing.put(Broken(worker.dump_error_by_value(error)))

    def _send(self) -> None:
        """Send messages, until None comes."""
        while True:
            for message in self._outgoing.take():
                if message is None:
                    return
                self._connection.send_bytes(pickle.dumps(message, 5))
