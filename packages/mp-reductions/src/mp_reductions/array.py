"""The reducer of `np.ndarray`: what becomes of an array that is sent, and of one that arrives.

Note [The ways of an array]
---------------------------
    the message goes by value   --> by pickle, as NumPy does it (mp_core/by_value.py)
    holds Python objects        --> by pickle, as NumPy does it
    lives in a Block            --> the Block travels; both sides see one memory           0 copies
    was born in shared memory   --> as above, with the Block that its address lies in      0 copies
    private, small              --> in the message (inline.py)                            as cheap as the pipe
    private, larger             --> into a new Block, by the sender                        1 copy

A Block is pickled as an object of its own, so two views of one base in one message meet in pickle's memo and
stand on one Block again when they arrive.

Note [Plain arrays]
-------------------
Nearly every array that is sent is C-contiguous, aligned, writable and of one of the dtypes that are a single object
per process, with a character of its own ('d', 'i', '?'). Such an array is *plain*: a character and a shape say all
about it, and it takes the same ways by a short cut in C (`_plain`, compiled in mp-core), which is what makes a
message with a thousand small arrays cheap. A dtype that only equals one of them (it has metadata, say, which NumPy's
== does not see) is not plain. All others, and what goes wrong, come to `reduce_ndarray` here.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from mp_core import _children, _many, _native, _pickling, _reducers
from mp_core.block import Block, Copied, allocate
from mp_core.stats import add_copied_bytes
from mp_reductions import buffers, inline, repeated, tensors
from mp_reductions.layout import pack
from mp_reductions.memmap import reduce_memmap
from mp_reductions.running_out import warn_once
from mp_reductions.sharing import address_of, find_block
from mp_reductions.subclass import choose_reducer

__all__ = ["init_reductions", "rebuild_ndarray", "reduce_ndarray"]

_plain: Any = _native.compiled("mp_reductions._plain")


def init_reductions() -> None:
    """
    Send every `numpy.ndarray` through shared memory from now on, in this process and in children started after.

    ``import mp_all`` calls it. Calling it again does nothing.

    Examples
    --------
    >>> mp.init_reductions()
    """
    ForkingPickler.register(np.ndarray, _plain.reduce_plain if _knows_arrays() else reduce_ndarray)
    ForkingPickler.register(np.memmap, reduce_memmap)
    _reducers.of_subclasses(np.ndarray, choose_reducer)
    _pickling.take_buffers(buffers.take)
    _reducers.when_registered("torch", tensors.stand_before)
    _children.register("mp_reductions", about="numpy")


def reduce_ndarray(a: np.ndarray[Any, Any]) -> Any:
    """The pickle of an array; see Note [The ways of an array]."""
    if _native.by_value():
        return a.__reduce_ex__(inline.AS_NUMPY)
    block = find_block(a)
    if block is not None:
        strides = None if a.flags.c_contiguous else a.strides
        return _reduced(block, a, address_of(a) - address_of(block), strides)
    if a.dtype.hasobject:
        return a.__reduce__()
    if inline.has_room(a.nbytes):
        return inline.reduce_inline(a)
    return _moved(a)


def _moved(a: np.ndarray[Any, Any]) -> Any:
    """The pickle of a private array through a new Block."""
    packed = pack(a)
    try:
        block = allocate(packed.data.nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        # Delivered all the same: a message that is late is better than one that is lost.
        warn_once(a.nbytes, error)
        return inline.reduce_inline(a)
    _frombuffer(block, np.uint8)[:] = packed.data
    add_copied_bytes(packed.data.nbytes)
    copied = Copied(block)
    if a.nbytes >= repeated.LARGE:
        repeated.notice(a, copied.handle)
    return _reduced(copied, a, packed.offset, packed.strides)


def _reduced(
    block: Block | Copied, a: np.ndarray[Any, Any], offset: int, strides: tuple[int, ...] | None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return rebuild_ndarray, (
        block,
        inline.portable_dtype(a.dtype),
        a.shape,
        offset,
        strides,
        a.flags.writeable,
    )


# NumPy takes anything with the buffer protocol; its type hints list a few.
_ndarray: Any = np.ndarray
_frombuffer: Any = np.frombuffer


def rebuild_ndarray(
    block: Block | bytearray,
    dtype: Any,
    shape: tuple[int, ...],
    offset: int,
    strides: tuple[int, ...] | None,
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """An array over *block*. A handle that reaches beyond the block is a `ValueError` or a `TypeError`."""
    # Bytes in private memory are what became of a copy that this process cannot share.
    if not isinstance(block, Block | bytearray):
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


# ---- the short cut ---------------------------------------------------------------------------------------------------

_PLAIN: dict[str, np.dtype[Any]] = {
    char: np.dtype(char)
    for char in np.typecodes["All"]
    if not np.dtype(char).hasobject and np.dtype(char).itemsize and np.dtype(char) is np.dtype(char)
}

_plain.setup(np.ndarray, _PLAIN, reduce_ndarray, repeated.notice)


def _knows_arrays() -> bool:
    """Are the fields of an ndarray where `_plain` reads them, in this NumPy?"""
    grid = np.arange(12.0).reshape(3, 4)
    samples = [grid, grid[1:], grid.T, np.empty(0), np.array(1), np.broadcast_to(np.int8(1), (2, 2, 2))]
    return all(_plain.knows(a, address_of(a), a.ndim, a.base, a.dtype, a.flags.num) for a in samples)


# ---- one pickle for several receivers --------------------------------------------------------------------------------


def _to_many(a: np.ndarray[Any, Any]) -> _many.Travels:
    """How *a* may be pickled for several receivers, to each of which a private array is its own."""
    if a.dtype.hasobject:
        return "by claims"
    if find_block(a) is not None:
        return "alone" if _was_born(a) else "by claims"
    if a.nbytes <= inline.get_inline_limit():
        return "by claims"
    return "by buffer" if _PLAIN.get(a.dtype.char) is a.dtype and a.flags.forc else "alone"


def _was_born(a: np.ndarray[Any, Any]) -> bool:
    """Is the shared array *a* known by its address alone? Then the short cut makes a claim and no object of it."""
    base: Any = a.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base is None


for _reducer in (_plain.reduce_plain, reduce_ndarray):
    _many.declare(_reducer, _to_many)
_many.declare(reduce_memmap, lambda a: "by claims")
