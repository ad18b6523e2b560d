"""Reading anybody's device array: by the CUDA array interface, or by DLPack."""

from __future__ import annotations

from typing import Any

from mp_cuda import adapters, dlpack, driver
from mp_cuda.array import DeviceArray
from mp_cuda.dtype import dtype_of
from mp_cuda.errors import DriverError, NotShareableError
from mp_cuda.pointer import NotThere
from mp_cuda.stream import LEGACY, stream_number

__all__ = ["as_device_array"]

DEVICE_ORDINAL = 9


def as_device_array(obj: Any, *, stream: Any = None) -> DeviceArray:
    """
    An array of any CUDA library as a `DeviceArray` on the same memory.

    Parameters
    ----------
    obj : array
        With ``__cuda_array_interface__`` or ``__dlpack__``. It is kept alive by the result.
    stream : Stream, or a stream of any library, or its number
        Where its content is produced, if *obj* does not say so itself.

    Returns
    -------
    DeviceArray
        Of *obj*'s shape, strides and dtype.

    Raises
    ------
    TypeError
        It is no device array.
    NotShareableError
        Its memory is not that of a device (pinned or managed memory).

    Examples
    --------
    >>> mp_cuda.as_device_array(mp_cuda.empty(3)).shape                          # doctest: +SKIP
    (3,)
    """
    if isinstance(obj, DeviceArray):
        array = obj
    elif (adapter := adapters.of(obj)) is not None:
        array = adapter.view(obj)
    elif hasattr(obj, "__cuda_array_interface__"):
        array = by_interface(obj)
    elif hasattr(obj, "__dlpack__"):
        array = by_dlpack(obj)
    else:
        raise TypeError(
            f"{type(obj).__name__} is no device array: it has neither __cuda_array_interface__ nor __dlpack__"
        )
    if stream is None:
        return array
    return DeviceArray(
        array.ptr,
        array.shape,
        array.dtype,
        array.device,
        strides=array.strides,
        readonly=array.readonly,
        owner=array._owner,
        stream=stream_number(stream),
    )


def by_interface(obj: Any, *, owner: Any = None, device: int | None = None, stream: int | None = None) -> DeviceArray:
    """*obj* by its `__cuda_array_interface__`, versions 2 and 3."""
    interface = obj.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise NotShareableError("the array has a mask, which cannot be sent; send its data and its mask by themselves")
    given = interface.get("stream")
    if given == 0:
        raise ValueError("the array says that its stream is 0, which the CUDA array interface forbids")
    if given is not None:
        stream = int(given)
    ptr, readonly = interface["data"]
    descr = interface.get("descr")
    plain = descr is None or (len(descr) == 1 and descr[0][0] == "")
    dtype = dtype_of(interface["typestr"], None if plain else descr)
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    if device is None:
        device = _device_of(ptr) if ptr else driver.current_device()
    return DeviceArray(
        ptr or 0,
        shape,
        dtype,
        device,
        strides=None if strides is None else tuple(int(s) for s in strides),
        readonly=bool(readonly),
        owner=obj if owner is None else owner,
        stream=stream,
    )


def by_dlpack(obj: Any) -> DeviceArray:
    """*obj* by `__dlpack__`: it makes the legacy default stream wait for whatever produces its content."""
    kind, device = obj.__dlpack_device__()
    if kind == dlpack.HOST:
        raise NotShareableError(
            "the array is in pinned memory of the host: send it as a NumPy array, or copy it to a device"
        )
    if kind == dlpack.MANAGED:
        raise NotShareableError(
            "the array is in managed memory, which no other process can open: copy it into memory of a device, or "
            "share(..., fallback='copy')"
        )
    if kind != dlpack.CUDA:
        raise TypeError(
            f"{type(obj).__name__} is on a device of DLPack's type {kind}, which is not CUDA ({dlpack.CUDA})"
        )
    try:
        given = obj.__dlpack__(stream=LEGACY, max_version=(1, 0))
    except TypeError:  # an exporter from before versions
        given = obj.__dlpack__(stream=LEGACY)
    ptr, shape, strides, dtype, device, readonly, keeper = dlpack.read(given)
    return DeviceArray(
        ptr, shape, dtype, device, strides=strides, readonly=readonly, owner=(keeper, obj), stream=LEGACY
    )


def _device_of(ptr: int) -> int:
    driver.bindings()
    attribute = driver.bindings().CUpointer_attribute(DEVICE_ORDINAL)
    try:
        with driver.guard(driver.current_device()):
            return int(driver.call("cuPointerGetAttribute", attribute, ptr))
    except DriverError:
        raise NotThere(f"{ptr:#x} is no memory that CUDA knows; copy it with from_host()") from None
