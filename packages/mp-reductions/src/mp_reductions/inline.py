"""Inline arrays: small private arrays in the message itself, where a copy through the pipe costs less than a block.

The limit is for the whole message. On two `SimpleQueue`s a round trip of one array takes, in µs:

    bytes          512    1 KiB   2 KiB   4 KiB   8 KiB   16 KiB   32 KiB
    inline         2.3    2.4     2.6     3.2     4.3     6.2      10.2
    in a block     2.5    2.5     2.5     2.7     3.0     3.4      3.6

From 2 KiB on a block is faster, because its bytes are copied once and not four times. The limit is 4 KiB, where inline
costs half a microsecond more: inline an array needs no manager, and no in-flight reference that a killed process leaves
to the reaper. So arrays go into the message until it has 4 KiB of them, and later ones through shared memory.
`benchmarks/bench_inline.py` measures both; the environment variable ``MP_INLINE_BYTES`` and `set_inline_limit` change
the limit.

With portable sharing a block costs more, so the limit is 160 KiB, and for each array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.sharing import backend
from mp_core.system import settings
from mp_reductions import _functions
from mp_reductions.layout import rebuild_ndarray

DEFAULT_LIMIT = (4 if backend.LIBSHM else 160) * 1024
# The protocol by which NumPy pickles an array into a pickle of any protocol; 5 would need a pickler of protocol 5.
AS_NUMPY = 4


def _validated(nbytes: int | str) -> int:
    size = settings.parse_bytes(nbytes) if isinstance(nbytes, str) else operator.index(nbytes)
    if size < 0:
        raise ValueError(f"the inline limit is a number of bytes, 0 or more, not {size}")
    return size


_wanted = settings.inline_bytes()
_functions.set_inline_limit(DEFAULT_LIMIT if _wanted is None else _wanted)


def get_inline_limit() -> int:
    """
    Return how many bytes of private arrays travel in a message itself.

    Larger arrays, and those beyond the limit, go through shared memory. Arrays of up to 256 bytes do not count.

    Returns
    -------
    int
        Bytes per message, 4 KiB if not set; with portable sharing bytes of each array, 160 KiB if not set.

    Examples
    --------
    >>> mp.get_inline_limit() >= 0
    True
    """
    return _functions.get_inline_limit()


def set_inline_limit(nbytes: int | str) -> None:
    """
    Set how many bytes of private arrays travel in a message itself, for this process.

    ``MP_INLINE_BYTES`` in the environment sets it without a change of the program.

    Parameters
    ----------
    nbytes : int or str
        Bytes per message, or a text like ``"64KiB"``; 0 sends every private array through shared memory.

    Raises
    ------
    ValueError
        The number is negative, or the text is no number of bytes.
    TypeError
        It is neither an integer nor a text.

    Examples
    --------
    >>> before = mp.get_inline_limit()
    >>> mp.set_inline_limit(16 * 1024)
    >>> mp.get_inline_limit()
    16384
    >>> mp.set_inline_limit(before)
    """
    _functions.set_inline_limit(_validated(nbytes))


def portable_dtype(dtype: np.dtype[Any]) -> Any:
    """Return *dtype* for a pickle: its short string if that is complete, otherwise the dtype."""
    return dtype.str if dtype.isbuiltin == 1 else dtype


#: How often an array that another thread changes is read before its sender gets an error.
TRIES = 4


def changed(a: np.ndarray[Any, Any]) -> RuntimeError:
    """Return the error of an array that changes whenever it is read."""
    return RuntimeError(
        f"an array of {a.nbytes} bytes cannot be sent: another thread changes its dtype, shape or size all the time; "
        "guard the array by a lock, or send a copy"
    )


def reduce_inline(a: np.ndarray[Any, Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Reduce an array by value, with its strides and its read-only flag; arrays on the fast path do not come here."""
    for _ in range(TRIES):
        data = bytearray(_functions.own_nbytes(a))
        layout = _functions.copy_own_bytes(a, data)
        if layout is not None:
            dtype, *rest = layout
            return rebuild_ndarray, (data, portable_dtype(dtype), *rest)
    raise changed(a)
