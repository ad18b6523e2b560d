"""Reducers: turn an array of any kind into a message, and the message into an array of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_core import pickling
from mp_core.native import by_value
from mp_cuda import adapters, finalizer_queue
from mp_cuda.array import DeviceArray
from mp_cuda.conversion import as_device_array
from mp_cuda.dtype import packed, unpacked
from mp_cuda.imports import Delivery, receive_memory, wait_ready
from mp_cuda.messages import Described, Outgoing, described, outgoing
from mp_cuda.policy import Fallback
from mp_cuda.stream import stream_number
from mp_cuda.wire import ALL, VERSION, Memory, Ready

__all__ = ["Shared", "rebuild_array", "reduce_array", "share"]


def reduce_array(obj: Any) -> Any:
    """Reduce a device array for one receiver."""
    kind, array, extra, in_use = _taken_apart(obj)
    if not array.nbytes:
        return _reduce_empty(kind, array, extra)
    message, is_alone = outgoing()
    if not is_alone:
        return _call(kind, array, extra, described(array, message, in_use))
    try:
        call = _call(kind, array, extra, described(array, message, in_use))
        message.record()
    except BaseException:
        message.drop()
        raise
    return call


def _taken_apart(obj: Any, stream: Any = None) -> tuple[str, DeviceArray, Any, Callable[[Any], bool] | None]:
    """Return (its kind, an array of the memory to send, what else its adapter needs, whether its memory is in use)."""
    kind = None if isinstance(obj, DeviceArray) else adapters.kind_of(obj)
    if kind is None:
        return adapters.OWN, as_device_array(obj, stream=stream), None, None
    adapter = adapters.by_kind(kind)
    array, extra = adapter.taken_apart(obj)
    if stream is not None:
        array = array._replace(stream=stream_number(stream))
    return kind, array, extra, getattr(adapter, "in_use", None)


def _call(kind: str, array: DeviceArray, extra: Any, part: Described) -> Any:
    leases, memory, ready, number, offset = part
    lease = leases[0] if len(leases) == 1 else leases
    return rebuild_array, (VERSION, lease, memory, ready, number, offset, kind, *_layout(array), extra)


def _layout(array: DeviceArray) -> tuple[Any, ...]:
    is_plain = len(array.shape) == 1 and array.strides[0] == array.dtype.itemsize  # what most long messages have
    return array.shape, None if is_plain else array.strides, packed(array.dtype), array.readonly


def _reduce_empty(kind: str, array: DeviceArray, extra: Any) -> Any:
    # An empty array needs no device.
    return rebuild_array, (VERSION, (), None, None, 0, 0, kind, *_layout(array), extra)


def rebuild_array(*parts: Any) -> Any:
    """
    Rebuild the array of a message: of the kind that was sent if its library can be imported, else a `DeviceArray`.

    Raises `ValueError` if the message is damaged, and what `mp_cuda.imports.receive_memory` raises.
    """
    try:
        version, leases, memory, ready, number, offset, kind, shape, strides, dtype, readonly, extra = parts
        if version != VERSION:
            raise ValueError(f"version {version} instead of {VERSION}; both processes need the same mp-cuda")
    except (TypeError, ValueError) as error:
        raise ValueError(f"the message of a device array is damaged: {error}") from None
    if memory is None:
        array = DeviceArray(0, shape, unpacked(dtype), 0, strides=strides, readonly=readonly)
    else:
        owner, base, device = _opened(leases, memory, ready, number)
        array = DeviceArray(
            base + offset, shape, unpacked(dtype), device, strides=strides, readonly=readonly, owner=owner
        )
    if kind == adapters.OWN:
        return array
    try:
        return adapters.by_kind(kind).rebuild(array, extra)
    except ImportError:
        return array


def _opened(
    leases: Delivery | tuple[Delivery, ...], memory: Memory, ready: Ready | None, number: int
) -> tuple[Any, int, int]:
    """Return what keeps the memory, its address and its device, where the legacy default stream waits for *ready*."""
    if isinstance(leases, tuple):
        delivery = leases[0]
        delivery.also = leases[1:]
    else:
        delivery = leases
    if (sent := delivery.sent) is not None:
        allocation, _ = sent.allocations[memory.key.buffer_id]
        if ready is not None:
            wait_ready(ready, allocation.device)
        return sent.owners if number == ALL else sent.owners[number], allocation.base, allocation.device
    received = receive_memory(delivery, memory)
    if ready is not None:
        wait_ready(ready, received.mapping.device)
    return received, received.mapping.ptr, received.mapping.device


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

    __slots__ = ("__weakref__", "_call", "_message")

    def __init__(self, call: Any, message: Outgoing | None) -> None:
        self._call, self._message = call, message
        finalizer_queue.expect()

    def __reduce__(self) -> Any:
        self._message = None
        return self._call

    def __del__(self, put: Any = finalizer_queue.put) -> None:
        if hasattr(self, "_message"):
            put(_Drop(self._message))


class _Drop:
    after_work = False
    device = 0

    def __init__(self, message: Outgoing | None) -> None:
        self.message = message

    def run(self) -> None:
        if self.message is not None:
            self.message.drop()


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
    if receivers < 1:
        raise ValueError(f"a message is for one receiver or more, not {receivers}")
    kind, array, extra, in_use = _taken_apart(obj, stream)
    if not array.nbytes:
        return Shared(_reduce_empty(kind, array, extra), None)
    message = Outgoing(receivers)
    try:
        call = _call(kind, array, extra, described(array, message, in_use, fallback))
        message.record()
        return Shared(call, message)
    except BaseException:
        message.drop()
        raise


def _reduce_alone(array: DeviceArray) -> Any:
    """Reduce the only object of a message, which then needs no ForkingPickler; None if it needs one."""
    return None if by_value() else reduce_array(array)


ForkingPickler.register(DeviceArray, reduce_array)
pickling.use_alone(DeviceArray, _reduce_alone)
