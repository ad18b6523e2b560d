"""Memory layout of arrays: which bytes belong to an array, and how to pack them without changing its strides.

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

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Packed", "pack", "span"]


class Packed(NamedTuple):
    """An array's own bytes, and the layout of the array in them."""

    data: np.ndarray[Any, Any]
    """The bytes to send: one-dimensional and contiguous, `np.uint8`."""
    offset: int
    """The place of element (0, 0, …) in `data`."""
    strides: tuple[int, ...]


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


def pack(a: np.ndarray[Any, Any]) -> Packed:
    """Return the bytes of *a* to send: a view if they are contiguous, a copy if there are gaps."""
    if a.flags.c_contiguous:  # the common case, and arrays without elements
        return Packed(a.reshape(-1).view(np.uint8) if a.nbytes else _NOTHING, 0, a.strides)
    first, end = span(a)
    if end - first <= a.nbytes:
        return Packed(_raw(a, first, end), -first, a.strides)

    # Walk every axis upwards and zero-stride axes only once, copy in memory order, then turn the axes back.
    upward = a[tuple(slice(None, 1) if s == 0 else slice(None, None, -1 if s < 0 else 1) for s in a.strides)]
    order = sorted(range(a.ndim), key=lambda axis: upward.strides[axis], reverse=True)
    dense = np.ascontiguousarray(upward.transpose(order))
    strides, offset = [0] * a.ndim, 0
    for axis, stride in zip(order, dense.strides, strict=True):
        if a.strides[axis] == 0:
            continue
        strides[axis] = stride if a.strides[axis] > 0 else -stride
        if a.strides[axis] < 0:
            offset += (a.shape[axis] - 1) * stride
    return Packed(dense.reshape(-1).view(np.uint8), offset, tuple(strides))


_NOTHING = np.empty(0, np.uint8)


class _Bytes:
    """Raw memory for `np.asarray`: an address and the owner that keeps it alive."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, True)}
        self.owner = owner


def _raw(a: np.ndarray[Any, Any], first: int, end: int) -> np.ndarray[Any, Any]:
    return np.asarray(_Bytes(a.__array_interface__["data"][0] + first, end - first, a))
