"""The substitute for the compiled module where libshm does not run.

It has the functions of `_native.pyi` that are called there. Small arrays have a short pickle of their own, the others
take the path in Python (`array.py`). The shared allocator is a scope without effect, because NumPy's interface for
allocators is one of C: NumPy allocates in private memory, as it does when shared memory is exhausted.

Note [An array that another thread changes]
-------------------------------------------
Between two lines another thread may set the dtype and the shape of an array, or resize it, which frees its memory.
NumPy resizes no array that has a weak reference, with `refcheck=False` or without. So a weak reference is made first
and kept until the bytes are copied, and then a view, in one step: what the thread sets does not change that.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np

from mp_core.sharing.backend import by_value
from mp_reductions.layout import span

__all__ = [
    "block_at",
    "copy_own_bytes",
    "get_handler",
    "get_inline_limit",
    "has_room",
    "held_view",
    "own_nbytes",
    "rebuild_from_bytes",
    "reduce_array",
    "reduce_small",
    "replace_default_handler",
    "set_handler",
    "set_inline_limit",
    "setup",
    "shared_handler",
    "swap_memory",
]

_dtypes: dict[str, Any] = {}
_reduce: Callable[[Any], Any]
_inline_limit = 0


def setup(
    dtypes: Any,
    name_of: Any,
    from_name: Any,
    reduce_ndarray: Callable[[Any], Any],
    on_large_copy: Any,
    large_nbytes: int,
) -> None:
    """Set the dtypes that are one object with a character of its own, and the function that reduces other arrays."""
    global _dtypes, _reduce
    _dtypes, _reduce = dtypes, reduce_ndarray


class _Held(np.ndarray[Any, Any]):
    """A view with a weak reference to its array."""

    held: Any = None


def reduce_small(a: Any) -> tuple[Any, ...] | None:
    """
    Reduce a small array that its character and its shape describe, by value; None for any other.

    Pickle copies a `PickleBuffer` once, and a bytearray twice; the pickler must have no callback for buffers.
    """
    if 0 < a.nbytes <= _inline_limit and a.base is None and not by_value():
        held = weakref.ref(a)
        seen = np.ndarray.view(a, _Held)
        char, flags = seen.dtype.char, seen.flags
        if _dtypes.get(char) is seen.dtype and flags.c_contiguous and flags.writeable and flags.aligned:
            data: Any = seen.reshape(-1).view(np.uint8)
            data.held = held
            return rebuild_from_bytes, (PickleBuffer(data), char, seen.shape)
    return None


def reduce_array(a: Any) -> Any:
    held = weakref.ref(_owner(a))
    reduced = reduce_small(a)
    if reduced is None:
        reduced = _reduce(a)
        del held
        return reduced
    function, (data, *rest) = reduced
    return function, (bytearray(data), *rest)


def rebuild_from_bytes(data: bytearray, char: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rebuild a small array over its bytes."""
    dtype = np.dtype(char)
    if dtype.hasobject:
        raise ValueError("the message of an array is damaged: Python objects do not travel as bytes")
    return np.ndarray(shape, dtype, data)


def set_inline_limit(nbytes: int) -> None:
    """Set the size up to which arrays travel in the message."""
    global _inline_limit
    _inline_limit = nbytes


def get_inline_limit() -> int:
    return _inline_limit


def has_room(nbytes: int) -> bool:
    """Return whether an array of *nbytes* travels in the message; here the limit is for each array."""
    return nbytes <= _inline_limit


def own_nbytes(a: Any) -> int:
    """Return the bytes that `copy_own_bytes` needs."""
    return _pack(np.ndarray.view(a, np.ndarray)).data.nbytes


def copy_own_bytes(a: Any, memory: Any) -> tuple[Any, ...] | None:
    """Copy the array's own bytes into *memory*, and return their layout; None if their number is another one."""
    held = weakref.ref(_owner(a))
    seen = np.ndarray.view(a, np.ndarray)
    packed = _pack(seen)
    to = np.frombuffer(memory, np.uint8)
    if packed.data.nbytes != to.nbytes:
        return None
    to[:] = packed.data
    del held
    return seen.dtype, seen.shape, packed.offset, packed.strides, seen.flags.writeable


def held_view(a: Any) -> Any:
    """Return a plain view of the array, which NumPy does not resize as long as the view lives."""
    owner = _owner(a)
    held = weakref.ref(owner)
    seen = np.ndarray.view(a, np.ndarray)
    if not owner.flags.owndata:  # it is never resized
        return seen
    first, end = span(seen)
    memory = _raw(seen, first, end, held)
    return np.ndarray(seen.shape, seen.dtype, memory, -first, seen.strides)


def _owner(a: Any) -> Any:
    """Return the array that owns the memory of *a*."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


class _Packed(NamedTuple):
    """An array's own bytes, and the layout of the array in them."""

    data: np.ndarray[Any, Any]
    """The bytes to send: one-dimensional and contiguous, `np.uint8`."""
    offset: int
    """The place of element (0, 0, …) in `data`."""
    strides: tuple[int, ...]


def _pack(a: np.ndarray[Any, Any]) -> _Packed:
    """Return the bytes of *a* to send: a view if they are contiguous, a copy if there are gaps."""
    if a.flags.c_contiguous:  # the common case, and arrays without elements
        return _Packed(a.reshape(-1).view(np.uint8) if a.nbytes else _NOTHING, 0, a.strides)
    first, end = span(a)
    if end - first <= a.nbytes:
        return _Packed(_raw(a, first, end), -first, a.strides)

    # Walk every axis upwards and zero-stride axes only once, copy in memory order, then turn the axes back.
    upward = a[tuple(slice(None, 1) if s == 0 else slice(None, None, -1 if s < 0 else 1) for s in a.strides)]
    order = sorted(range(a.ndim), key=lambda axis: upward.strides[axis], reverse=True)
    dense = np.ascontiguousarray(upward.transpose(order))
    strides, offset = [0] * a.ndim, 0
    for axis, stride in zip(order, dense.strides, strict=True):
        if a.strides[axis] == 0:
            continue
        strides[axis] = stride if a.strides[axis] > 0 else -stride
        if a.strides[axis] < 0:
            offset += (a.shape[axis] - 1) * stride
    return _Packed(dense.reshape(-1).view(np.uint8), offset, tuple(strides))


_NOTHING = np.empty(0, np.uint8)


class _Bytes:
    """Raw memory for `np.asarray`: an address and the owners that keep it alive."""

    def __init__(self, address: int, nbytes: int, read_only: bool, owners: object) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (address, read_only)}
        self.owners = owners


def _raw(a: np.ndarray[Any, Any], first: int, end: int, held: Any = None) -> np.ndarray[Any, Any]:
    address, read_only = a.__array_interface__["data"]
    return np.asarray(_Bytes(address + first, end - first, read_only, (a, held)))


def get_handler() -> None:
    """Return None: NumPy keeps its own memory handler."""


def set_handler(handler: None) -> None:
    """Do nothing."""


def shared_handler() -> None:
    """Return None: no handler allocates in shared memory."""


def replace_default_handler(on: bool) -> None:
    """Do nothing."""


def block_at(a: Any) -> None:
    """Return None: NumPy has allocated no array in a block."""


class _Fields(ctypes.Structure):
    """PyArrayObject_fields of NumPy's header ndarraytypes.h, after the head of the object."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int),
        ("dimensions", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("descr", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("weakrefs", ctypes.c_void_p),
        ("buffer_info", ctypes.c_void_p),
        ("mem_handler", ctypes.c_void_p),
    )


_EXCHANGED = ("data", "dimensions", "strides", "base", "flags", "mem_handler")


def swap_memory(a: Any, b: Any) -> None:
    """Exchange the memory of two arrays of one shape, with its layout and its owner."""
    if a.shape != b.shape:
        raise ValueError("swap_memory needs two arrays of the same shape")
    fields = [_Fields.from_address(id(array) + object.__basicsize__) for array in (a, b)]
    for array, found in zip((a, b), fields, strict=True):
        if found.data != array.__array_interface__["data"][0] or found.nd != array.ndim:
            raise RuntimeError("this NumPy lays out its arrays in an unknown way, so none can be moved in place")
    for name in _EXCHANGED:
        first, second = (getattr(found, name) for found in fields)
        setattr(fields[0], name, second)
        setattr(fields[1], name, first)
