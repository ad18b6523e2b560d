"""In a worker: functions that many tasks call, each received once. A task refers to one by its number.

Each task unpickles its own function, as in the standard pool: what a task changes in it, in an object or in an array,
no other task sees. Large buffers are in a memory file, which each task maps privately: nothing is copied but the pages
that a task writes to.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FunctionReference", "Spans", "forget", "hold", "own_object", "referred"]

#: The offset of each buffer in the memory file, its size in bytes, and whether it is read-only.
Spans = Sequence[tuple[int, int, bool]]


class FunctionReference:
    """Stand in a task's pickle for the function with this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return referred, (self.number,)


class _Held:
    __slots__ = ("data", "error", "file", "own", "spans")

    def __init__(
        self, data: bytes | None, spans: Spans, file: int, own: list[Any], error: Exception | None = None
    ) -> None:
        self.data = data  # the pickle; None if it is the first span
        self.spans = spans
        self.file = file  # -1 if there is none
        self.own = own  # the objects that this worker was sent for itself
        self.error = error


_held: dict[int, _Held] = {}


def hold(number: int, payload: Any, file: int) -> None:
    """
    Keep the function *number*; an error of receiving it becomes the error of each task that refers to it.
    """
    try:
        data, spans, own = ForkingPickler.loads(payload)
        if spans and file < 0:
            raise OSError("the descriptor of a function's memory was not received: too many are open (ulimit -n)")
    except Exception as error:
        _held[number] = _Held(None, (), file, [], error)
    else:
        _held[number] = _Held(data, spans, file, own)


def forget(number: int) -> None:
    """
    Release the function *number*: no more tasks refer to it.
    """
    held = _held.pop(number, None)
    if held is not None and held.file >= 0:
        os.close(held.file)


def referred(number: int) -> Callable[..., Any]:
    """
    Unpickle the function *number*, for one task.
    """
    held = _held[number]
    if held.error is not None:
        raise held.error
    data: Any = held.data
    buffers: list[memoryview] = []
    if held.spans:
        import mmap  # few workers have a memory file

        # Each array that is made of it keeps the mapping open.
        memory = memoryview(mmap.mmap(held.file, 0, access=mmap.ACCESS_COPY))
        views = [(memory[start : start + size], readonly) for start, size, readonly in held.spans]
        buffers = [view.toreadonly() if readonly else view for view, readonly in views]
        if data is None:
            data = buffers.pop(0)
    if not held.own:
        function: Callable[..., Any] = pickle.loads(data, buffers=buffers)
        return function
    global _own
    _own = held.own
    try:
        function = pickle.loads(data, buffers=buffers)
    finally:
        _own = []
    return function


_own: list[Any] = []


def own_object(index: int) -> Any:
    """
    Stand in a function's pickle for the object *index* that each worker is sent for itself: a block of shared memory.
    """
    return _own[index]
