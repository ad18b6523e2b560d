"""Shared arrays: whether an array is shared, a shared copy, and a move into shared memory."""

from __future__ import annotations

import mmap
import operator
import sys
from typing import Any, Literal, SupportsIndex, TypeVar

import numpy as np

from mp_core.memory.block import Block, allocate, block_at
from mp_reductions import _functions, allocator_scope
from mp_reductions.layout import span
from mp_reductions.mapped import is_mapped

#: Shape and dtype of an array, and the array itself.
N = TypeVar("N", bound=tuple[Any, ...])
D = TypeVar("D", bound=np.dtype[Any])
A = TypeVar("A", bound=np.ndarray[Any, Any])


def find_block(a: np.ndarray[Any, Any]) -> Block | None:
    """Return the Block that contains *a*, behind any number of views and memoryviews, or None."""
    base: Any = a.base
    owner = a
    while base is not None:
        if isinstance(base, Block):
            return base
        if isinstance(base, np.ndarray):
            owner = base
            base = base.base
        elif isinstance(base, memoryview):
            base = base.obj
        elif isinstance(base, _STRIDED):
            base = getattr(base, "base", None)
        elif type(base) in (bytes, bytearray, mmap.mmap):
            return None
        else:
            return _block_around(a)
    # Arrays of Python objects are pickled, even in shared memory.
    objects = a.dtype.hasobject or owner.dtype.hasobject
    return allocator_scope.block_of(owner) if allocator_scope.ever and not objects else None


def _block_around(a: np.ndarray[Any, Any]) -> Block | None:
    """Return the Block of an array whose base is a foreign object over a block, made by another library."""
    first, end = span(a)
    address = address_of(a) + first
    block = block_at(address) if end > first and not a.dtype.hasobject else None
    return block if block is not None and address - first + end <= block.address + block.nbytes else None


# The type of the object that `as_strided` (and so `sliding_window_view`) puts between a view and its base.
_STRIDED: type = type(np.lib.stride_tricks.as_strided(np.empty(0)).base)


def address_of(memory: np.ndarray[Any, Any] | Block) -> int:
    """Return the address in this process of the first element of an array, or the first byte of a block."""
    if isinstance(memory, Block):
        return memory.address
    address: int = memory.__array_interface__["data"][0]
    return address


def array_over(
    block: Block,
    shape: tuple[int, ...],
    dtype: Any,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    order: Literal["C", "F"] = "C",
) -> np.ndarray[Any, Any]:
    """Return an array over the bytes of *block*; reaching beyond them is a `ValueError` or a `TypeError`."""
    # np.ndarray checks shape, offset and strides. Its type stub knows the built-in buffers only.
    buffer: Any = block
    return np.ndarray(shape, dtype, buffer, offset, strides, order)


def is_shared(a: np.ndarray[Any, Any]) -> bool:
    """
    Return whether an array lives in shared memory, so that sending it copies nothing and both sides see all writes.

    Parameters
    ----------
    a : numpy.ndarray
        An array.

    Returns
    -------
    bool
        True for the results of `shared.zeros` and its siblings and of `share_memory`, for arrays received through
        shared memory or allocated in it (`shared_allocator`), for arrays over the buffer of a
        `multiprocessing.shared_memory.SharedMemory`, and for views of all these.

    Raises
    ------
    TypeError
        *a* is not an array.

    Examples
    --------
    >>> mp.is_shared(np.ones(3)), mp.is_shared(mp.shared.ones(3)[1:])
    (False, True)
    """
    return _is_shared(_array(a, "is_shared"))


def _is_shared(a: np.ndarray[Any, Any]) -> bool:
    return find_block(a) is not None or is_mapped(a)


def share_memory(a: np.ndarray[N, D]) -> np.ndarray[N, D]:
    """
    Return the array itself if it lives in shared memory already, otherwise a shared copy.

    It is to `shared.array` what `numpy.asarray` is to `numpy.array`.

    Parameters
    ----------
    a : numpy.ndarray
        Any array without Python objects.

    Returns
    -------
    numpy.ndarray
        *a*, or a copy with its class, shape, dtype, memory order and attributes; of a `numpy.memmap`, a plain array.
        The mask of a masked array is shared as well.

    Raises
    ------
    MemoryError
        Less memory is available than the copy needs; the message has the sizes and what to do.
    TypeError
        *a* is not an array, or contains Python objects.

    See Also
    --------
    share_memory_ : move the data in place.

    Examples
    --------
    >>> a = mp.share_memory(np.arange(3))
    >>> mp.share_memory(a) is a
    True
    """
    if _is_shared(_array(a, "share_memory")):
        return a
    copy = shared_like(a)
    copy[...] = a
    return copy if type(a) is np.ndarray or isinstance(a, np.memmap) else _over(copy, a)


_over: Any = None


def use_over(over: Any) -> None:
    """Have *over* give a shared copy the class and the attributes of an array."""
    global _over
    _over = over


def share_memory_(a: A) -> A:
    """
    Move the data of an array into shared memory, in place.

    It follows the rules of ``ndarray.resize(refcheck=True)``: *a* owns its data and no other object refers to it, since
    a view or a memoryview would stay on the old memory. An array that is already shared does not change.

    Parameters
    ----------
    a : numpy.ndarray
        An array, not of a subclass, to which one variable refers.

    Returns
    -------
    numpy.ndarray
        *a* itself.

    Raises
    ------
    ValueError
        The array cannot be moved; the message says why. `share_memory` makes a copy instead.
    MemoryError
        Less memory is available; the message has the sizes and what to do.
    TypeError
        *a* is not an array, or contains Python objects.

    Examples
    --------
    >>> a = np.arange(3)
    >>> mp.share_memory_(a) is a, mp.is_shared(a)
    (True, True)
    """
    if _is_shared(_array(a, "share_memory_")):
        return a
    if type(a) is not np.ndarray:
        raise ValueError(f"share_memory_ works on plain arrays, not on {type(a).__name__}; use share_memory for a copy")
    if not a.flags.owndata:
        raise ValueError(
            "share_memory_ cannot move this array: it does not own its data, which belongs to "
            f"{type(a.base).__name__!r} object; use share_memory for a copy"
        )
    held = [a]
    del a
    references = sys.getrefcount(held[0]) - _ALONE
    if references > 0:
        raise ValueError(
            f"share_memory_ cannot move this array: {references} other references to it exist (a view, a memoryview, "
            "a container) and would be left on the old memory; drop them, or use share_memory for a copy"
        )
    a = held[0]
    donor = shared_like(a)
    donor[...] = a
    if not a.flags.writeable:
        donor.flags.writeable = False
    _functions.swap_memory(a, donor)
    return a


def _count_references(a: np.ndarray[Any, Any]) -> int:
    held = [a]
    del a
    return sys.getrefcount(held[0])


def _count_when_alone() -> int:
    a = np.empty(0)
    return _count_references(a)


# The result of getrefcount for an array to which one variable of a caller refers. From CPython 3.14 on, a parameter
# borrows the reference of a caller's local variable, and has a reference of its own to a global variable or an
# attribute. So the parameter is deleted before the count. The number is measured, and it is the lowest one: an array
# that is passed on from another call counts as referred to, and is refused.
_ALONE = _count_when_alone()


def _array(a: Any, who: str) -> np.ndarray[Any, Any]:
    if not isinstance(a, np.ndarray):
        raise TypeError(f"{who} takes a NumPy array, not {type(a).__name__}; give it the arrays in it")
    return a


REMEDY = "convert it to numbers or to text of a fixed length first, as a.astype(float) or a.astype(str) do"


def checked_dims(shape: Any) -> tuple[int, ...]:
    """Return *shape* as a tuple; raise `TypeError` or `ValueError` if it is not a shape."""
    try:
        is_number = isinstance(shape, SupportsIndex) and not (isinstance(shape, np.ndarray) and np.ndim(shape))
        dims = (operator.index(shape),) if is_number else tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"a shape is an integer or a tuple of integers, not {shape!r}") from None
    if any(n < 0 for n in dims):
        raise ValueError(f"negative dimensions are not allowed: {dims}")
    return dims


def checked_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a new shared array; raise `TypeError` for one with references to Python objects."""
    if dtype.hasobject:
        raise TypeError(
            f"an array of dtype {dtype} contains references to Python objects, which cannot be shared; {REMEDY}"
        )
    return np.dtype(f"{dtype.kind}1") if dtype.itemsize == 0 and dtype.kind in "US" else dtype  # as np.empty(3, "U")


def shared_like(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an uninitialised shared array with the memory layout of a copy of *a* in order "K"."""
    checked_dtype(a.dtype)
    like = np.empty_like(a, subok=False)
    return array_over(allocate(like.nbytes, zeroed=False), like.shape, like.dtype, 0, like.strides)
