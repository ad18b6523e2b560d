"""`Task`: a call for one worker, and the sink for its outcome."""

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
    """A call, and its state in the pool."""

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
        #: The position in the user's iterable, for errors.
        self.position = index if position is None else position
        self.retries = retries
        self.number = 0
        self.kind = 0
        #: The pickle, until it is sent; a task that is taken back from a worker has it again.
        self.payload: Any = None
        #: The thread that waits for room in the queue.
        self.feeder: Any = None

    def begin(self) -> bool:
        """
        Prepare to send the task for the first time; return False if it was cancelled.
        """
        if self.feeder is not None:
            self.feeder.room.release()
            self.feeder = None
        return True

    def pickle(self) -> None:
        """
        Make the payload; raise any exception of pickling.
        """
        if self.payload is None:
            self.kind, self.payload = _wire.dump(self.function, self.args, self.kwds)

    def drop(self) -> None:
        """
        Release the resources of the payload.
        """
        payload, self.payload = self.payload, None
        if payload is not None:
            _wire.drop(self.kind, payload)


def name_of(task: Task) -> str:
    """
    Return the name of the user's function.
    """
    function: Any = task.function
    if _wire.is_mapper(function):
        function = task.args[0][0]  # which it calls for each item of a chunk
    while hasattr(function, "func"):
        function = function.func  # functools.partial
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
