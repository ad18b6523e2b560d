"""Constructors of shared arrays, with NumPy's own signatures.

Each function returns an `np.ndarray` in shared memory: you can send it to other processes without a copy, and all of
them see each other's writes. Each raises `MemoryError`, with the sizes and the remedy, if less memory is available, and
`TypeError` for a dtype with Python objects.
"""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mp_core.memory.block import Block, allocate
from mp_reductions.frozen import frozen
from mp_reductions.like_constructors import (
    AnyOrder,
    Array,
    DTypeOf,
    Order,
    S,
    Shape,
    check_device,
    empty_like,
    filled,
    full_like,
    ones_like,
    typed_as,
    zeros_like,
)
from mp_reductions.named import named, unlink
from mp_reductions.sharing import array_over, checked_dims, checked_dtype, shared_like

__all__ = [
    "array",
    "empty",
    "empty_like",
    "frombuffer",
    "frozen",
    "full",
    "full_like",
    "named",
    "ones",
    "ones_like",
    "unlink",
    "zeros",
    "zeros_like",
]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def _make(shape: Shape, dtype: Any, order: Order, device: str | None, like: None, *, zeroed: bool) -> Array:
    check_device(device)
    if like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `like` must be None")
    dtype, dims = checked_dtype(np.dtype(dtype)), checked_dims(shape)
    return array_over(allocate(math.prod(dims) * dtype.itemsize, zeroed=zeroed), dims, dtype, order=order)


@overload
def empty(
    shape: Shape, dtype: DTypeOf[S], order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[S]: ...
@overload
def empty(
    shape: Shape, dtype: None = ..., order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[np.float64]: ...
@overload
def empty(  # type: ignore[overload-overlap]
    shape: Shape, dtype: type[bool], order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[np.bool_]: ...
@overload
def empty(
    shape: Shape, dtype: type[int], order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[np.int_]: ...
@overload
def empty(
    shape: Shape, dtype: type[float], order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[np.float64]: ...
@overload
def empty(
    shape: Shape, dtype: type[complex], order: Order = ..., *, device: str | None = ..., like: None = ...
) -> NDArray[np.complex128]: ...
@overload
def empty(
    shape: Shape, dtype: DTypeLike, order: Order = ..., *, device: str | None = ..., like: None = ...
) -> Array: ...
def empty(
    shape: Shape, dtype: Any = float, order: Order = "C", *, device: str | None = None, like: None = None
) -> Array:
    """
    Return a new, uninitialised shared array of the given shape and type.

    Parameters
    ----------
    shape : int or sequence of int
        The lengths of the axes; an int for a single axis.
    dtype : data type, default float64
        The type of an element; without Python objects.
    order : {"C", "F"}, default "C"
        Row by row, or column by column.
    device : {None, "cpu"}
        For the array API; no other value is possible.
    like : None
        For NumPy's signature; no other value is possible.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory. A process that receives it has the same memory, without a copy.

    Raises
    ------
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        *dtype* contains Python objects, or *like* is given.
    ValueError
        A length is negative, or *device* is another.

    See Also
    --------
    zeros : the same, filled with zeros, which use no memory until they are touched.
    numpy.empty : its private counterpart, with the same signature.

    Examples
    --------
    >>> mp.shared.empty((2, 3), np.float32).shape
    (2, 3)
    """
    return _make(shape, dtype, order, device, like, zeroed=False)


@typed_as(empty)
def zeros(
    shape: Shape, dtype: Any = float, order: Order = "C", *, device: str | None = None, like: None = None
) -> Array:
    """
    Return a new shared array of the given shape and type, filled with zeros.

    Under ``file_descriptor`` it is as lazy as `numpy.zeros`: 10 GB use no memory until they are touched. Under
    ``file_system`` the bytes are reserved at once.

    Parameters
    ----------
    shape : int or sequence of int
        The lengths of the axes; an int for a single axis.
    dtype : data type, default float64
        The type of an element; without Python objects.
    order : {"C", "F"}, default "C"
        Row by row, or column by column.
    device : {None, "cpu"}
        For the array API; no other value is possible.
    like : None
        For NumPy's signature; no other value is possible.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory. Put it on a queue, or pass it to a process: the receiver has the same memory, no byte is
        copied, and each side sees the other's writes. The memory is freed when the last process has dropped it.

    Raises
    ------
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        *dtype* contains Python objects, or *like* is given.
    ValueError
        A length is negative, or *device* is another.

    See Also
    --------
    share_memory : a shared copy of an existing array.
    shared_allocator : arrays that NumPy itself makes, in shared memory.
    numpy.zeros : its private counterpart, with the same signature.

    Examples
    --------
    >>> a = mp.shared.zeros((2, 3), int)
    >>> mp.is_shared(a)
    True

    This process sees the writes of another:

    >>> process = mp.Process(target=np.copyto, args=(a, 7))
    >>> process.start()
    >>> process.join()
    >>> a.tolist()
    [[7, 7, 7], [7, 7, 7]]
    """
    return _make(shape, dtype, order, device, like, zeroed=True)


@typed_as(empty)
def ones(
    shape: Shape,
    dtype: Any = None,
    order: Order = "C",
    *,
    device: str | None = None,
    like: None = None,
) -> Array:
    """
    Return a new shared array of the given shape and type, filled with ones.

    Parameters
    ----------
    shape : int or sequence of int
        The lengths of the axes; an int for a single axis.
    dtype : data type, default float64
        The type of an element; without Python objects.
    order, device, like
        As for `zeros`.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `zeros`.

    Examples
    --------
    >>> mp.shared.ones(3, int).tolist()
    [1, 1, 1]
    """
    return filled(_make(shape, dtype, order, device, like, zeroed=False), 1)


@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeOf[S],
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[S]: ...
@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: type[bool],
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[np.bool_]: ...
@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: type[int],
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[np.int_]: ...
@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: type[float],
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[np.float64]: ...
@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: type[complex],
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[np.complex128]: ...
@overload
def full(
    shape: Shape,
    fill_value: S,
    dtype: None = ...,
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> NDArray[S]: ...
@overload
def full(
    shape: Shape,
    fill_value: Any,
    dtype: DTypeLike = ...,
    order: Order = ...,
    *,
    device: str | None = ...,
    like: None = ...,
) -> Array: ...
def full(
    shape: Shape,
    fill_value: Any,
    dtype: Any = None,
    order: Order = "C",
    *,
    device: str | None = None,
    like: None = None,
) -> Array:
    """
    Return a new shared array of the given shape, filled with one value.

    Parameters
    ----------
    shape : int or sequence of int
        The lengths of the axes; an int for a single axis.
    fill_value : scalar or array_like
        The value of every element; it is broadcast to *shape*.
    dtype : data type, default that of *fill_value*
        The type of an element; without Python objects.
    order, device, like
        As for `zeros`.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory.

    Raises
    ------
    MemoryError, TypeError, ValueError
        As for `zeros`.

    Examples
    --------
    >>> mp.shared.full(3, 7).tolist()
    [7, 7, 7]
    """
    chosen = np.asarray(fill_value).dtype if dtype is None else dtype
    return filled(_make(shape, chosen, order, device, like, zeroed=False), fill_value)


@overload
def array(
    object: Any,
    dtype: DTypeOf[S],
    *,
    copy: bool = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    ndmin: int = ...,
    like: None = ...,
) -> NDArray[S]: ...
@overload
def array(
    object: NDArray[S],
    dtype: None = ...,
    *,
    copy: bool = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    ndmin: int = ...,
    like: None = ...,
) -> NDArray[S]: ...
@overload
def array(
    object: Any,
    dtype: DTypeLike = ...,
    *,
    copy: bool = ...,
    order: AnyOrder = ...,
    subok: bool = ...,
    ndmin: int = ...,
    like: None = ...,
) -> Array: ...
def array(
    object: Any,
    dtype: Any = None,
    *,
    copy: bool = True,
    order: AnyOrder = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: None = None,
) -> Array:
    """
    Return a new shared array with the values of *object*: always a copy, and never a subclass.

    Parameters
    ----------
    object : array_like
        The values.
    dtype : data type, default that of *object*
        The type of an element; without Python objects.
    copy : True
        Always a copy; `share_memory` copies only if it has to.
    order : {"K", "A", "C", "F"}, default "K"
        The memory order of the copy; "K" is that of *object*.
    subok : False
        For NumPy's signature; no other value is possible.
    ndmin : int, default 0
        The least number of axes; axes of length 1 are inserted in front.
    like : None
        For NumPy's signature; no other value is possible.

    Returns
    -------
    numpy.ndarray
        In shared memory, of *object*'s shape.

    Raises
    ------
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        The result would contain Python objects, or *subok* or *like* is given.
    ValueError
        *copy* is False.

    Examples
    --------
    >>> mp.shared.array([1, 2, 3]).tolist()
    [1, 2, 3]
    """
    if not copy:
        raise ValueError("shared.array always makes a copy; mp_reductions.share_memory copies only if it has to")
    if subok or like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `subok` must be False and `like` None")
    source = np.array(object, dtype, copy=None if _NUMPY2 else False, order=order, ndmin=ndmin)
    result = shared_like(source)
    result[...] = source
    return result


@overload
def frombuffer(
    buffer: Any, dtype: DTypeOf[S], count: int = ..., offset: int = ..., *, like: None = ...
) -> NDArray[S]: ...
@overload
def frombuffer(
    buffer: Any, dtype: type[float] = ..., count: int = ..., offset: int = ..., *, like: None = ...
) -> NDArray[np.float64]: ...
@overload
def frombuffer(buffer: Any, dtype: DTypeLike, count: int = ..., offset: int = ..., *, like: None = ...) -> Array: ...
def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0, *, like: None = None) -> Array:
    """
    Return a one-dimensional shared array of the items of a buffer.

    Parameters
    ----------
    buffer : Block or buffer
        A `Block` is viewed in place. Any other buffer is private, so its items are copied into shared memory.
    dtype : data type, default float64
        The type of an item.
    count : int, default -1
        The number of items; -1 is all of them.
    offset : int, default 0
        The place of the first item, in bytes.
    like : None
        For NumPy's signature; no other value is possible.

    Returns
    -------
    numpy.ndarray of shape (count,)
        In shared memory.

    Raises
    ------
    MemoryError
        Less memory is available than the copy needs.
    TypeError
        *dtype* contains Python objects, or *like* is given.
    ValueError
        The buffer is too small, or not a whole number of items.

    Examples
    --------
    >>> block = mp.Block(16)
    >>> mp.shared.frombuffer(block)[:] = 1.0
    >>> mp.shared.frombuffer(block).tolist()
    [1.0, 1.0]
    """
    if like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `like` must be None")
    dtype = np.dtype(dtype)
    checked_dtype(dtype)
    view: Array = np.frombuffer(buffer, dtype, count, offset)
    if isinstance(buffer, Block):
        return array_over(buffer, view.shape, dtype, offset)
    return array(view)


_NUMPY2 = int(np.__version__.split(".")[0]) >= 2
