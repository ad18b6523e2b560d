"""The reducer of `np.ndarray`: what becomes of an array that is sent, and of one that arrives.

Note [The four ways]
--------------------
    holds Python objects        --> by pickle, as NumPy does it
    lives in a Block            --> the Block travels; both sides see one memory           0 copies
    private, small              --> in the message (inline.py)                            as cheap as the pipe
    private, larger             --> into a new Block, by the sender                        1 copy

A Block is pickled as an object of its own, so two views of one base in one message meet in pickle's memo and stand on
one Block again when they arrive.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from mp_core import _children
from mp_core.block import Block, allocate
from mp_core.stats import add_copied_bytes
from mp_reductions import inline
from mp_reductions.layout import pack
from mp_reductions.sharing import address_of, find_block

__all__ = ["init_reductions", "rebuild_ndarray", "reduce_ndarray"]


def init_reductions() -> None:
    """
    Send every `np.ndarray` through shared memory from now on, in this process and in children started after this.

    Calling it again does nothing. `import mp_all` calls it.

    >>> init_reductions()
    """
    ForkingPickler.register(np.ndarray, reduce_ndarray)
    _children.enlist("mp_reductions")


def reduce_ndarray(a: np.ndarray[Any, Any]) -> Any:
    """The pickle of an array; see Note [The four ways]."""
    if a.base is not None:
        block = find_block(a)
        if block is not None:
            strides = None if a.flags.c_contiguous else a.strides
            return _reduced(block, a, address_of(a) - address_of(block), strides)
    if a.dtype.hasobject:
        return a.__reduce__()
    if a.nbytes <= inline._limit:
        return inline.reduce_inline(a)

    packed = pack(a)
    try:
        block = allocate(packed.data.nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        # Delivered all the same: a message that is late is better than one that is lost.
        _warn_once(a.nbytes, error)
        return inline.reduce_inline(a)
    np.frombuffer(block, np.uint8)[:] = packed.data
    add_copied_bytes(packed.data.nbytes)
    return _reduced(block, a, packed.offset, packed.strides)


_warned = False


def _warn_once(nbytes: int, error: Exception) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    try:
        warnings.warn(
            f"shared memory ran out, so an array of {nbytes} bytes (and maybe others) travels through the pipe: {error}",
            ResourceWarning,
            stacklevel=3,
        )
    except ResourceWarning:
        pass  # a filter that makes errors of warnings must not make a lost message of a slow one


def _reduced(
    block: Block, a: np.ndarray[Any, Any], offset: int, strides: tuple[int, ...] | None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return rebuild_ndarray, (
        block,
        inline.portable_dtype(a.dtype),
        a.shape,
        offset,
        strides,
        a.flags.writeable,
    )


def rebuild_ndarray(
    block: Block,
    dtype: Any,
    shape: tuple[int, ...],
    offset: int,
    strides: tuple[int, ...] | None,
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """An array over *block*. A handle that reaches beyond the block is a `ValueError` or a `TypeError`."""
    if not isinstance(block, Block):
        raise ValueError(f"the handle of an array is damaged: a Block was expected, not {type(block).__name__}")
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ValueError("the handle of an array is damaged: Python objects cannot live in shared memory")
    # np.ndarray checks that shape, offset and strides stay inside the buffer.
    a: np.ndarray[Any, Any] = np.ndarray(shape, dtype, block, offset, strides)
    if not writeable:
        a.flags.writeable = False
    return a
