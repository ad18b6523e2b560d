"""Protocols: read an array of any library by its CUDA array interface or by DLPack."""

from __future__ import annotations

from typing import Any

from mp_cuda.arrays import dlpack
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.driver import cuda_driver
from mp_cuda.driver.stream import LEGACY
from mp_cuda.errors import DriverError, NotShareableError, UnknownPointerError

DEVICE_ORDINAL = 9


def by_interface(obj: Any, *, device: int | None = None, stream: int | None = None) -> DeviceArray:
    """Read *obj* by its `__cuda_array_interface__`, version 2 or 3."""
    interface = obj.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise NotShareableError("the array has a mask, which cannot be sent; send its data and its mask separately")
    given = interface.get("stream")
    if given == 0:
        raise ValueError("the array gives its stream as 0, which the CUDA array interface forbids")
    if given is not None:
        stream = int(given)
    ptr, readonly = interface["data"]
    descr = interface.get("descr")
    unstructured = descr is None or (len(descr) == 1 and descr[0][0] == "")
    dtype = dtype_of(interface["typestr"], None if unstructured else descr)
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    if device is None:
        device = _device_of(ptr) if ptr else cuda_driver.current_device()
    return DeviceArray(
        ptr or 0,
        shape,
        dtype,
        device,
        strides=None if strides is None else tuple(int(s) for s in strides),
        readonly=bool(readonly),
        owner=obj,
        stream=stream,
    )


def by_dlpack(obj: Any) -> DeviceArray:
    """Read *obj* by `__dlpack__`, which makes the legacy default stream wait for the work that produces its content."""
    kind, device = obj.__dlpack_device__()
    if kind == dlpack.HOST:
        raise NotShareableError(
            "the array is in pinned memory of the host: send it as a NumPy array, or copy it to a device"
        )
    if kind == dlpack.MANAGED:
        raise NotShareableError(
            "the array is in managed memory, which no other process can open: copy it into memory of a device, or use "
            "share(..., fallback='copy')"
        )
    if kind != dlpack.CUDA:
        raise TypeError(
            f"{type(obj).__name__} is on a device of DLPack's type {kind}, which is not CUDA ({dlpack.CUDA})"
        )
    try:
        given = obj.__dlpack__(stream=LEGACY, max_version=(1, 0))
    except TypeError:  # an exporter from before DLPack 1.0
        given = obj.__dlpack__(stream=LEGACY)
    ptr, shape, strides, dtype, device, readonly, capsule_owner = dlpack.read(given)
    return DeviceArray(
        ptr, shape, dtype, device, strides=strides, readonly=readonly, owner=(capsule_owner, obj), stream=LEGACY
    )


def _device_of(ptr: int) -> int:
    attribute = cuda_driver.bindings().CUpointer_attribute(DEVICE_ORDINAL)
    try:
        with cuda_driver.guard(cuda_driver.current_device()):
            return int(cuda_driver.call("cuPointerGetAttribute", attribute, ptr))
    except DriverError:
        raise UnknownPointerError(
            f"{ptr:#x} is not memory that CUDA knows; copy it to a device with from_host()"
        ) from None
