"""The reducer of `np.ndarray`: what becomes of an array that is sent, and of one that arrives.

Note [The four ways]
--------------------
    holds Python objects        --> by pickle, as NumPy does it
    lives in a Block            --> the Block travels; both sides see one memory           0 copies
    private, small              --> in the message (inline.py)                            as cheap as the pipe
    private, larger             --> into a new Block, by the sender                        1 copy

A Block is pickled as an object of its own, so two views of one base in one message meet in pickle's memo and
stand on one Block again when they arrive.
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
from mp_reductions.inline import PLAIN
from mp_reductions.layout import pack
from mp_reductions.memmap import reduce_memmap
from mp_reductions.sharing import address_of, find_block

__all__ = ["init_reductions", "rebuild_ndarray", "rebuild_whole", "reduce_ndarray"]


def init_reductions() -> None:
    """
    Send every `np.ndarray` through shared memory from now on, in this process and in children started after.

    Calling it again does nothing. `import mp_all` calls it.

    >>> init_reductions()
    """
    ForkingPickler.register(np.ndarray, reduce_ndarray)
    ForkingPickler.register(np.memmap, reduce_memmap)
    _children.enlist("mp_reductions")


def reduce_ndarray(a: np.ndarray[Any, Any]) -> Any:
    """The pickle of an array; see Note [The four ways]."""
    # Written out flat, because a message may hold thousands of arrays: each call and each attribute counts.
    dtype = a.dtype
    char = dtype.char
    plain = PLAIN.get(char) is dtype and a.flags.carray  # see inline.py, Note [Plain arrays]
    base: Any = a.base
    if base is not None:
        block = base if type(base) is Block else find_block(a)
        if block is not None:
            if plain and a.nbytes == block.nbytes:  # all of the block, so it begins where the block does
                return rebuild_whole, (block, char, a.shape)
            strides = None if a.flags.c_contiguous else a.strides
            return _reduced(block, a, address_of(a) - address_of(block), strides)
    if plain:
        if a.nbytes <= inline._limit:
            return inline.rebuild_plain, (a.tobytes(), char, a.shape)
    elif dtype.hasobject:
        return a.__reduce__()
    elif a.nbytes <= inline._limit:
        return inline.reduce_inline(a)
    return _moved(a, plain)


def _moved(a: np.ndarray[Any, Any], plain: bool) -> Any:
    """The pickle of a private array through a new Block."""
    packed = pack(a)
    try:
        block = allocate(packed.data.nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        # Delivered all the same: a message that is late is better than one that is lost.
        _warn_once(a.nbytes, error)
        return inline.reduce_inline(a)
    _frombuffer(block, np.uint8)[:] = packed.data
    add_copied_bytes(packed.data.nbytes)
    if plain:
        return rebuild_whole, (block, a.dtype.char, a.shape)
    return _reduced(block, a, packed.offset, packed.strides)


_warned = False


def _warn_once(nbytes: int, error: Exception) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    try:
        warnings.warn(
            f"shared memory ran out, so an array of {nbytes} bytes (and maybe others) travels through the "
            f"pipe: {error}",
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


def rebuild_whole(block: Block, char: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A plain array over the whole of *block*. A handle that reaches beyond the block is a `TypeError`."""
    if not isinstance(block, Block):
        raise ValueError(f"the handle of an array is damaged: a Block was expected, not {type(block).__name__}")
    try:
        a: np.ndarray[Any, Any] = _ndarray(shape, PLAIN[char], block)
    except KeyError:
        raise ValueError(f"the handle of an array is damaged: no dtype is called {char!r}") from None
    except OverflowError as error:
        raise ValueError(f"the handle of an array is damaged: {error}") from None
    return a


# NumPy takes anything with the buffer protocol; its type hints list a few.
_ndarray: Any = np.ndarray
_frombuffer: Any = np.frombuffer


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
    try:
        a: np.ndarray[Any, Any] = _ndarray(shape, dtype, block, offset, strides)
    except OverflowError as error:
        raise ValueError(f"the handle of an array is damaged: {error}") from None
    if not writeable:
        a.flags.writeable = False
    return a
