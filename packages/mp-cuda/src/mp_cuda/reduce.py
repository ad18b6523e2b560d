"""The reducers: from an array of any kind to a message, and from the message to an array of the same kind."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_cuda import adapters, driver, janitor
from mp_cuda.array import DeviceArray
from mp_cuda.errors import StaleHandleError
from mp_cuda.export import exports, message_of
from mp_cuda.interface import as_device_array
from mp_cuda.opened import claim_any, open_ready, receive
from mp_cuda.policy import Fallback
from mp_cuda.process import me
from mp_cuda.stream import LEGACY
from mp_cuda.wire import Message, pack, unpack

__all__ = ["Shared", "rebuild_array", "reduce_array", "share"]


def reduce_array(obj: Any) -> Any:
    """The pickle of a device array, for one receiver."""
    kind = adapters.OWN if isinstance(obj, DeviceArray) else adapters.kind_of(obj) or adapters.OWN
    return rebuild_array, pack(message_of(as_device_array(obj), kind))


def rebuild_array(*packed: Any) -> Any:
    """
    The array that a message speaks of, of the kind that was sent when its library can be imported, else a
    `DeviceArray`.

    Raises `ValueError` when the message is damaged, and what `mp_cuda.opened.receive` raises.
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
        # Nothing is on no device; it says one that is here, if it can.
        device = driver.ordinal_of(message.device) if message.device else 0
        return DeviceArray(0, shape, dtype, device, strides=message.strides, readonly=message.readonly)
    if memory.owner == me():
        return _at_home(message)
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


def _at_home(message: Message) -> DeviceArray:
    """Received in the process that owns it, it is the same memory: nothing is opened."""
    memory, ready = message.memory, message.ready
    assert memory is not None
    export = exports.get(memory.serial)
    # The owner is held before the claim goes: with the last claim, the export lets go of it.
    owner, signal = (export.owner, export.signal) if export is not None else (None, None)
    # So is the event waited for: then it may be used again.
    if signal is not None and ready is not None and ready.owner == me():
        signal.wait_on(LEGACY)
    claims = [claim_any(message.offers)]
    try:
        if export is None or owner is None:
            raise StaleHandleError("the array of this message was let go by this process, which had sent it")
        if ready is not None and ready.owner != me():
            claims.append(claim_any(ready.offers))
            opened = open_ready(export.device, ready)
            if opened is not None:
                opened.wait_on(LEGACY)
    finally:
        for claim in claims:
            claim.release()
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

    Pickle it once, for as many receivers as were asked for. It unpickles to an array of the kind that was shared.
    When it is dropped without having been pickled, it is taken back. Only `share` makes one.

    Examples
    --------
    >>> shared = mp_cuda.share(mp_cuda.empty(3))                                 # doctest: +SKIP
    >>> queue.put(shared)                                                        # doctest: +SKIP
    """

    __slots__ = ("__weakref__", "_message", "_pickled")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._pickled = False
        janitor.expect()

    def __reduce__(self) -> Any:
        self._pickled = True
        return rebuild_array, pack(self._message)

    def __del__(self, drop: Any = janitor.drop) -> None:
        if hasattr(self, "_message"):
            drop(_TakeBack(None if self._pickled else self._message))


class _TakeBack:
    after_work = False
    device = 0

    def __init__(self, message: Message | None) -> None:
        self.message = message

    def finish(self) -> None:
        if self.message is None:
            return
        offers = self.message.offers + (self.message.ready.offers if self.message.ready else ())
        for offer in offers:
            try:
                claim_any((offer,)).release()
            except StaleHandleError:
                pass  # taken back already


def share(obj: Any, *, stream: Any = None, receivers: int = 1, fallback: Fallback | None = None) -> Shared:
    """
    A device array of any library, exported now and in this thread, ready to be sent.

    What its stream was given so far is waited for by the receivers. Use it with a ``Queue``, which pickles later and in
    another thread, and for work in streams of your own.

    Parameters
    ----------
    obj : array
        What `as_device_array` takes.
    stream : Stream, or a stream of any library, or its number
        Where its content is produced; the array's own stream, or the legacy default stream, if None.
    receivers : int
        How many processes will receive it.
    fallback : {"error", "copy"}
        Refuse memory that cannot be shared, or copy it; what `set_policy` has set if None.

    Returns
    -------
    Shared
        To be sent once.

    Raises
    ------
    NotShareableError
        Its memory cannot be opened by another process.
    TypeError
        It is no device array.

    Examples
    --------
    >>> queue.put(mp_cuda.share(array, stream=stream))                           # doctest: +SKIP
    """
    kind = adapters.OWN if isinstance(obj, DeviceArray) else adapters.kind_of(obj) or adapters.OWN
    array = as_device_array(obj, stream=stream)
    return Shared(message_of(array, kind, receivers=receivers, fallback=fallback))


ForkingPickler.register(DeviceArray, reduce_array)
