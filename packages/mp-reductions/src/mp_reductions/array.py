"""The reducer of `np.ndarray`: how an array is pickled for a message, and rebuilt from it.

Note [How an array is sent]
---------------------------
    the message goes by value     --> by pickle, as NumPy does it (mp_core/sharing/by_value.py)
    contains Python objects       --> by pickle, as NumPy does it
    lives in a Block              --> the Block is sent; both sides have the same memory     0 copies
    allocated in shared memory    --> as above, with the Block at its address                0 copies
    over a file of /dev/shm       --> its name is sent (mapped.py)                           0 copies
    private, small                --> in the message (inline.py)                             as cheap as the pipe
    private, larger               --> into a new Block, by the sender                        1 copy

A Block is pickled as an object of its own, so pickle's memo finds it again for a second view of the same base in one
message, and both views have one Block when they arrive.

Note [The fast path]
--------------------
Nearly every array that is sent is C-contiguous, aligned, writable and of a dtype that a short name describes
(`native/dtypes.c`): 'd', 'i', '?', '<M8[ns]', '<U10', '>f8'. The name and the shape describe such an array completely,
so C code reduces it by the same rules (`native/fast_path.c`), and a message with a thousand small arrays is cheap.
Where no pickler is needed, C code also writes parts of blocks, and small private arrays in any layout
(`native/views.c`). All other arrays, and all errors, come to `reduce_ndarray` here.

Note [An array that another thread changes]
-------------------------------------------
With `multiprocessing` an array is read in one step, so it arrives as it was before another thread set its dtype or
shape or resized it, or as it is afterwards. Here its layout is also read in one step, and its bytes are copied by that
layout, with its memory held (`native/held_memory.c`). Where memory is found or made between the two steps, an array
that has changed is sent once more from the start; if that fails as well, the sender gets an error.

Among many such arrays of a message, private ones of up to 4 KiB for which it has no room share a block, the pack, and
are private again when they arrive (`mp_core/native/messages/packs.c`, Note [Packs]).
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from mp_core.memory.block import Block, Copied, allocate
from mp_core.messages import pickling
from mp_core.sharing.backend import LIBSHM, by_value, copied_bytes, message_exhausted
from mp_core.system import fan_out, packages, reducers
from mp_core.system.errors import warn_sent_by_value
from mp_reductions import _functions, inline, memmap, repeated_copy
from mp_reductions.layout import rebuild_ndarray, span
from mp_reductions.mapped import is_mapped, reduce_mapped
from mp_reductions.sharing import address_of, find_block
from mp_reductions.subclass import choose_reducer

__all__ = ["init_reductions", "rebuild_ndarray", "reduce_ndarray"]


def init_reductions() -> None:
    """
    Send every `numpy.ndarray` through shared memory, in this process and in children started from now on.

    ``import mp_all`` calls it. Calling it again does nothing.

    Examples
    --------
    >>> mp.init_reductions()
    """
    ForkingPickler.register(np.ndarray, _functions.reduce_array)
    ForkingPickler.register(np.memmap, memmap.reduce_memmap)
    reducers.of_subclasses(np.ndarray, choose_reducer)
    if not LIBSHM:
        pickling.use_alone(np.ndarray, _reduce_alone)
    packages.register("mp_reductions", "import numpy", "numpy.ndarray")


def _reduce_alone(a: np.ndarray[Any, Any]) -> Any:
    """Reduce an array that is a message by itself to a call without objects; None if it cannot be."""
    substitute: Any = _functions
    is_ours = reducers.install().get(np.ndarray) is substitute.reduce_array
    return substitute.reduce_small(a) if is_ours else None


def reduce_ndarray(a: np.ndarray[Any, Any]) -> Any:
    """Reduce an array; see Note [How an array is sent]."""
    if by_value():
        return a.__reduce_ex__(inline.AS_NUMPY)
    for _ in range(inline.TRIES):
        reduced = _reduce_once(a)
        if reduced is not None:
            return reduced
    raise inline.changed(a)


def _reduce_once(a: np.ndarray[Any, Any]) -> Any:
    """Reduce an array; None if another thread changes it meanwhile."""
    # Another thread may set the dtype and the shape of *a*, but not of this view, which is made in one step.
    seen = np.ndarray.view(a)
    block = find_block(seen)
    if block is not None:
        if seen.size == 0:  # its address and its strides may lead out of the block
            return _reduced(block, seen, 0, None)
        offset = address_of(seen) - address_of(block)
        first, end = span(seen)
        if offset + first < 0 or offset + end > block.nbytes:
            return None  # the block is that of other memory, which the array has by now
        return _reduced(block, seen, offset, None if seen.flags.c_contiguous else seen.strides)
    if seen.dtype.hasobject:
        return a.__reduce__()
    mapped = reduce_mapped(seen)
    if mapped is not None:
        return mapped
    if _functions.has_room(seen.nbytes):
        return inline.reduce_inline(a)
    return _reduce_by_copy(a)


def _reduce_by_copy(a: np.ndarray[Any, Any]) -> Any:
    """Reduce a private array by a copy in a new Block; None if another thread changes it meanwhile."""
    nbytes = _functions.own_nbytes(a)
    try:
        block = allocate(nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        # Deliver it all the same: a slow message is better than a lost one.
        warn_sent_by_value("an array", nbytes, error)
        if nbytes <= SMALL:
            message_exhausted()
        return inline.reduce_inline(a)
    layout = _functions.copy_own_bytes(a, block)
    if layout is None:
        return None
    copied_bytes(nbytes)
    copied = Copied(block)
    if nbytes >= repeated_copy.LARGE:
        repeated_copy.notice(a, copied.handle)
    dtype, *rest = layout
    return rebuild_ndarray, (copied, inline.portable_dtype(dtype), *rest)


def _reduced(
    block: Block, a: np.ndarray[Any, Any], offset: int, strides: tuple[int, ...] | None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return rebuild_ndarray, (block, inline.portable_dtype(a.dtype), a.shape, offset, strides, a.flags.writeable)


#: Without memory for so few bytes, the message has none for its other arrays either.
SMALL = 1 << 20


# ---- the fast path ---------------------------------------------------------------------------------------------------

_BUILT_IN: dict[str, np.dtype[Any]] = {
    char: np.dtype(char)
    for char in np.typecodes["All"]
    if not np.dtype(char).hasobject and np.dtype(char).itemsize and np.dtype(char) is np.dtype(char)
}


def _name_of(dtype: np.dtype[Any]) -> str | None:
    """Return a text that describes *dtype* completely; None for structures, objects, and dtypes with metadata."""
    if dtype.names is not None or dtype.subdtype is not None or dtype.metadata or dtype.hasobject or not dtype.itemsize:
        return None
    name = dtype.str
    try:
        made = np.dtype(name)
    except (TypeError, ValueError):  # of a dtype that another library has made
        return None
    return name if made == dtype and type(made) is type(dtype) and made.str == name else None


_functions.setup(_BUILT_IN, _name_of, np.dtype, reduce_ndarray, repeated_copy.notice, repeated_copy.LARGE)


# ---- one pickle for several receivers --------------------------------------------------------------------------------


def _to_many(a: np.ndarray[Any, Any]) -> fan_out.FanOutMode:
    """Return how *a* may be pickled for several receivers, each of which gets its own copy of a private array."""
    if a.dtype.hasobject:
        return "by reference"
    if find_block(a) is not None:
        return "per receiver" if _has_no_block_object(a) else "by reference"
    if is_mapped(a) or a.nbytes <= inline.get_inline_limit():
        return "by reference"
    return "out of band" if _BUILT_IN.get(a.dtype.char) is a.dtype and a.flags.forc else "per receiver"


def _has_no_block_object(a: np.ndarray[Any, Any]) -> bool:
    """Return whether only its address leads to the Block of *a*. Then the fast path sends a handle without a Block."""
    base: Any = a.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base is None


for _reducer in (_functions.reduce_array, reduce_ndarray):
    fan_out.declare(_reducer, _to_many)
fan_out.declare(memmap.reduce_memmap, memmap.to_many)
