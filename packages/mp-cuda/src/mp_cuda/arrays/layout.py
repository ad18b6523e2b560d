"""Layout: which bytes an array with a shape and strides covers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod


def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """
    Return the strides in bytes of an array in C order.

    >>> row_major((2, 3), 4)
    (12, 4)
    """
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Return whether the layout is C order without gaps. The stride of an axis of length 1 is ignored."""
    if 0 in shape:
        return True
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, row_major(shape, itemsize), strict=True))


def byte_range(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """
    Return the byte range of an array, relative to its first element: (lowest, one past the highest); (0, 0) if empty.

    >>> byte_range((3,), (-8,), 8)
    (-16, 8)
    """
    low, high = 0, itemsize
    for n, stride in zip(shape, strides, strict=True):
        if n == 0:
            return 0, 0
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high


def runs(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Iterator[tuple[int, int]]:
    """
    Iterate over the contiguous pieces of an array in C order: (offset from the first element, bytes).

    >>> list(runs((2, 3), (32, 4), 4))
    [(0, 12), (32, 12)]
    """
    whole = len(shape)
    size = itemsize
    while whole and (strides[whole - 1] == size or shape[whole - 1] == 1):
        whole -= 1
        size *= shape[whole]
    if not prod(shape):
        return
    index = [0] * whole
    while True:
        yield sum(i * s for i, s in zip(index, strides, strict=False)), size
        for axis in reversed(range(whole)):
            index[axis] += 1
            if index[axis] < shape[axis]:
                break
            index[axis] = 0
        else:
            return
