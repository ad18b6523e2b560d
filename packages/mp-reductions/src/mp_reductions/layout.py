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

__all__ = ["span"]


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
