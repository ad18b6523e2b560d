"""Carriers: every way to send objects to a child and back, each behind one method.

A property is written once and runs through all of them:

    sender                                    receiver
    carrier.call(f, a, b)  -- arguments -->   f(a, b)
                           <-- result ----

Both directions use the channel under test: a queue brings the arguments and another queue brings
the result. A carrier has one child, the same for each call, so that a task can keep what it was
given (`support.tasks.keep`) and a later call can look at it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from typing import Any

import mp_all as mp

from . import tasks
from .waiting import until

TIMEOUT = 30.0


def answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """
    A result, or the exception instead of it.
    """
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, error


def serve(receive: Callable[[], Any], send: Callable[[Any], None]) -> None:
    """
    The child's loop. It keeps nothing between two messages, so that objects that a task drops are freed.
    """
    while (message := receive()) is not None:
        reply = answer(*message)
        del message
        send(reply)
        del reply


def serve_queue(tasks: Any, results: Any) -> None:
    serve(tasks.get, results.put)


def serve_pipe(connection: Any) -> None:
    serve(connection.recv, connection.send)


def serve_arguments(connection: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(answer(function, arguments))
    del arguments
    serve_pipe(connection)


class Carrier:
    """
    One child behind one kind of channel.
    """

    process: Any = None
    # Bytes that the child had from its start: a forked child has those of its parent.
    inherited = 0

    def __init__(self, ctx: BaseContext) -> None:
        self.ctx = ctx
        self.open()

    def open(self) -> None:
        """Start the child."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run *function* in the child: the arguments travel there, the result travels back."""
        self.send((function, arguments))
        good, result = self.receive()
        if good:
            return result
        raise result

    def again(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same, in the child of the last call."""
        return self.call(function, *arguments)

    def send(self, message: Any) -> None:
        raise NotImplementedError

    def receive(self) -> Any:
        raise NotImplementedError

    def rest(self) -> None:
        """Drop the objects that tasks kept, so that nothing of one test lives into the next."""
        if not until(lambda: self.call(tasks.forget) == 0):
            raise AssertionError(f"{type(self).__name__}: the child still uses {self.call(tasks.forget)} bytes")

    def close(self) -> None:
        raise NotImplementedError

    def wait(self, reader: Any) -> None:
        """Return when there is something to read; a child that died is an error at once."""
        ready = wait([reader, self.process.sentinel], TIMEOUT)
        if reader not in ready:
            state = f"ended with {self.process.exitcode}" if ready else f"said nothing for {TIMEOUT} s"
            raise AssertionError(f"{type(self).__name__}: the child {state}")

    def end(self) -> None:
        """Wait for the child, and close its handle."""
        self.process.join(TIMEOUT)
        assert self.process.exitcode == 0, f"{type(self).__name__}: exit code {self.process.exitcode}"
        self.process.close()
        self.process = None


class QueueCarrier(Carrier):
    def open(self) -> None:
        self.tasks, self.results = self.ctx.Queue(), self.ctx.Queue()
        self.process = self.ctx.Process(target=serve_queue, args=(self.tasks, self.results))
        self.process.start()

    def send(self, message: Any) -> None:
        self.tasks.put(message)

    def receive(self) -> Any:
        self.wait(self.results._reader)
        return self.results.get(timeout=TIMEOUT)

    def close(self) -> None:
        self.tasks.put(None)
        self.end()
        for queue in (self.tasks, self.results):
            queue.close()
            queue.join_thread()


class SimpleQueueCarrier(QueueCarrier):
    def open(self) -> None:
        self.tasks, self.results = self.ctx.SimpleQueue(), self.ctx.SimpleQueue()
        self.process = self.ctx.Process(target=serve_queue, args=(self.tasks, self.results))
        self.process.start()

    def receive(self) -> Any:
        self.wait(self.results._reader)
        return self.results.get()

    def close(self) -> None:
        self.tasks.put(None)
        self.end()
        self.tasks.close()
        self.results.close()


class PipeCarrier(Carrier):
    def open(self) -> None:
        self.connection, theirs = self.ctx.Pipe()
        self.process = self.ctx.Process(target=serve_pipe, args=(theirs,))
        self.process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        self.connection.send(message)

    def receive(self) -> Any:
        self.wait(self.connection)
        return self.connection.recv()

    def close(self) -> None:
        self.connection.send(None)
        self.end()
        self.connection.close()


class ProcessCarrier(PipeCarrier):
    """
    Send the arguments as those of a new process; its result and later calls use a pipe.
    """

    def open(self) -> None:
        self.connection = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.close()
        self.connection, theirs = self.ctx.Pipe()
        self.process = self.ctx.Process(target=serve_arguments, args=(theirs, function, arguments))
        self.process.start()
        theirs.close()
        good, result = self.receive()
        if good:
            return result
        raise result

    def again(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return PipeCarrier.call(self, function, *arguments)

    def rest(self) -> None:
        self.close()

    def close(self) -> None:
        if self.connection is not None:
            super().close()
            self.connection = None


class PoolCarrier(Carrier):
    def open(self) -> None:
        self.pool = self.ctx.Pool(1)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.pool.apply_async(function, arguments).get(TIMEOUT)

    def close(self) -> None:
        self.pool.close()
        self.pool.join()


class ExecutorCarrier(Carrier):
    def open(self) -> None:
        self.executor = ProcessPoolExecutor(1, mp_context=self.ctx)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.executor.submit(function, *arguments).result(TIMEOUT)

    def close(self) -> None:
        self.executor.shutdown()


KINDS: dict[str, type[Carrier]] = {
    "queue": QueueCarrier,
    "simple_queue": SimpleQueueCarrier,
    "pipe": PipeCarrier,
    "process": ProcessCarrier,
    "pool": PoolCarrier,
    "executor": ExecutorCarrier,
}


class Fleet:
    """
    One carrier for each (kind, start method, strategy), started on first use and kept: under spawn, a
    child costs more than everything that a test then does with it.
    """

    def __init__(self) -> None:
        self.carriers: dict[tuple[str, str, str], Carrier] = {}

    def get(self, kind: str, start_method: str) -> Carrier:
        key = (kind, start_method, mp.get_sharing_strategy())
        if key not in self.carriers:
            carrier = KINDS[kind](mp.get_context(start_method))
            if not isinstance(carrier, ProcessCarrier):
                assert carrier.call(os.getpid) != os.getpid()
                carrier.inherited = carrier.call(tasks.forget)
            self.carriers[key] = carrier
        return self.carriers[key]

    def close(self) -> None:
        while self.carriers:
            self.carriers.popitem()[1].close()
