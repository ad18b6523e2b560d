"""Reducers: turn an array of any kind into a message, and the message into an array of the same kind."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_cuda import adapters, cuda_driver, finalizer_queue
from mp_cuda.array import DeviceArray
from mp_cuda.conversion import as_device_array
from mp_cuda.errors import StaleHandleError
from mp_cuda.exports import exports
from mp_cuda.imports import open_ready, receive, receive_reference
from mp_cuda.messages import message_of
from mp_cuda.policy import Fallback
from mp_cuda.process_identity import me
from mp_cuda.stream import LEGACY
from mp_cuda.wire import Message, pack, unpack

__all__ = ["Shared", "rebuild_array", "reduce_array", "share"]


def reduce_array(obj: Any) -> Any:
    """Reduce a device array for one receiver."""
    kind = adapters.OWN if isinstance(obj, DeviceArray) else adapters.kind_of(obj) or adapters.OWN
    return rebuild_array, pack(message_of(as_device_array(obj), kind))


def rebuild_array(*packed: Any) -> Any:
    """
    Rebuild the array of a message: of the kind that was sent if its library can be imported, else a `DeviceArray`.

    Raises `ValueError` if the message is damaged, and what `mp_cuda.imports.receive` raises.
    """
    message = unpack(packed)
    array = _array(message)
    if message.kind == adapters.OWN:
        return array
    try:
        return adapters.by_kind(message.kind).rebuild(array)
    except ImportError:
        return array


def _array(message: Message) -> DeviceArray:
    shape, dtype, memory = message.shape, message.dtype, message.memory
    if memory is None:
        # An empty array needs no device; name the sender's if there is one.
        device = cuda_driver.ordinal_of(message.device) if message.device else 0
        return DeviceArray(0, shape, dtype, device, strides=message.strides, readonly=message.readonly)
    if memory.owner == me():
        return _own_memory(message)
    received = receive(message)
    return DeviceArray(
        received.mapping.ptr + message.offset,
        shape,
        dtype,
        received.mapping.device,
        strides=message.strides,
        readonly=message.readonly,
        owner=received,
    )


def _own_memory(message: Message) -> DeviceArray:
    """Rebuild an array in the process that owns its memory. Nothing is opened."""
    memory, ready = message.memory, message.ready
    assert memory is not None
    export = exports.get(memory.serial)
    # Retain the owner before releasing the reference: the export drops it with the last reference.
    owner, event = (export.owner, export.event) if export is not None else (None, None)
    # Also wait for the event first: afterwards it may be recorded again.
    if event is not None and ready is not None and ready.owner == me():
        event.wait_on(LEGACY)
    references = [receive_reference(message.offers)]
    try:
        if export is None or owner is None:
            raise StaleHandleError("this process sent the array of this message and has released it since")
        if ready is not None and ready.owner != me():
            references.append(receive_reference(ready.offers))
            imported = open_ready(export.device, ready)
            if imported is not None:
                imported.wait_on(LEGACY)
    finally:
        for reference in references:
            reference.release()
    return DeviceArray(
        export.base + message.offset,
        message.shape,
        message.dtype,
        export.device,
        strides=message.strides,
        readonly=message.readonly,
        owner=owner,
    )


class Shared:
    """
    An array that was exported when `share` was called.

    Pickle it once, for the number of receivers given to `share`. It unpickles to an array of the kind that was shared.
    Dropping it without pickling it revokes the export. Only `share` makes one.

    Examples
    --------
    >>> shared = mp_cuda.share(mp_cuda.empty(3))                                 # doctest: +SKIP
    >>> queue.put(shared)                                                        # doctest: +SKIP
    """

    __slots__ = ("__weakref__", "_message", "_pickled")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._pickled = False
        finalizer_queue.expect()

    def __reduce__(self) -> Any:
        self._pickled = True
        return rebuild_array, pack(self._message)

    def __del__(self, put: Any = finalizer_queue.put) -> None:
        if hasattr(self, "_message"):
            put(_Revoke(None if self._pickled else self._message))


class _Revoke:
    after_work = False
    device = 0

    def __init__(self, message: Message | None) -> None:
        self.message = message

    def run(self) -> None:
        if self.message is None:
            return
        offers = self.message.offers + (self.message.ready.offers if self.message.ready else ())
        for offer in offers:
            try:
                receive_reference((offer,)).release()
            except StaleHandleError:
                pass  # revoked already


def share(obj: Any, *, stream: Any = None, receivers: int = 1, fallback: Fallback | None = None) -> Shared:
    """
    Export a device array of any library now, in this thread, ready to be sent.

    The receivers wait for the work that its stream was given so far. Use it with a ``Queue``, which pickles later in
    another thread, and for work on your own streams.

    Parameters
    ----------
    obj : array
        Any array that `as_device_array` takes.
    stream : Stream, or a stream of any library, or its number
        The stream that produces the content; if None, the array's own stream, or else the legacy default stream.
    receivers : int
        How many processes will receive it.
    fallback : {"error", "copy"}
        Refuse memory that cannot be shared, or copy it; if None, as `set_policy` says.

    Returns
    -------
    Shared
        Send it once.

    Raises
    ------
    NotShareableError
        Another process cannot open its memory.
    TypeError
        *obj* is not a device array.

    Examples
    --------
    >>> queue.put(mp_cuda.share(array, stream=stream))                           # doctest: +SKIP
    """
    kind = adapters.OWN if isinstance(obj, DeviceArray) else adapters.kind_of(obj) or adapters.OWN
    array = as_device_array(obj, stream=stream)
    return Shared(message_of(array, kind, receivers=receivers, fallback=fallback))


ForkingPickler.register(DeviceArray, reduce_array)
