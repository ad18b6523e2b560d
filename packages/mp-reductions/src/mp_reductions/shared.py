"""Arrays made in shared memory, with NumPy's own signatures.

Each function returns a plain `np.ndarray` that lives in shared memory: it can be sent to other processes without a
copy, and all of them see each other's writes. Each raises `MemoryError`, with the sizes and the remedy, when there is
no room, and `TypeError` for a dtype that holds Python objects.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from mp_core.block import Block, allocate
from mp_reductions.sharing import array_over, shared_like

__all__ = [
    "array",
    "empty",
    "empty_like",
    "frombuffer",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

Shape = SupportsIndex | Sequence[SupportsIndex]
Array = np.ndarray[Any, Any]


def _make(shape: Shape, dtype: Any, order: Literal["C", "F"], device: str | None, like: None, *, zeroed: bool) -> Array:
    if device not in (None, "cpu"):
        raise ValueError(f"shared arrays live on the device 'cpu', not {device!r}")
    if like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `like` must be None")
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"an array of dtype {dtype} holds references to Python objects, which cannot be shared")
    dims = (operator.index(shape),) if isinstance(shape, SupportsIndex) else tuple(map(operator.index, shape))
    if any(n < 0 for n in dims):
        raise ValueError(f"negative dimensions are not allowed: {dims}")
    if dtype.itemsize == 0 and dtype.kind in "US":
        dtype = np.dtype(f"{dtype.kind}1")  # as np.empty(3, "U") does
    return array_over(allocate(math.prod(dims) * dtype.itemsize, zeroed=zeroed), dims, dtype, order=order)


def empty(
    shape: Shape, dtype: Any = float, order: Literal["C", "F"] = "C", *, device: str | None = None, like: None = None
) -> Array:
    """
    A new shared array of *shape* and *dtype*, without setting its entries; see `np.empty`.

    >>> empty((2, 3), np.float32).shape
    (2, 3)
    """
    return _make(shape, dtype, order, device, like, zeroed=False)


def zeros(
    shape: Shape, dtype: Any = float, order: Literal["C", "F"] = "C", *, device: str | None = None, like: None = None
) -> Array:
    """
    A new shared array of *shape* and *dtype*, filled with zeros; see `np.zeros`.

    >>> zeros(3, int).tolist()
    [0, 0, 0]
    """
    return _make(shape, dtype, order, device, like, zeroed=True)


def ones(
    shape: Shape,
    dtype: Any = None,
    order: Literal["C", "F"] = "C",
    *,
    device: str | None = None,
    like: None = None,
) -> Array:
    """
    A new shared array of *shape* and *dtype* (float64 by default), filled with ones; see `np.ones`.

    >>> ones(3, int).tolist()
    [1, 1, 1]
    """
    return _filled(_make(shape, dtype, order, device, like, zeroed=False), 1)


def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    order: Literal["C", "F"] = "C",
    *,
    device: str | None = None,
    like: None = None,
) -> Array:
    """
    A new shared array of *shape*, filled with *fill_value*, whose dtype is the default; see `np.full`.

    >>> full(3, 7).tolist()
    [7, 7, 7]
    """
    chosen = np.asarray(fill_value).dtype if dtype is None else dtype
    return _filled(_make(shape, chosen, order, device, like, zeroed=False), fill_value)


def array(
    object: Any,
    dtype: Any = None,
    *,
    copy: bool = True,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: None = None,
) -> Array:
    """
    A new shared array with the values of *object*; see `np.array`. It is always a copy, and never a subclass.

    >>> array([1, 2, 3]).tolist()
    [1, 2, 3]
    """
    if not copy:
        raise ValueError("shared.array always makes a copy; mp_reductions.share_memory copies only when it has to")
    if subok or like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `subok` must be False and `like` None")
    source = np.array(object, dtype, copy=None if _NUMPY2 else False, order=order, ndmin=ndmin)
    result = shared_like(source)
    result[...] = source
    return result


def empty_like(
    prototype: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of *prototype*'s shape, dtype and memory order; see `np.empty_like`. Never a subclass.

    >>> empty_like(np.ones((2, 3), order="F")).flags.f_contiguous
    True
    """
    if device not in (None, "cpu"):
        raise ValueError(f"shared arrays live on the device 'cpu', not {device!r}")
    return shared_like(np.empty_like(prototype, dtype, order, False, shape))


def zeros_like(
    a: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of zeros with *a*'s shape, dtype and memory order; see `np.zeros_like`. Never a subclass.

    >>> zeros_like(np.ones(2)).tolist()
    [0.0, 0.0]
    """
    return _filled(empty_like(a, dtype, order, subok, shape, device=device), 0)


def ones_like(
    a: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array of ones with *a*'s shape, dtype and memory order; see `np.ones_like`. Never a subclass.

    >>> ones_like(np.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return _filled(empty_like(a, dtype, order, subok, shape, device=device), 1)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Literal["K", "A", "C", "F"] = "K",
    subok: bool = True,
    shape: Shape | None = None,
    *,
    device: str | None = None,
) -> Array:
    """
    A new shared array full of *fill_value* with *a*'s shape, dtype and memory order; see `np.full_like`.

    >>> full_like(np.zeros(2, int), 7).tolist()
    [7, 7]
    """
    return _filled(empty_like(a, dtype, order, subok, shape, device=device), fill_value)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0, *, like: None = None) -> Array:
    """
    A one-dimensional shared array of the items of *buffer*; see `np.frombuffer`.

    A `Block` is viewed where it is. Any other buffer is private, so its items are copied into shared memory.

    >>> block = Block(16)
    >>> frombuffer(block)[:] = 1.0
    >>> frombuffer(block).tolist()
    [1.0, 1.0]
    """
    if like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `like` must be None")
    dtype = np.dtype(dtype)
    view: Array = np.frombuffer(buffer, dtype, count, offset)
    if isinstance(buffer, Block):
        return array_over(buffer, view.shape, dtype, offset)
    return array(view)


def _filled(a: Array, value: Any) -> Array:
    np.copyto(a, value, casting="unsafe")
    return a


_NUMPY2 = int(np.__version__.split(".")[0]) >= 2
