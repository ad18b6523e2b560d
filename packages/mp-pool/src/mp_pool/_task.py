"""A task: a call that one worker makes, and where its outcome goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mp_pool import _wire

__all__ = ["Outcome", "Sink", "Task", "name_of"]

#: (True, the result) or (False, the exception)
Outcome = tuple[bool, Any]


class Sink(Protocol):
    """Takes the outcomes of the tasks of one call."""

    def _set(self, i: int, obj: Outcome, /) -> None: ...


class Task:
    """A call, and its place in the pool."""

    __slots__ = (
        "args",
        "feeder",
        "function",
        "index",
        "kind",
        "kwds",
        "number",
        "payload",
        "position",
        "retries",
        "sink",
    )

    def __init__(
        self,
        sink: Sink,
        index: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwds: dict[str, Any] | None = None,
        position: int | None = None,
        retries: int = 0,
    ) -> None:
        self.sink = sink
        self.index = index
        self.function = function
        self.args = args
        self.kwds = kwds
        #: For errors: what the user would call the task's place in the iterable.
        self.position = index if position is None else position
        self.retries = retries
        self.number = 0
        self.kind = 0
        #: The pickle, from when it is made until it is sent; a task that is taken back from a worker has it again.
        self.payload: Any = None
        #: Who waits for room in the queue.
        self.feeder: Any = None

    def begin(self) -> bool:
        """
        Called once before the task is first sent; False when nobody wants it any more.
        """
        if self.feeder is not None:
            self.feeder.room.release()
            self.feeder = None
        return True

    def pickle(self) -> None:
        """
        Make the payload. Whatever pickling raises is raised.
        """
        if self.payload is None:
            self.kind, self.payload = _wire.dump(self.function, self.args, self.kwds)

    def drop(self) -> None:
        """
        Give back what the payload holds.
        """
        payload, self.payload = self.payload, None
        if payload is not None:
            _wire.drop(self.kind, payload)


def name_of(task: Task) -> str:
    """
    The name of the function that the user has given.
    """
    function: Any = task.function
    if _wire.is_mapper(function):
        function = task.args[0][0]  # which it calls for each item of a chunk
    while hasattr(function, "func"):
        function = function.func  # functools.partial
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
