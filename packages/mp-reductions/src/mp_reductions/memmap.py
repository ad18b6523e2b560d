"""Memory-mapped files: the receiver opens the file by its path, so nothing is copied and both sides map one file.

Some memmaps are sent as data: the result of arithmetic on a memmap (its memory is private), a map of mode "c" (its
changes are private), and a map of a file without a path.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import native
from mp_reductions.inline import AS_NUMPY, portable_dtype
from mp_reductions.layout import span
from mp_reductions.sharing import address_of

__all__ = ["rebuild_memmap", "reduce_memmap"]


def reduce_memmap(a: np.memmap[Any, Any]) -> Any:
    """Reduce a memmap to its file and the place of its bytes there."""
    if native.by_value():
        return a.__reduce_ex__(AS_NUMPY)
    mapped: mmap.mmap | None = getattr(a, "_mmap", None)
    # NumPy gives every view the path, mode and offset of the original map.
    if mapped is None or a.filename is None or a.mode == "c" or a.size == 0:
        return a.__reduce__()
    in_file = a.offset - a.offset % mmap.ALLOCATIONGRANULARITY
    in_memory = address_of(np.frombuffer(mapped, np.uint8))
    first, end = span(a)
    offset = in_file + address_of(a) - in_memory + first
    how = "r+" if a.mode == "w+" else a.mode
    place = (str(a.filename), how, offset, end - first)
    return rebuild_memmap, (*place, portable_dtype(a.dtype), a.shape, -first, a.strides, a.flags.writeable)


def rebuild_memmap(
    path: str,
    mode: Any,
    offset: int,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    start: int,
    strides: tuple[int, ...],
    writeable: bool,
) -> np.memmap[Any, Any]:
    """Rebuild a memmap from a pickle of `reduce_memmap`; `FileNotFoundError` if the file is gone."""
    try:
        whole = np.memmap(path, np.uint8, mode, offset, (nbytes,))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"a memory-mapped array came, but its file is gone: {path}; keep the file until the array is received"
        ) from None
    make: Callable[..., Any] = np.ndarray.__new__
    a: np.memmap[Any, Any] = make(np.memmap, shape, dtype, whole, start, strides)
    for name in ("_mmap", "filename", "offset", "mode"):
        setattr(a, name, getattr(whole, name))
    if not writeable:
        a.flags.writeable = False
    return a
