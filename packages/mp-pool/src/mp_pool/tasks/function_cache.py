"""In a worker: functions that many tasks call, each received once. A task refers to one by its number.

Each task unpickles its own function, as in the standard pool: what a task changes in it, in an object or in an array,
no other task sees. (A definition that has nothing to change is unpickled once: `definitions.py`.) Large buffers are in
a block, whose memory each task maps privately: nothing is copied but the pages that a task writes to.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler

from mp_core.sharing import backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from mp_core.memory.mapped_buffers import Spans


class FunctionReference:
    """Stand in a task's pickle for the function with this number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return referred, (self.number,)


class _Held:
    __slots__ = ("block", "data", "error", "file", "function", "offset", "own", "set_globals", "spans")

    def __init__(
        self, data: bytes = b"", spans: Spans | tuple[()] = (), block: Any = None, own: Sequence[Any] = ()
    ) -> None:
        self.data = data  # the pickle
        self.spans = spans
        self.block = block  # with the buffers; kept while its memory is used
        self.file, self.offset = -1, 0  # the memory of the block, and where it begins there
        self.own = own  # the objects that this worker was sent for itself
        # A function that is kept, and what sets the globals that it was sent with; or one that raises the error.
        self.function: Callable[..., Any] | None = None
        self.set_globals: Callable[[], None] | None = None


_held: dict[int, _Held] = {}


def hold(number: int, payload: Any) -> None:
    """Keep the pickle of function *number*, and open its buffers; an error becomes that of each of its tasks."""
    held = _held[number] = _Held()
    try:
        held.data, held.spans, held.block, held.own, kept = ForkingPickler.loads(payload)
        if kept:
            from mp_core.messages.definitions import loads_kept

            held.function, held.set_globals = loads_kept(held.data)
        if held.block is not None:
            opened = backend.open_block(held.block)
            if isinstance(opened, int):
                raise OSError(-opened, f"the memory of a function cannot be opened: {os.strerror(-opened)}")
            held.file, held.offset = opened
    except Exception as error:
        held.function = raising(error)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises the error, each time with the stack of now and no more."""
    stack = error.__traceback__

    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise error.with_traceback(stack)

    return fail


def forget(number: int) -> None:
    """Release the function *number*: no more tasks refer to it."""
    held = _held.pop(number, None)
    if held is not None and held.file >= 0:
        os.close(held.file)


def referred(number: int) -> Callable[..., Any]:
    """Return the function *number*, for one task."""
    held = _held[number]
    if held.function is not None:
        if held.set_globals is not None:
            held.set_globals()
        return held.function
    data, buffers = held.data, []
    if held.spans:
        from mp_core.memory.mapped_buffers import map_buffers  # few workers have such memory

        buffers = map_buffers(held.file, held.spans, held.block.nbytes, held.offset)
    if not held.own:
        function: Callable[..., Any] = pickle.loads(data, buffers=buffers)
        return function
    global _own
    _own = held.own
    try:
        function = pickle.loads(data, buffers=buffers)
    finally:
        _own = ()
    return function


_own: Sequence[Any] = ()


def own_object(index: int) -> Any:
    """
    Stand in a function's pickle for the object *index* that each worker is sent for itself: a block of shared memory.
    """
    return _own[index]
