"""The base class of peers: it sends a message to another process and receives its answer.

A peer is a file in this folder. Most peers differ from the standard library in the packing of a message and
use its two `SimpleQueue`s; a peer with a channel of its own overrides `connect`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import numpy as np

STOP_WITHIN_S = 15

Ask = Callable[[Any], Any]
"""A function that sends a message to another process, and returns its answer: the sum of first and last element."""


class Starter(Protocol):
    """The start of processes, as a peer needs it: they end with the process that has started them."""

    context: SpawnContext

    def start(self, target: Callable[..., None], *args: Any) -> BaseProcess:
        """Start a process."""


class Courier:
    """The receiving side of a peer: picklable, so that the child process can receive it."""

    def touch(self, packed: Any) -> float:
        """Read the first and the last element of the received message."""
        if isinstance(packed, (int, float)):
            return float(packed)
        if isinstance(packed, dict):
            return self.touch(packed["image"])
        if hasattr(packed, "__arrow_c_stream__"):
            column = packed["x"]
            return float(str(column[0])) + float(str(column[-1]))
        if isinstance(packed, list):
            return float(packed[0][0]) + float(packed[-1][-1])
        return float(packed[0]) + float(packed[-1])


class Peer:
    """
    Two `SimpleQueue`s of `module`, one for each direction.
    """

    name: str
    """The heading in the tables."""
    module = "multiprocessing"
    """The module used as multiprocessing."""
    needs = ""
    """Another module that must be importable."""
    distribution = ""
    """The name of the distribution, unless the peer is in the standard library."""
    option = "--peers"
    """The option of `nox -s bench` that installs the peer."""
    slow = False
    """Whether it is slow with large arrays, and gets fewer of them."""

    _echo: BaseProcess | None = None

    @classmethod
    def how(cls) -> str:
        """Return how the peer is used: the first paragraph of its class."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())

    def open(self) -> None:
        """Import the modules; raise `ImportError` if one is not installed."""
        self.mp = importlib.import_module(self.module)
        if self.needs:
            self.api = importlib.import_module(self.needs)

    def version(self) -> str:
        """Return the version; empty in the standard library."""
        return importlib.metadata.version(self.distribution) if self.distribution else ""

    def fresh(self, nbytes: int) -> Any:
        """Return a message that was never sent before."""
        return np.ones(nbytes, np.uint8)

    def shared(self, nbytes: int) -> Any:
        """Return a message in shared memory, if the peer has that; otherwise a fresh one."""
        return self.fresh(nbytes)

    def pack(self, message: Any) -> Any:
        """Return the object to put on the queue for *message*."""
        return message

    def courier(self) -> Courier:
        """Return the object that unpacks in the receiving process."""
        return Courier()

    def queue(self, starter: Starter, nbytes: int, places: int = 8) -> Any:
        """Return a queue with room for that many messages of *nbytes*."""
        return starter.context.Queue(places)

    def place(self, cores: set[int]) -> None:
        """Move the process that answers to these cores; `connect` has put it on all but the first."""
        assert self._echo is not None and self._echo.pid is not None
        os.sched_setaffinity(self._echo.pid, cores)

    def connect(self, starter: Starter) -> Ask:
        """Start the other process, wait until it is ready, and return the function that asks it."""
        return self.talk(starter, starter.context.SimpleQueue(), starter.context.SimpleQueue())

    def talk(self, starter: Starter, to: Any, back: Any) -> Ask:
        """Do the work of `connect` over two given queues."""
        self._to, self._back = to, back
        self._echo = starter.start(echo, to, back, self.courier())
        back.get()  # the process is ready, its imports are done
        put, get, pack = to.put, back.get, self.pack

        def ask(message: Any) -> Any:
            put(pack(message))
            return get()

        return ask

    @classmethod
    def clean_up(cls, pid: int) -> None:
        """Remove the files of the killed driver *pid*."""

    def close(self) -> None:
        """End the other process."""
        if self._echo is not None:
            self._to.put(None)
            self._echo.join(STOP_WITHIN_S)
            if self._echo.exitcode is None:
                self._echo.kill()
                self._echo.join()
            self._to.close()
            self._back.close()
            self._echo = None


def echo(inbox: Any, outbox: Any, courier: Courier) -> None:
    """Answer every message until `None`; this is the main function of the other process."""
    stand_apart()
    outbox.put(0.0)
    while True:
        message = inbox.get()
        if message is None:
            break
        answer = courier.touch(message)
        del message
        outbox.put(answer)
    inbox.close()
    outbox.close()


def stand_apart() -> None:
    """Keep this process off the core of the sender, which is the first (`Stage.apart`)."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[1:]) or set(cores))
