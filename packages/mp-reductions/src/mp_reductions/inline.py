"""Small private arrays travel in the message itself: there a copy through the pipe costs less than a block.

The limit is where the two curves cross, measured by `benchmarks/bench_inline.py` as the round trip of a fresh
array on a `SimpleQueue`; the environment variable ``MP_INLINE_BYTES`` or `set_inline_limit` move it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_reductions.layout import pack

__all__ = [
    "PLAIN",
    "get_inline_limit",
    "rebuild_inline",
    "rebuild_plain",
    "reduce_inline",
    "set_inline_limit",
]

DEFAULT_LIMIT = 32 * 1024


def _initial() -> int:
    text = os.environ.get("MP_INLINE_BYTES", "")
    if not text:
        return DEFAULT_LIMIT
    try:
        return _validated(int(text))
    except ValueError:
        raise ValueError(f"MP_INLINE_BYTES must be a number of bytes, 0 or more, not {text!r}") from None


def _validated(nbytes: int) -> int:
    size = operator.index(nbytes)
    if size < 0:
        raise ValueError(f"the inline limit is a number of bytes, 0 or more, not {size}")
    return size


_limit = _initial()


def get_inline_limit() -> int:
    """
    Private arrays of at most this many bytes travel in the message, larger ones through shared memory.

    >>> get_inline_limit() >= 0
    True
    """
    return _limit


def set_inline_limit(nbytes: int) -> None:
    """
    Set the limit, in bytes, for this process; 0 sends every private array through shared memory.

    Raises `ValueError` for a negative number.

    >>> set_inline_limit(16 * 1024)
    >>> get_inline_limit()
    16384
    """
    global _limit
    _limit = _validated(nbytes)


def portable_dtype(dtype: np.dtype[Any]) -> Any:
    """What stands for *dtype* in a pickle: its short string where that says all, otherwise the dtype."""
    return dtype.str if dtype.isbuiltin == 1 else dtype


# Note [Plain arrays]
# -------------------
# Nearly every array that is sent is C-contiguous, aligned, writable and of one of the dtypes that are a
# single object per process, with a character of its own ('d', 'i', '?'). Such an array is *plain*: a
# character and a shape say all about it, and it takes the short way. That is what makes a message with a
# thousand small arrays cheap: the rest of the time is Python's pickle and the pipe. A dtype that only
# equals one of them (it has metadata, say, which NumPy's == does not see) is not plain.
PLAIN: dict[str, np.dtype[Any]] = {
    char: np.dtype(char)
    for char in np.typecodes["All"]
    if not np.dtype(char).hasobject and np.dtype(char).itemsize and np.dtype(char) is np.dtype(char)
}


def rebuild_plain(data: bytes, char: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A plain array from its bytes, see Note [Plain arrays]; its memory is its own."""
    try:
        return _ndarray(shape, PLAIN[char], bytearray(data))
    except KeyError:
        raise ValueError(f"the message of an array is damaged: no dtype is called {char!r}") from None
    except OverflowError as error:
        raise ValueError(f"the message of an array is damaged: {error}") from None


_ndarray = np.ndarray


def reduce_inline(a: np.ndarray[Any, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The pickle of an array that is not plain, by value, its strides and its read-only flag included."""
    packed = pack(a)
    return rebuild_inline, (
        packed.data.tobytes(),
        portable_dtype(a.dtype),
        a.shape,
        packed.offset,
        packed.strides,
        a.flags.writeable,
    )


def rebuild_inline(
    data: bytes,
    dtype: Any,
    shape: tuple[int, ...],
    offset: int,
    strides: tuple[int, ...] | None,
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """The array of a pickle made by `reduce_inline`; its memory is its own."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError("the message of an array is damaged: Python objects do not travel as bytes")
    # np.ndarray checks that shape, offset and strides stay inside the buffer.
    try:
        a: np.ndarray[Any, Any] = np.ndarray(shape, dtype, bytearray(data), offset, strides)
    except OverflowError as error:
        raise ValueError(f"the message of an array is damaged: {error}") from None
    if not writeable:
        a.flags.writeable = False
    return a
