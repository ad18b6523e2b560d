"""Tasks and results as bytes: a header and a pickle, without multiprocessing's reducers where nothing needs them."""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Callable
from multiprocessing.pool import MaybeEncodingError, mapstar, starmapstar  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from types import BuiltinFunctionType, FunctionType
from typing import Any

__all__ = [
    "DONE",
    "FAILED",
    "HEADER",
    "INIT_FAILED",
    "PACKET",
    "READY",
    "drop",
    "dump",
    "dump_error",
    "dump_result",
    "is_mapper",
    "load_error",
]

#: Number of the task (0 asks the worker to end), bytes of the pickle, kind of the message.
HEADER = struct.Struct("<QQB")
#: A packet of tasks is never longer. The kernel's limit is about 200 KiB; a worker reads a packet in one call.
PACKET = 100 * 1024

# Kinds of messages. PLAIN pickles were made without reducers, and hold nothing that has to be given back.
PLAIN, RICH = 0, 1
DONE, FAILED, READY, INIT_FAILED = 0, 2, 4, 6  # PLAIN or RICH is added

_PROTOCOL = max(5, pickle.DEFAULT_PROTOCOL)
# Of exactly these types every pickler makes the same.
_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None)})
_FUNCTIONS = frozenset({FunctionType, BuiltinFunctionType})


def _is_plain(thing: Any) -> bool:
    kind = type(thing)
    if kind in _ATOMS:
        return True
    if kind is tuple or kind is list:
        return _ATOMS.issuperset(map(type, thing))
    # A function goes by its name, unless a library has registered another way.
    if kind in _FUNCTIONS:
        return kind not in ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return False


def is_mapper(function: Any) -> bool:
    """
    Whether *function* calls another for each item of a chunk; its one argument is (the other, the chunk).
    """
    return function is mapstar or function is starmapstar


def dump(function: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any] | None) -> tuple[int, Any]:
    """
    Pickle a task: whether reducers were needed, and the bytes.
    """
    if not kwds and _is_plain(function):
        for thing in args[0] if is_mapper(function) else args:
            if not _is_plain(thing):
                break
        else:
            return PLAIN, pickle.dumps((function, args, None), _PROTOCOL)
    return RICH, ForkingPickler.dumps((function, args, kwds or None))


def dump_result(value: Any) -> tuple[int, Any]:
    """
    Pickle what a task returned.
    """
    if _is_plain(value):
        return PLAIN, pickle.dumps(value, _PROTOCOL)
    return RICH, ForkingPickler.dumps(value)


def drop(kind: int, data: Any) -> None:
    """
    Give back what a message holds that nobody will receive: shared memory, descriptors.
    """
    if kind & RICH:
        try:
            ForkingPickler.loads(data)
        except Exception:
            pass  # it is gone already


def _described(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}: {error}"


def dump_error(error: BaseException) -> bytes:
    """
    Pickle an exception with its traceback as text, so that it arrives even if the exception itself cannot.
    """
    text = "".join(traceback.format_exception(error))
    inner: bytes | None = None
    reason: str = ""
    try:
        inner = bytes(ForkingPickler.dumps(error))
    except Exception as why:
        reason = _described(why)
    try:
        name = _described(error)
    except Exception:
        name = type(error).__qualname__  # its text cannot be made
    return pickle.dumps((name, text, inner, reason), _PROTOCOL)


def load_error(data: Any, cause: Callable[[str], BaseException]) -> BaseException:
    """
    The exception of a worker, with its traceback there as `__cause__`, made by *cause*.

    One that cannot be unpickled is a `MaybeEncodingError` that names its type.
    """
    name, text, inner, reason = pickle.loads(data)
    error: Any = None
    if inner is not None:
        try:
            error = ForkingPickler.loads(inner)
        except Exception as why:
            reason = _described(why)
    if not isinstance(error, BaseException):
        error = UnpicklableExceptionError(name, reason)
    raised: BaseException = error
    raised.__cause__ = cause(f'\n"""\n{text}"""')
    return raised


class UnpicklableExceptionError(MaybeEncodingError):  # type: ignore[misc]
    """An exception of a worker that could not be pickled or unpickled; its type and text are in this one's text."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason, name)
        self.exc, self.value = reason, name
        self.args = (name, reason)

    def __str__(self) -> str:
        return f"{self.value} (the exception itself could not be sent: {self.exc})"
