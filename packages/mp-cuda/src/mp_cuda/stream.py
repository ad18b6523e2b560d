"""Streams: ours, and those of anybody as a number."""

from __future__ import annotations

import threading
from typing import Any

from mp_cuda import driver, janitor
from mp_cuda.errors import DriverError

__all__ = ["LEGACY", "Stream", "as_stream", "in_feeder", "stream_number"]

LEGACY = 1
NOT_READY = 600
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")  # of torch, of CuPy, of numba


def stream_number(stream: Any) -> int:
    """
    The driver's number of *stream*: None (the legacy default stream), a number, or a stream of any library.

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
        raise TypeError(f"{stream!r} is no stream: give None, a number or a stream of a CUDA library") from None
    if number < 0:
        raise ValueError(f"a stream cannot be {number}; its number is 0 or more")
    return number or LEGACY


def as_stream(stream: Any) -> Any:
    """*stream* as the bindings want it."""
    return driver.bindings().CUstream(stream_number(stream))


def in_feeder() -> bool:
    """Are we in the thread in which a `Queue` pickles, where the stream of whoever called `put` is not known?"""
    return threading.current_thread().name == "QueueFeederThread"


class _Destroy:
    after_work = False

    def __init__(self, device: int, stream: Any) -> None:
        self.device, self.stream = device, stream

    def finish(self) -> None:
        with driver.guard(self.device):
            driver.call("cuStreamDestroy", self.stream)


class Stream:
    """
    A stream on a device.

    Anything with ``__cuda_stream__`` accepts it, and it can be given wherever mp_cuda asks for a stream.

    Parameters
    ----------
    device : int
        An ordinal; the current device if None.
    non_blocking : bool
        Does it not wait for the legacy default stream?

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
        self.device = driver.current_device() if device is None else device
        with driver.guard(self.device):
            self._stream = driver.call("cuStreamCreate", 1 if non_blocking else 0)
        self.ptr = int(self._stream)
        """The driver's number of it."""
        self._chore: _Destroy | None = _Destroy(self.device, self._stream)
        janitor.expect()

    @classmethod
    def from_external(cls, stream: Any, device: int | None = None) -> Stream:
        """A stream of another library or its number; whoever made it destroys it, not before this object has gone."""
        self = cls.__new__(cls)
        self.device = driver.current_device() if device is None else device
        self.ptr = stream_number(stream)
        self._stream = driver.bindings().CUstream(self.ptr)
        self._chore = None
        self._owner = stream
        return self

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def wait_event(self, event: Any) -> None:
        """Work given to this stream from now on begins after *event* (an `Event`)."""
        event.wait(self)

    def synchronize(self) -> None:
        """Wait until everything given to this stream is done. Other threads run meanwhile."""
        with driver.guard(self.device):
            driver.call("cuStreamSynchronize", self._stream)

    def query(self) -> bool:
        """Is everything given to this stream done?"""
        try:
            with driver.guard(self.device):
                driver.call("cuStreamQuery", self._stream)
        except DriverError as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    def __repr__(self) -> str:
        return f"<Stream {self.ptr:#x} of device {self.device}>"

    def __del__(self, drop: Any = janitor.drop) -> None:
        chore = getattr(self, "_chore", None)
        if chore is not None:
            drop(chore)
