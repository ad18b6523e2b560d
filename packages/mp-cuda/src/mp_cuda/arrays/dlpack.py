"""DLPack: make and read its capsules with ctypes. The layout is public and small."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mp_cuda.arrays.dtype import DType, dtype_of
from mp_cuda.arrays.layout import row_major

CUDA, HOST, MANAGED = 2, 3, 13
READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _api))

# Exported tensors, by the address of their structure, until the consumer calls the deleter.
_exported: dict[int, tuple[Any, ...]] = {}


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _unconsumed(capsule_address: int) -> None:
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid(capsule_address, name):
            _exported.pop(_pointer(capsule_address, name), None)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_c_delete = _DELETER(_delete)
_c_unconsumed = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_unconsumed)


class Contents(NamedTuple):
    """The contents of a capsule; *strides* in bytes, and *owner* keeps the memory."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int
    readonly: bool
    owner: Any


def capsule(array: Contents, *, versioned: bool) -> Any:
    """Wrap *array* in a capsule, which keeps its memory until the consumer is done."""
    size = array.dtype.itemsize
    if any(step % size for step in array.strides):
        raise BufferError(
            f"DLPack counts strides in elements of {size} bytes, and {array.strides} are not multiples of that"
        )
    if array.readonly and not versioned:
        raise BufferError("a read-only array needs a consumer of DLPack 1.0 or later")
    n = len(array.shape)
    shape = (ctypes.c_int64 * n)(*array.shape)
    strides = (ctypes.c_int64 * n)(*(step // size for step in array.strides))
    dtype = array.dtype
    tensor = _Tensor(array.ptr, CUDA, array.device, n, dtype.code, dtype.bits, dtype.lanes, shape, strides, 0)
    deleter = ctypes.cast(_c_delete, ctypes.c_void_p)
    managed: Any
    if versioned:
        managed = _Versioned(1, 0, None, deleter, READ_ONLY if array.readonly else 0, tensor)
    else:
        managed = _Managed(tensor, None, deleter)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, array.owner)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    return _new(address, name, ctypes.cast(_c_unconsumed, ctypes.c_void_p))


class _CapsuleOwner:
    """Call the deleter of a consumed capsule after the last array on it is gone."""

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address, self._deleter = address, deleter

    def __del__(self, make: Any = _DELETER) -> None:
        if self._deleter:
            make(self._deleter)(self._address)


# The capsule points to its name, so these must stay alive.
_USED = {name: b"used_" + name for name in (b"dltensor", b"dltensor_versioned")}


def read(given: Any) -> Contents:
    """Consume a capsule that `__dlpack__` returned. `BufferError` if it is not one or was consumed before."""
    at = id(given)
    managed: Any
    for name, structure in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Managed)):
        if _is_valid(at, name):
            address = _pointer(at, name)
            managed = structure.from_address(address)
            break
    else:
        raise BufferError(f"{given!r} is not a DLPack capsule, or it was consumed before")
    readonly = bool(structure is _Versioned and managed.flags & READ_ONLY)
    _rename(at, _USED[name])
    owner = _CapsuleOwner(address, managed.deleter)
    tensor = managed.tensor
    dtype = dtype_of((tensor.code, tensor.bits, tensor.lanes))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    else:
        strides = row_major(shape, dtype.itemsize)
    ptr = (tensor.data or 0) + tensor.byte_offset
    return Contents(ptr, shape, strides, dtype, tensor.device_id, readonly, owner)
