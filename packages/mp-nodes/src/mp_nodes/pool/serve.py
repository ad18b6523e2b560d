"""The rank of a node: a pool for the tasks that come from the driver."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from mp_core.block import allocate
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
from mp_pool import Pool, TaskTimeoutError, WorkerLostError
from mp_pool.task import Task

__all__ = ["serve"]


def serve(rank: int, connection: Connection) -> None:
    """
    Be the node's pool until the driver closes it. The driver's end ends this process, by its death pipe.
    """
    settings = pickle.loads(connection.recv_bytes())
    NodePool(connection, settings).run()


class NodePool:
    """A pool whose tasks and outcomes are messages."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._outgoing = Outgoing(self._is_ready)
        self._functions: dict[int, tuple[worker.Caller, Any]] = {}
        self._buffers: dict[int, TaskBuffer] = {}
        # Those of the tasks that have not ended.
        self._needed: dict[int, list[TaskBuffer]] = {}
        os.environ.update(settings.environment or {})
        with suppress(MemoryError, OSError):
            # It starts the session's manager, which removes the session's folder if this rank is killed.
            self._first_block = allocate(1, zeroed=False)
        self._pool = Pool(
            settings.processes,
            worker.begin,
            (os.getpid(), settings.initializer),
            settings.maxtasksperchild,
            get_context("spawn"),
            timeout=settings.timeout,
            max_memory_per_child=settings.max_memory_per_child,
        )
        self._scheduler = self._pool._scheduler
        # So that `_abort` is called when the pool ends by itself.
        self._scheduler.sinks[-1] = self
        self._outgoing.put(Ready())
        self._sender = threading.Thread(target=self._send, name="mp_all node pool", daemon=True)
        self._sender.start()

    def run(self) -> None:
        """Take messages until `Close`."""
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
                    break
        self._functions.clear()
        self._buffers.clear()
        self._pool.close()
        self._pool.join()
        self._outgoing.put(None)
        self._sender.join()

    def _is_ready(self) -> bool:
        return all(worker.ready for worker in list(self._scheduler.dispatcher.workers))

    def _take_back(self, count: int) -> list[int]:
        """
        Take the last tasks that no worker has out of the queue; return their numbers.
        """
        numbers: list[int] = []
        scheduler = self._scheduler
        scheduler._lock.wait()
        try:
            tasks = scheduler.dispatcher.queue
            while tasks and len(numbers) < count:
                task = tasks.pop()
                task.drop()
                self._needed.pop(task.index, None)
                numbers.append(task.index)
        finally:
            scheduler._lock.release()
        return numbers

    def _task(self, call: Call) -> Task:
        buffers = [self._buffers[number] for number in call.buffers]
        if buffers:
            self._needed[call.number] = buffers
        args = (call.data, *buffers)
        if call.function == 0:
            return Task(self, call.number, worker.run, args)
        caller, shared = self._functions[call.function]
        return Task(self, call.number, caller, args, shared=shared)

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
        """
        Send messages, until None comes.
        """
        while True:
            for message in self._outgoing.take():
                if message is None:
                    return
                self._connection.send_bytes(pickle.dumps(message, 5))
