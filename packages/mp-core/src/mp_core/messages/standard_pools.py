"""Tasks of the standard library's pools whose message cannot be received: the message becomes the failure of its task.

mp_pool needs nothing of this: it expects a message to fail, and does the same itself.

Note [Pools and errors]
-----------------------
Neither `multiprocessing.pool` nor `concurrent.futures.process` expects receiving a message to fail. The pool's thread
ends, and every waiter waits for ever; its worker ends, and the task gets no result; the executor declares itself
broken. But each message contains its task's number. So this module reads the message once more and keeps only numbers,
texts and containers: each other object becomes a `Blank`, no class is looked up, nothing is received. That is enough
to hand the error to the waiter of that task:

    pool, result    (job, i, (True, result))         -->  (job, i, (False, error))
    pool, task      (job, i, function, args, kwds)   -->  (job, i, raise it, (error,), {})
    executor        _ResultItem, _CallItem           -->  the same with `exception`, or with a function that raises

This runs only for messages that failed, and only for these receivers, which it recognises by the frames that wait.
"""

from __future__ import annotations

import io
import itertools
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# The modules between the receiver and the pool's own code: Connection.recv, SimpleQueue.get, Queue.get.
_CHANNELS = {
    "mp_core.channels.channel_queues",
    "mp_core.messages.failed_messages",
    "mp_core.messages.standard_pools",
    "mp_core.sharing.portable.messages",
    "multiprocessing.connection",
    "multiprocessing.queues",
}


def failing(message: Any, error: Exception) -> Any:
    """Return a message that reports *error* to a pool in place of *message*; None if the receiver is no pool."""
    receiver = _receiver()
    if receiver not in ("multiprocessing.pool", "concurrent.futures.process"):
        return None
    try:
        outline = Outline(io.BytesIO(message)).load()
    except Exception:
        return None  # the task is unknown
    return _of_pool(outline, error) if receiver == "multiprocessing.pool" else _of_executor(outline, error)


def _receiver() -> str:
    """Return the module that called the channel in this thread."""
    frame: Any = sys._getframe(1)
    while frame is not None and (name := frame.f_globals.get("__name__", "")) in _CHANNELS:
        frame = frame.f_back
    return "" if frame is None else name


def _of_pool(outline: Any, error: Exception) -> Any:
    match outline:
        case (int(job), int() | None as i, (bool(), _)):
            return job, i, (False, error)
        case (int(job), int() | None as i, _, _, _):
            return job, i, _raise, (error,), {}
    return None


def _of_executor(outline: Any, error: Exception) -> Any:
    kind = type(outline).__name__
    if kind == "_ResultItem":
        outline.exception, outline.result = error, None
        return outline
    if kind == "_CallItem":
        outline.fn, outline.args, outline.kwargs = _raise, (error,), {}
        return outline
    return None


def _raise(error: Exception) -> NoReturn:
    try:
        raise error
    finally:
        del error  # see Note [Exceptions in frames] in failed_messages.py


class Blank:
    """Stand for any class, function or object of a message, and do nothing."""

    def __new__(cls, *args: Any, **options: Any) -> Blank:
        return super().__new__(cls)

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Blank:
        return Blank()

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    add = append
    extend = append


def outline(stream: bytes, places: list[tuple[int, int, bytes]]) -> bytes:
    """Return the pickle of the *stream* of a divided pickle with empty pieces (`native/messages/pickle_writer.c`)."""
    data = bytearray(stream)
    for position, width, _ in places:
        data[position - width : position] = bytes(width)
    return bytes(data)


class Outline(pickle.Unpickler):
    """Unpickle numbers, texts, containers and the items of executors; everything else becomes a `Blank`."""

    def __init__(self, file: Any) -> None:
        # The message carries its buffers out of band; empty ones replace them here.
        super().__init__(file, buffers=itertools.repeat(bytearray()))

    def find_class(self, module: str, name: str) -> Any:
        if module == "concurrent.futures.process" and name in ("_ResultItem", "_CallItem"):
            return getattr(sys.modules[module], name)
        if (module, name) in (("mp_core.messages.pickling", "load_with"), ("mp_core._block", "load_out_of_band")):
            return lambda data, others: self.part(data)  # others are blanks in it
        if (module, name) == ("mp_core.messages.pickling", "load_divided"):
            return lambda stream, pieces, places: self.part(outline(stream, pieces))
        return Blank

    def part(self, data: bytes) -> Any:
        """Return the outline of a pickle in the message."""
        return Outline(io.BytesIO(data)).load()

    def persistent_load(self, name: Any) -> Blank:
        return Blank()
