"""Reducers: turn an array of any kind into a message, and the message into an array of the same kind.

Most arrays are written and read in C (`native/outgoing.c`, `native/incoming.c`), all of a message together.
`reduce_array` is for the others: those that ForkingPickler pickles outside of a message of mp-core, those of structured
types, and what `share` exports. Each of them is alone: it has a lease and an event of its own.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from mp_cuda.arrays import memory_kinds
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import DType, plain
from mp_cuda.driver import finalizer_queue
from mp_cuda.driver.functions import export_alone, rebuild, receive_table, set_hooks, take_back, use_codec
from mp_cuda.driver.policy import Fallback
from mp_cuda.driver.stream import stream_number
from mp_cuda.libraries import adapters
from mp_cuda.libraries.conversion import as_device_array
from mp_cuda.sharing import exports, imports

#: The modules whose functions C calls, and which nothing else here needs.
NEEDED = exports, imports, memory_kinds


def reduce_array(obj: Any) -> Any:
    return rebuild_alone, _alone(obj, None, 1, None)


def _alone(obj: Any, stream: Any, receivers: int, fallback: Fallback | None) -> tuple[Any, ...]:
    """Return the arguments of `rebuild_alone`."""
    kind = None if isinstance(obj, DeviceArray) else adapters.kind_of(obj)
    extra = b""
    if kind is None:
        array = as_device_array(obj, stream=stream)
    else:
        array, extra = adapters.taken_apart(adapters.by_kind(kind), obj)
        if stream is not None:
            array = array._replace(stream=stream_number(stream))
    dtype = None if plain(array.dtype) is not None else tuple(array.dtype)
    return (*export_alone(array, receivers, fallback), kind, extra, dtype)


def rebuild_alone(offers: tuple[bytes, ...], table: bytes | None, layout: bytes, *more: Any) -> Any:
    """Rebuild the array of `reduce_array`, and receive what it needs."""
    if len(more) != 3:
        raise ValueError(f"the message of a device array is damaged: it has {len(more)} parts more instead of 3")
    kind, extra, dtype = more
    shared = None if table is None else receive_table(offers, table)
    return rebuild(shared, layout, kind, extra, None if dtype is None else DType(*dtype))


# ---- arrays of libraries ---------------------------------------------------------------------------------------------


def taken_apart(obj: Any) -> tuple[str, DeviceArray, bytes] | None:
    """Return (kind, array of the memory, what else its adapter needs); None if its library sends it."""
    kind, adapter, handles = adapters.registered[type(obj)]
    if handles is not None and not handles(obj):
        return None
    return kind, *adapters.taken_apart(adapter, obj)


def _rebuild_kind(kind: str, extra: bytes, array: DeviceArray) -> Any:
    try:
        return adapters.by_kind(kind).rebuild(array, extra)
    except ImportError:
        return array


for _function in (receive_table, rebuild):
    _function.__module__ = __name__  # messages name them by this module, which sets what they call
set_hooks(
    array_type=DeviceArray,
    receive_table=receive_table,
    rebuild=rebuild,
    taken_apart=taken_apart,
    rebuild_kind=_rebuild_kind,
)


# ---- arrays that were exported when they were shared -----------------------------------------------------------------


class Shared(finalizer_queue.Finalized):
    """
    An array that was exported when `share` was called.

    Pickle it once, for the number of receivers given to `share`. It unpickles to an array of the kind that was shared.
    Dropping it without pickling it revokes the export. Only `share` makes one.

    Examples
    --------
    >>> shared = mp_cuda.share(mp_cuda.empty(3))                                 # doctest: +SKIP
    >>> queue.put(shared)                                                        # doctest: +SKIP
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = parts
        self._leave(0, _take_back, parts[0])

    def __reduce__(self) -> Any:
        self._task = self._task._replace(argument=())
        return rebuild_alone, self._parts


def _take_back(device: int, messages: list[tuple[bytes, ...]]) -> None:
    for offers in messages:
        take_back(offers)


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
    return Shared(_alone(obj, stream, receivers, fallback))


ForkingPickler.register(DeviceArray, reduce_array)
use_codec(DeviceArray, reduce_array)
