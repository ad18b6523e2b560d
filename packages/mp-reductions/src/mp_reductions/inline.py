"""Small private arrays travel in the message itself: there a copy through the pipe costs less than a block.

The limit is one for the whole message. A single array of up to 32 KiB is as fast either way, and in the message it
needs no manager. Many of them are not, because a pipe holds 64 KiB and its two ends wait for each other beyond that.
So arrays go into the message until it has 32 KiB of them, and those that come after through shared memory.
`benchmarks/bench_inline.py` measures both; the environment variable ``MP_INLINE_BYTES`` or `set_inline_limit` move
it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_reductions import _native
from mp_reductions.layout import pack

__all__ = ["get_inline_limit", "has_room", "rebuild_inline", "reduce_inline", "set_inline_limit"]

DEFAULT_LIMIT = 32 * 1024
# The protocol in which NumPy pickles an array into any pickle: that of 5 needs a pickler of 5.
AS_NUMPY = 4


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


_native.set_inline_limit(_initial())


def get_inline_limit() -> int:
    """
    How many bytes of private arrays travel in a message itself.

    What is larger, or comes after, goes through shared memory. Arrays of up to 256 bytes are too small to be counted.

    Returns
    -------
    int
        Bytes for each message, 32 KiB if not set.

    Examples
    --------
    >>> mp.get_inline_limit() >= 0
    True
    """
    return _native.get_inline_limit()


def set_inline_limit(nbytes: int) -> None:
    """
    Set how many bytes of private arrays travel in a message itself, for this process.

    ``MP_INLINE_BYTES`` in the environment sets it for a program that is left unchanged.

    Parameters
    ----------
    nbytes : int
        Bytes for each message; 0 sends every private array through shared memory.

    Raises
    ------
    ValueError
        A negative number.
    TypeError
        No integer.

    Examples
    --------
    >>> before = mp.get_inline_limit()
    >>> mp.set_inline_limit(16 * 1024)
    >>> mp.get_inline_limit()
    16384
    >>> mp.set_inline_limit(before)
    """
    _native.set_inline_limit(_validated(nbytes))


def has_room(nbytes: int) -> bool:
    """May a private array of *nbytes* bytes travel in the message of this thread? If so, it is counted."""
    return _native.has_room(nbytes)


def portable_dtype(dtype: np.dtype[Any]) -> Any:
    """What stands for *dtype* in a pickle: its short string where that says all, otherwise the dtype."""
    return dtype.str if dtype.isbuiltin == 1 else dtype


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
