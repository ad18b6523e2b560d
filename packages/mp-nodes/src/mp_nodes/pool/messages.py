"""The messages between the driver and the ranks of a pool over nodes; each is pickled by itself."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple


class Packed:
    """A pickle made by value, and its large buffers, which a worker maps where a pickle inside would be copied."""

    def __init__(self, data: bytes, buffers: Sequence[Any]) -> None:
        self.data = data
        self.buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.data, [pickle.PickleBuffer(buffer) for buffer in self.buffers])

    def load(self) -> Any:
        return pickle.loads(self.data, buffers=self.buffers)


# ---- from the driver to a node ---------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """The first message: the pool that the node is to have."""

    processes: int
    #: (initializer, initargs), or None.
    initializer: Packed | None
    maxtasksperchild: int | None
    timeout: float | None
    max_memory_per_child: int | None
    environment: dict[str, str] | None


class Function(NamedTuple):
    """A function that several tasks call."""

    number: int
    function: Packed


class Buffer(NamedTuple):
    """The content of a large buffer, writable where the sender's is: see Note [Arrays that several tasks have]."""

    number: int
    content: Any


class Forget(NamedTuple):
    """No more tasks have this function or buffer."""

    number: int


class Call(NamedTuple):
    """A task: its number, that of its function or 0, its pickle, and the numbers of the buffers beside that."""

    number: int
    function: int
    data: bytes
    buffers: tuple[int, ...]


class Tasks(NamedTuple):
    """Tasks that are to run."""

    tasks: list[Call]


class GiveBack(NamedTuple):
    """Give back so many tasks, if as many have not begun."""

    tasks: int


class Close(NamedTuple):
    """There will be no more tasks, and all have been answered."""


# ---- from a node to the driver ---------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """The node's pool has been started."""


class Outcome(NamedTuple):
    """The end of a task. For "returned" and "raised" *detail* is a pickle, else what the exception is made of."""

    number: int
    kind: str
    detail: Any


class Done(NamedTuple):
    """Tasks have ended, so many seconds after the last ones or after the node got its first; None if not measured."""

    outcomes: list[Outcome]
    seconds: float | None


class GivenBack(NamedTuple):
    """The numbers of tasks that this node has not begun, and no longer has."""

    numbers: list[int]


class Broken(NamedTuple):
    """The node's pool has ended by itself, because of its initializer: the pickled exception."""

    error: bytes
