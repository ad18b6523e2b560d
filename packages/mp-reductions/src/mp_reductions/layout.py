"""Memory layout of arrays: which bytes belong to an array.

Note [Which bytes are an array's own]
-------------------------------------
    base    |a b c d e f g h i j k l|       12 elements
    view    base[1:11:3]                    b e h k: 4 elements over a span of 10
    view    base[5:9]                       f g h i: 4 elements over a span of 4
    view    broadcast_to(base[0], (1000,))  a: 1000 elements over a span of 1

The *span* is the memory from the first to the last byte that the array can reach. A span no longer than the array's
bytes is sent as it is, with the same strides: that covers every order, negative and zero strides, and overlapping
windows. A longer span has gaps with foreign bytes; it is squeezed. Squeezing keeps the order of the axes in memory, the
sign of each stride, and zero strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mp_core.memory.block import Block


def span(a: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the bytes that *a* reaches, as (first, end) relative to its element (0, 0, …)."""
    first, end = 0, a.itemsize
    for length, stride in zip(a.shape, a.strides, strict=True):
        if length == 0:
            return 0, 0
        if stride < 0:
            first += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return first, end


# NumPy takes any object with the buffer protocol; its type hints list a few.
_ndarray: Any = np.ndarray


def rebuild_ndarray(
    block: Block | bytearray,
    dtype: Any,
    shape: tuple[int, ...],
    offset: int,
    strides: tuple[int, ...] | None,
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """
    Rebuild an array over *block*, or over bytes of its own.

    Parts that reach beyond the block are a `ValueError` or a `TypeError`.
    """
    # A bytearray came in the message, or is a private copy, because this process cannot share the block.
    if not isinstance(block, Block | bytearray):
        raise ValueError(f"the handle of an array is damaged: a Block was expected, not {type(block).__name__}")
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError("the handle of an array is damaged: Python objects cannot be sent as bytes")
    # np.ndarray checks that shape, offset and strides stay inside the buffer.
    try:
        a: np.ndarray[Any, Any] = _ndarray(shape, dtype, block, offset, strides)
    except OverflowError as error:
        raise ValueError(f"the handle of an array is damaged: {error}") from None
    if not writeable:
        a.flags.writeable = False
    return a
