"""Streams: mp_cuda's own, and those of any library as a number."""

from __future__ import annotations

import functools
import threading
from typing import Any

from mp_cuda.driver import cuda_driver, finalizer_queue
from mp_cuda.driver.functions import set_hooks

LEGACY = 1
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")  # torch, CuPy, numba


def stream_number(stream: Any) -> int:
    """
    Return the driver's number of *stream*: None (the legacy default stream), a number, or a stream of any library.

    >>> stream_number(None), stream_number(2)
    (1, 2)
    """
    if stream is None:
        return LEGACY
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1]) or LEGACY
    for name in _ATTRIBUTES:
        if hasattr(stream, name):
            value = getattr(stream, name)
            return int(getattr(value, "value", value) or 0) or LEGACY
    try:
        number = int(stream)
    except (TypeError, ValueError):
        raise TypeError(f"{stream!r} is not a stream: give None, a number or a stream of a CUDA library") from None
    if number < 0:
        raise ValueError(f"a stream number is 0 or more, not {number}")
    return number or LEGACY


def as_stream(stream: Any) -> Any:
    return _of_number(stream_number(stream))


@functools.lru_cache(64)
def _of_number(number: int) -> Any:
    return cuda_driver.bindings().CUstream(number)


def in_feeder() -> bool:
    """
    Return whether this is the thread in which a `Queue` pickles.

    The stream of the thread that called `put` is unknown there.
    """
    return threading.current_thread().name == "QueueFeederThread"


set_hooks(in_feeder=in_feeder)


def _destroy(device: int, streams: list[Any]) -> None:
    for stream in streams:
        with cuda_driver.guard(device):
            cuda_driver.call("cuStreamDestroy", stream)


class Stream(finalizer_queue.Finalized):
    """
    A stream on a device.

    It has ``__cuda_stream__``, so other libraries accept it, as do all *stream* parameters of mp_cuda.

    Parameters
    ----------
    device : int
        An ordinal; the current device if None.
    non_blocking : bool
        Run without waiting for the legacy default stream.

    Raises
    ------
    MpCudaError
        There is no driver or no such device.

    Examples
    --------
    >>> stream = mp_cuda.Stream()                                                # doctest: +SKIP
    """

    _owner: Any = None

    def __init__(self, device: int | None = None, *, non_blocking: bool = True) -> None:
        self.device = cuda_driver.current_device() if device is None else device
        with cuda_driver.guard(self.device):
            self._stream = cuda_driver.call("cuStreamCreate", 1 if non_blocking else 0)
        self.ptr = int(self._stream)
        """The stream's number in the driver."""
        self._leave(self.device, _destroy, self._stream)

    @classmethod
    def from_external(cls, stream: Any, device: int | None = None) -> Stream:
        """Wrap a stream of another library, or its number. Its maker destroys it, after this object is gone."""
        self = cls.__new__(cls)
        self.device = cuda_driver.current_device() if device is None else device
        self.ptr = stream_number(stream)
        self._stream = cuda_driver.bindings().CUstream(self.ptr)
        self._owner = stream
        return self

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def wait_event(self, event: Any) -> None:
        """Make later work on this stream wait for *event* (an `Event`)."""
        event.wait(self)

    def synchronize(self) -> None:
        """Wait until all work on this stream is done. Other threads run meanwhile."""
        with cuda_driver.guard(self.device):
            cuda_driver.call("cuStreamSynchronize", self._stream)

    def query(self) -> bool:
        """Tell whether all work on this stream is done."""
        with cuda_driver.guard(self.device):
            return cuda_driver.is_done("cuStreamQuery", self._stream)

    def __repr__(self) -> str:
        return f"<Stream {self.ptr:#x} of device {self.device}>"
