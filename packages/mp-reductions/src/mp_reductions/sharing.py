"""Is an array shared, and make it so: a question, a copy, a move."""

from __future__ import annotations

import mmap
import sys
from typing import Any, Literal

import numpy as np

from mp_core.block import Block, allocate, block_at
from mp_reductions import _native, born
from mp_reductions.layout import span

__all__ = [
    "REMEDY",
    "address_of",
    "array_over",
    "find_block",
    "is_shared",
    "share_memory",
    "share_memory_",
    "shared_like",
]


def find_block(a: np.ndarray[Any, Any]) -> Block | None:
    """The Block that *a* lives in, through however many views and memoryviews, or None."""
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
    # What holds Python objects is pickled, wherever it was born.
    return born.block_of(owner) if born.ever and not (a.dtype.hasobject or owner.dtype.hasobject) else None


def _block_around(a: np.ndarray[Any, Any]) -> Block | None:
    """The Block of an array whose base is somebody else's object over one of ours, as of ``tensor.numpy()``."""
    first, end = span(a)
    address = address_of(a) + first
    block = block_at(address) if end > first and not a.dtype.hasobject else None
    return block if block is not None and address - first + end <= block._address + block.nbytes else None


# What `as_strided` (and so `sliding_window_view`) puts between a view and its base.
_STRIDED: type = type(np.lib.stride_tricks.as_strided(np.empty(0)).base)


def address_of(memory: np.ndarray[Any, Any] | Block) -> int:
    """Where the first element of an array, or the first byte of a block, lies in this process."""
    if isinstance(memory, Block):
        return memory._address
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
    """An array that sees the bytes of *block*; what reaches beyond them is a `ValueError` or a `TypeError`."""
    # np.ndarray checks shape, offset and strides. Its stub knows no buffers but the built-in ones.
    buffer: Any = block
    return np.ndarray(shape, dtype, buffer, offset, strides, order)


def is_shared(a: np.ndarray[Any, Any]) -> bool:
    """
    Does an array live in shared memory, so that sending it copies nothing and both sides see each other's writes?

    Parameters
    ----------
    a : numpy.ndarray
        The array in question.

    Returns
    -------
    bool
        True for what `shared.zeros` and its family and `share_memory` return, for arrays received through shared
        memory or born in it (`shared_allocator`), and for views of all these.

    Raises
    ------
    TypeError
        *a* is no array.

    Examples
    --------
    >>> mp.is_shared(np.ones(3)), mp.is_shared(mp.shared.ones(3)[1:])
    (False, True)
    """
    return find_block(_array(a, "is_shared")) is not None


def share_memory(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """
    The array itself when it lives in shared memory already, otherwise a shared copy.

    It is to `shared.array` what `numpy.asarray` is to `numpy.array`.

    Parameters
    ----------
    a : numpy.ndarray
        Any array without Python objects.

    Returns
    -------
    numpy.ndarray
        *a*, or a copy of its shape and dtype that lies in memory in the same order.

    Raises
    ------
    MemoryError
        There is no room for the copy; the message has the sizes and what to do.
    TypeError
        *a* is no array, or holds Python objects.

    See Also
    --------
    share_memory_ : move the data in place.

    Examples
    --------
    >>> a = mp.share_memory(np.arange(3))
    >>> mp.share_memory(a) is a
    True
    """
    if find_block(_array(a, "share_memory")) is not None:
        return a
    copy = shared_like(a)
    copy[...] = a
    return copy


def share_memory_(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """
    Move the data of an array into shared memory, in place.

    It follows the rules of ``ndarray.resize(refcheck=True)``: *a* owns its data and nothing else refers to it, since a
    view or a memoryview would be left behind on the old memory. An array that is already shared is left alone.

    Parameters
    ----------
    a : numpy.ndarray
        A plain array that one variable refers to.

    Returns
    -------
    numpy.ndarray
        *a* itself.

    Raises
    ------
    ValueError
        It cannot be moved; the message says why. `share_memory` makes a copy instead.
    MemoryError
        There is no room; the message has the sizes and what to do.
    TypeError
        *a* is no array, or holds Python objects.

    Examples
    --------
    >>> a = np.arange(3)
    >>> mp.share_memory_(a) is a, mp.is_shared(a)
    (True, True)
    """
    if find_block(_array(a, "share_memory_")) is not None:
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
    _native.swap_memory(a, donor)
    return a


def _count_references(a: np.ndarray[Any, Any]) -> int:
    held = [a]
    del a
    return sys.getrefcount(held[0])


def _count_when_alone() -> int:
    a = np.empty(0)
    return _count_references(a)


# What getrefcount says about an array that one variable of a caller refers to. From CPython 3.14 on, a parameter
# borrows the reference of a caller's local variable and has a reference of its own to a global one or an attribute. So
# the parameter is deleted before the count. Measured rather than known, and measured at the least: an array that is
# passed on from elsewhere counts as referred to, and is refused.
_ALONE = _count_when_alone()


def _array(a: Any, who: str) -> np.ndarray[Any, Any]:
    if not isinstance(a, np.ndarray):
        raise TypeError(f"{who} takes a NumPy array, not {type(a).__name__}; give it the arrays in it")
    return a


REMEDY = "convert it to numbers or to text of a fixed length first, as a.astype(float) or a.astype(str) do"


def shared_like(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An uninitialised shared array that lies in memory as a copy of *a* in order "K" would."""
    if a.dtype.hasobject:
        raise TypeError(
            f"an array of dtype {a.dtype} holds references to Python objects, which cannot be shared; {REMEDY}"
        )
    like = np.empty_like(a, subok=False)
    return array_over(allocate(like.nbytes, zeroed=False), like.shape, like.dtype, 0, like.strides)
