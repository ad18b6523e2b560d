"""Arrays made in shared memory, with NumPy's own signatures.

Each function returns a plain `np.ndarray` that lives in shared memory: it can be sent to other processes without a
copy, and all of them see each other's writes. Each raises `MemoryError`, with the sizes and the remedy, when there is
no room, and `TypeError` for a dtype that holds Python objects.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal, SupportsIndex

import numpy as np

from mp_core.block import Block, allocate
from mp_reductions.likes import Array, Shape, check_device, empty_like, filled, full_like, ones_like, zeros_like
from mp_reductions.sharing import REMEDY, array_over, shared_like

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


def _make(shape: Shape, dtype: Any, order: Literal["C", "F"], device: str | None, like: None, *, zeroed: bool) -> Array:
    check_device(device)
    if like is not None:
        raise TypeError("shared arrays are plain np.ndarray: `like` must be None")
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(
            f"an array of dtype {dtype} holds references to Python objects, which cannot be shared; {REMEDY}"
        )
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
    A new shared array of the given shape and type, its entries not set.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the axes; one int for a single axis.
    dtype : data type, default float64
        What an element is; without Python objects.
    order : {"C", "F"}, default "C"
        Row by row, or column by column.
    device : {None, "cpu"}
        For the array API; nothing else is possible.
    like : None
        For NumPy's signature; nothing else is possible.

    Returns
    -------
    numpy.ndarray of shape *shape*
        In shared memory. A process to which it is sent has the same memory, without a copy.

    Raises
    ------
    MemoryError
        There is no room; the message has the sizes and what to do.
    TypeError
        *dtype* holds Python objects, or *like* is given.
    ValueError
        A negative length, or another device.

    See Also
    --------
    zeros : the same, filled with zeros, which costs nothing until it is touched.
    numpy.empty : the private one, with the same signature.

    Examples
    --------
    >>> mp.shared.empty((2, 3), np.float32).shape
    (2, 3)
    """
    return _make(shape, dtype, order, device, like, zeroed=False)


def zeros(
    shape: Shape, dtype: Any = float, order: Literal["C", "F"] = "C", *, device: str | None = None, like: None = None
) -> Array:
    """
    A new shared array of the given shape and type, filled with zeros.

    Under ``file_descriptor`` it is as lazy as `numpy.zeros`: 10 GB cost nothing until they are touched. Under
    ``file_system`` the bytes are reserved at once.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the axes; one int for a single axis.
    dtype : data type, default float64
        What an element is; without Python objects.
    order : {"C", "F"}, default "C"
        Row by row, or column by column.
    device : {None, "cpu"}
        For the array API; nothing else is possible.
    like : None
        For NumPy's signature; nothing else is possible.

    Returns
    -------
    numpy.ndarray of shape *shape*
        A plain array in shared memory. Put it on a queue, or give it to a process: the receiver has the same memory,
        no byte is copied, and each side sees what the other writes. The memory is given back when the last process has
        dropped it.

    Raises
    ------
    MemoryError
        There is no room; the message has the sizes and what to do.
    TypeError
        *dtype* holds Python objects, or *like* is given.
    ValueError
        A negative length, or another device.

    See Also
    --------
    share_memory : a shared copy of an array that exists.
    shared_allocator : what NumPy itself makes, made in shared memory.
    numpy.zeros : the private one, with the same signature.

    Examples
    --------
    >>> a = mp.shared.zeros((2, 3), int)
    >>> mp.is_shared(a)
    True

    Another process writes into it, and it is seen here:

    >>> process = mp.Process(target=np.copyto, args=(a, 7))
    >>> process.start()
    >>> process.join()
    >>> a.tolist()
    [[7, 7, 7], [7, 7, 7]]
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
    A new shared array of the given shape and type, filled with ones.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the axes; one int for a single axis.
    dtype : data type, default float64
        What an element is; without Python objects.
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
    A new shared array of the given shape, filled with one value.

    Parameters
    ----------
    shape : int or sequence of int
        Lengths of the axes; one int for a single axis.
    fill_value : scalar or array_like
        What every entry is; it is broadcast to *shape*.
    dtype : data type, default that of *fill_value*
        What an element is; without Python objects.
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
    A new shared array with the values of *object*: always a copy, and never a subclass.

    Parameters
    ----------
    object : array_like
        Its values.
    dtype : data type, default that of *object*
        What an element is; without Python objects.
    copy : True
        `share_memory` is the one that copies only when it has to.
    order : {"K", "A", "C", "F"}, default "K"
        How the copy lies in memory; "K" is as *object* does.
    subok : False
        For NumPy's signature; nothing else is possible.
    ndmin : int, default 0
        The least number of axes; axes of length 1 are put in front.
    like : None
        For NumPy's signature; nothing else is possible.

    Returns
    -------
    numpy.ndarray
        In shared memory, of *object*'s shape.

    Raises
    ------
    MemoryError
        There is no room; the message has the sizes and what to do.
    TypeError
        It would hold Python objects, or *subok* or *like* is given.
    ValueError
        *copy* is False.

    Examples
    --------
    >>> mp.shared.array([1, 2, 3]).tolist()
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


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0, *, like: None = None) -> Array:
    """
    A shared array with one axis, of the items of a buffer.

    Parameters
    ----------
    buffer : Block or buffer
        A `Block` is viewed where it is. Any other buffer is private, so its items are copied into shared memory.
    dtype : data type, default float64
        What an item is.
    count : int, default -1
        How many items; -1 is all there are.
    offset : int, default 0
        Where the first one begins, in bytes.
    like : None
        For NumPy's signature; nothing else is possible.

    Returns
    -------
    numpy.ndarray of shape (count,)
        In shared memory.

    Raises
    ------
    MemoryError
        There is no room for the copy.
    TypeError
        *dtype* holds Python objects, or *like* is given.
    ValueError
        The buffer is smaller than asked for, or no whole number of items.

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
    view: Array = np.frombuffer(buffer, dtype, count, offset)
    if isinstance(buffer, Block):
        return array_over(buffer, view.shape, dtype, offset)
    return array(view)


_NUMPY2 = int(np.__version__.split(".")[0]) >= 2
