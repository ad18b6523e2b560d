"""DeviceArray: an array on a device, for every library with the CUDA array interface or DLPack."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from mp_cuda.arrays import dlpack
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.arrays.layout import is_contiguous, runs
from mp_cuda.arrays.memory import Allocation
from mp_cuda.driver import cuda_driver
from mp_cuda.driver.functions import Array, Received
from mp_cuda.driver.stream import LEGACY, as_stream, stream_number


class DeviceArray(Array):
    """
    An array on a CUDA device.

    It has no arithmetic; CuPy, numba, torch and others use its memory without a copy. You can send it to other
    processes on queues, through pipes and as an argument; it is the same memory there. `empty`, `from_host` and
    `as_device_array` make one.

    Parameters
    ----------
    ptr : int
        Address of the first element on the device; 0 if there is none.
    shape : tuple of int
        Lengths of the axes.
    dtype : DType
        The element type.
    device : int
        The ordinal of its device in this process.
    strides : tuple of int, default those of C order
        In bytes.
    readonly : bool
        Whether writing is forbidden.
    owner : object
        The object that owns the memory; the array keeps it alive.
    stream : int, default the legacy default stream
        The number of the stream that produces its content.

    Examples
    --------
    >>> a = mp_cuda.from_host(b"abcd", dtype="uint8")                            # doctest: +SKIP
    >>> a.copy_to_host()                                                         # doctest: +SKIP
    b'abcd'
    """

    __slots__ = ("__weakref__",)

    def _replace(self, **fields: Any) -> DeviceArray:
        """Return the same array with other *fields*, which are named as the constructor's parameters."""
        same: dict[str, Any] = {"ptr": self.ptr, "shape": self.shape, "dtype": self.dtype, "device": self.device}
        same |= {"strides": self.strides, "readonly": self.readonly, "owner": self._owner, "stream": self._stream}
        return DeviceArray(**(same | fields))

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def is_imported(self) -> bool:
        """Whether another process owns the memory."""
        return isinstance(self._owner, Received)

    @property
    def producer_alive(self) -> bool:
        """Whether the process that owns the memory is still running. After it ends, the content is undefined."""
        return not isinstance(self._owner, Received) or self._owner.owner_alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.typestr is None:
            raise AttributeError(f"the CUDA array interface has no type for {self.dtype}; use DLPack")
        interface: dict[str, Any] = {
            "shape": self.shape,
            "typestr": self.dtype.typestr,
            "data": (self.ptr, self.readonly),
            "version": 3,
            "strides": None if is_contiguous(self.shape, self.strides, self.dtype.itemsize) else self.strides,
            "stream": self._stream or LEGACY,
        }
        if self.dtype.descr is not None:
            interface["descr"] = [tuple(field) for field in self.dtype.descr]
        return interface

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"the array is on {self.__dlpack_device__()} and cannot be exported to {tuple(dl_device)}"
            )
        if copy:
            raise BufferError("a DeviceArray is exported without a copy; copy it in the library that takes it")
        if stream != -1:  # -1: the consumer does not want to wait
            self._make_wait(stream_number(stream))
        contents = dlpack.Contents(
            self.ptr, self.shape, self.strides, self.dtype, self.device, self.readonly, self._owner
        )
        return dlpack.capsule(contents, versioned=max_version is not None and tuple(max_version) >= (1, 0))

    def _make_wait(self, stream: int) -> None:
        # The legacy default stream waits for the sender of an array of another process.
        if (self._stream or LEGACY) != stream:
            order(self.device, self._stream or LEGACY, stream)

    def copy_to_host(self, out: Any = None, *, stream: Any = None) -> Any:
        """
        Copy the elements to the host, in C order.

        The copy is complete on return. It runs after the work given to *stream*.

        Parameters
        ----------
        out : writable buffer of `nbytes` bytes
            The destination; new `bytes` if None.
        stream : Stream, or a stream of any library, or its number
            The copy runs after its work; if None, the array's own stream, or else the legacy default stream.

        Returns
        -------
        bytes, or *out*

        Raises
        ------
        ValueError
            *out* is read-only or has another size.
        DriverError
            The driver reported an error.
        """
        target = memoryview(bytearray(self.nbytes)) if out is None else memoryview(out).cast("B")
        if target.readonly:
            raise ValueError("cannot copy into a read-only buffer")
        self._copy("cuMemcpyDtoHAsync", target, stream)
        return bytes(target) if out is None else out

    def copy_from_host(self, buffer: Any, *, stream: Any = None) -> None:
        """
        Copy bytes of the host into it, in C order. The copy is complete on return.

        Parameters
        ----------
        buffer : buffer of `nbytes` bytes
            The source.
        stream : Stream, or a stream of any library, or its number
            The copy runs after its work; if None, the array's own stream, or else the legacy default stream.

        Raises
        ------
        ValueError
            The sizes differ, or the array is read-only.
        DriverError
            The driver reported an error.
        """
        if self.readonly:
            raise ValueError("the array is read-only")
        self._copy("cuMemcpyHtoDAsync", memoryview(buffer).cast("B"), stream)

    def _copy(self, name: str, host: memoryview, stream: Any) -> None:
        if host.nbytes != self.nbytes:
            raise ValueError(f"the array has {self.nbytes} bytes and the buffer {host.nbytes}")
        if not self.nbytes:
            return
        with cuda_driver.guard(self.device):
            on = as_stream(self._stream if stream is None else stream)
            at = 0
            for offset, size in runs(self.shape, self.strides, self.dtype.itemsize):
                ends = host[at : at + size], self.ptr + offset
                cuda_driver.call(name, *(ends if name == "cuMemcpyDtoHAsync" else reversed(ends)), size, on)
                at += size
            cuda_driver.call("cuStreamSynchronize", on)

    def __repr__(self) -> str:
        origin = "imported, " if self.is_imported else ""
        return f"<DeviceArray {self.shape} {self.dtype}, {origin}device {self.device}, {self.ptr:#x}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DeviceArray can be sent to another process (on a queue, through a pipe, as an argument) but cannot be "
            "pickled for storage; copy_to_host() makes a copy"
        )


def order(device: int, before: int, after: int) -> None:
    """Make the stream *after* wait for the work given to *before* so far."""
    with cuda_driver.guard(device):
        event = cuda_driver.call("cuEventCreate", 2)
        try:
            cuda_driver.call("cuEventRecord", event, as_stream(before))
            cuda_driver.call("cuStreamWaitEvent", as_stream(after), event, 0)
        finally:
            cuda_driver.call("cuEventDestroy", event)  # the driver keeps it until the wait is over


def empty(shape: int | tuple[int, ...], dtype: Any = "<f4", *, device: int | None = None) -> DeviceArray:
    """
    Allocate an array of undefined content on a device, in C order.

    Its memory comes from the driver itself, so you can always send it.

    Parameters
    ----------
    shape : int or tuple of int
        Lengths of the axes.
    dtype : str, NumPy dtype or DType, default float32
        The element type.
    device : int
        An ordinal; the current device if None.

    Returns
    -------
    DeviceArray
        Of *shape*.

    Raises
    ------
    DeviceMemoryError
        The device has not enough free memory.
    TypeError
        *dtype* is not an element type.
    ValueError
        A length is negative.
    MpCudaError
        There is no driver or no such device.

    Examples
    --------
    >>> mp_cuda.empty((2, 3), "float32").nbytes                                  # doctest: +SKIP
    24
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"an array cannot have the shape {shape}; lengths are 0 or more")
    dtype = dtype_of(dtype)
    device = cuda_driver.current_device() if device is None else device
    nbytes = prod(shape) * dtype.itemsize
    owner = Allocation(nbytes, device) if nbytes else None
    return DeviceArray(owner.ptr if owner else 0, shape, dtype, device, owner=owner)


def from_host(
    buffer: Any, shape: int | tuple[int, ...] | None = None, dtype: Any = None, *, device: int | None = None
) -> DeviceArray:
    """
    Copy a buffer into a new array on a device.

    Parameters
    ----------
    buffer : buffer
        A NumPy array, `bytes`, or any object with the buffer protocol.
    shape : int or tuple of int, default the buffer's own
        Lengths of the axes.
    dtype : str, NumPy dtype or DType, default the buffer's own
        The element type; uint8 for `bytes`.
    device : int
        An ordinal; the current device if None.

    Returns
    -------
    DeviceArray
        In C order.

    Raises
    ------
    ValueError
        The sizes do not agree.
    TypeError
        The buffer does not give its dtype.
    DeviceMemoryError, MpCudaError
        As for `empty`.

    Examples
    --------
    >>> mp_cuda.from_host(b"abcd", (2, 2), "uint8").shape                        # doctest: +SKIP
    (2, 2)
    """
    view = memoryview(buffer)
    if dtype is None:
        given = getattr(buffer, "dtype", None)
        dtype = given if given is not None else dtype_of("|u1") if view.format == "B" else None
        if dtype is None:
            raise TypeError(f"give a dtype: a buffer of format {view.format!r} does not have one")
    dtype = dtype_of(dtype)
    if shape is None:
        own = tuple(view.shape or ())
        shape = own if view.itemsize == dtype.itemsize else (view.nbytes // dtype.itemsize,)
    flat = view if view.c_contiguous else memoryview(view.tobytes())
    array = empty(shape, dtype, device=device)
    array.copy_from_host(flat)
    return array
