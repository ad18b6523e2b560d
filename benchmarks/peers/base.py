"""What a peer is: how a message reaches another process and its answer comes back, and what a message is to it.

A peer is a file in this folder. Most of them differ from the standard library in how they pack a message and
keep its two `SimpleQueue`s; those that have a channel of their own override `connect`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.driver import Stage

STOP_WITHIN_S = 15

Ask = Callable[[Any], Any]
"""Sends a message to another process, and returns its answer: the sum of the first and the last element."""


class Courier:
    """The receiving side of a peer: picklable, so that the child process can have it."""

    def touch(self, packed: Any) -> float:
        """Read the first and the last element of what was received."""
        if isinstance(packed, (int, float)):
            return float(packed)
        if isinstance(packed, list):
            return float(packed[0][0]) + float(packed[-1][-1])
        return float(packed[0]) + float(packed[-1])


class Peer:
    """
    Two `SimpleQueue`s of `module`, one there and one back.
    """

    name: str
    """Its heading in the tables."""
    module = "multiprocessing"
    """What is used as multiprocessing."""
    needs = ""
    """What has to be importable beside it."""
    distribution = ""
    """The name under which it is installed, where it is not in the standard library."""
    option = "--peers"
    """The option of `nox -s bench` that installs it."""
    slow = False
    """Large arrays take it long: it is given fewer of them."""

    _echo: BaseProcess | None = None

    @classmethod
    def how(cls) -> str:
        """How it is used here: the first paragraph of its class."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())

    def open(self) -> None:
        """Import it; `ImportError` when it is not installed."""
        self.mp = importlib.import_module(self.module)
        if self.needs:
            self.api = importlib.import_module(self.needs)

    def version(self) -> str:
        """Its version; none where it is in the standard library."""
        return importlib.metadata.version(self.distribution) if self.distribution else ""

    def fresh(self, nbytes: int) -> Any:
        """A message that was never sent before."""
        return np.ones(nbytes, np.uint8)

    def shared(self, nbytes: int) -> Any:
        """A message whose memory is shared already, where there is such a thing."""
        return self.fresh(nbytes)

    def pack(self, message: Any) -> Any:
        """What is put on the queue for *message*."""
        return message

    def courier(self) -> Courier:
        """What the receiving process needs in order to unpack."""
        return Courier()

    def queue(self, stage: Stage, nbytes: int) -> Any:
        """A queue with room for eight messages of *nbytes*."""
        return stage.context.Queue(8)

    def connect(self, stage: Stage) -> Ask:
        """Start the other process, wait until it is there, and return the way to ask it."""
        return self.talk(stage, stage.context.SimpleQueue(), stage.context.SimpleQueue())

    def talk(self, stage: Stage, to: Any, back: Any) -> Ask:
        """`connect` over two queues that are there."""
        self._to, self._back = to, back
        self._echo = stage.start(echo, to, back, self.courier())
        back.get()  # it is there, its imports are done
        put, get, pack = to.put, back.get, self.pack

        def ask(message: Any) -> Any:
            put(pack(message))
            return get()

        return ask

    @classmethod
    def sweep(cls, pid: int) -> None:
        """Remove what the driver *pid* would leave behind when it is killed."""

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
    """The main function of the other process: answer every message until there is `None`."""
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
