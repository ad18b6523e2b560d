"""Conversion: an array of any CUDA library as a `DeviceArray`, by its adapter or by a protocol."""

from __future__ import annotations

from typing import Any

from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.protocols import by_dlpack, by_interface
from mp_cuda.driver.stream import stream_number
from mp_cuda.libraries import adapters


def as_device_array(obj: Any, *, stream: Any = None) -> DeviceArray:
    """
    View an array of any CUDA library as a `DeviceArray` on the same memory.

    Parameters
    ----------
    obj : array
        With ``__cuda_array_interface__`` or ``__dlpack__``. The result keeps it alive.
    stream : Stream, or a stream of any library, or its number
        The stream that produces the content; if None, the one that *obj* names.

    Returns
    -------
    DeviceArray
        Of *obj*'s shape, strides and dtype.

    Raises
    ------
    TypeError
        *obj* is not a device array.
    NotShareableError
        Its memory is not device memory (pinned or managed memory).

    Examples
    --------
    >>> mp_cuda.as_device_array(mp_cuda.empty(3)).shape                          # doctest: +SKIP
    (3,)
    """
    if isinstance(obj, DeviceArray):
        array = obj
    elif (kind := adapters.kind_of(obj)) is not None:
        array = adapters.by_kind(kind).view(obj)
    elif hasattr(obj, "__cuda_array_interface__"):
        array = by_interface(obj)
    elif hasattr(obj, "__dlpack__"):
        array = by_dlpack(obj)
    else:
        raise TypeError(
            f"{type(obj).__name__} is not a device array: it has neither __cuda_array_interface__ nor __dlpack__"
        )
    return array if stream is None else array._replace(stream=stream_number(stream))
