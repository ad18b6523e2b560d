"""`SharedFunction`: the function of a call with many tasks, pickled once and sent to each worker once.

Note [Functions with large arrays]
----------------------------------
A `functools.partial`, a bound method or an object with `__call__` may hold large arrays, and each task of a `map` gets
it. Its pickle is made once, in three parts:

    the bytes         in the message that announces the function to a worker
    private arrays    out-of-band buffers: copied once, into a block whose memory each task maps privately
    shared arrays     each worker is sent their blocks once, since an in-flight reference is good for one receiver

The message goes to a worker before the first task that needs it, and the worker answers it. When the last task has its
result, the workers are told to forget the function.

- The worker dies before it tells that it has received the function: the pool releases the in-flight references, unless
  the worker has taken them (`in_flight.py`).
- The worker dies later: the kernel closes its descriptor and mappings, its session releases its references.
- The pool's process dies: the workers end. Nothing has a name.
- A function that cannot be shared so (a reducer that makes a pickle for one receiver, a descriptor, no shared memory):
  each task carries it, as before.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from mp_core import get_sharing
from mp_core.memory.block import Block, allocate, block_at
from mp_core.memory.mapped_buffers import Spans, laid_out
from mp_core.messages import definitions
from mp_core.messages.pickling import can_be_pickled
from mp_core.sharing import backend
from mp_core.sharing.backend import pickled
from mp_core.system.fan_out import fan_out_mode, has_descriptors, is_for_one_receiver
from mp_core.system.handler_errors import is_of_handler
from mp_pool.tasks import task_messages
from mp_pool.tasks.function_cache import FunctionReference, own_object
from mp_pool.tasks.in_flight import Handles, dump_tracked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.messages.inherited_globals import Inheritance

INITIALIZER = 0  # its number

SMALL = 16 * 1024  # bytes: a smaller buffer goes in the pickle
# A weak reference to a method.
Forget = Callable[[], Callable[[int], None] | None] | None


class SharedFunction:
    """A pickled function, and the block with its large buffers."""

    def __init__(
        self, number: int, data: bytes, own: list[Any], buffers: list[memoryview], kept: bool, is_named: bool | None
    ) -> None:
        self.number = number
        #: In the pickles of its tasks.
        self.reference = FunctionReference(number)
        #: Whether a worker unpickles it once for all tasks.
        self.kept = kept
        #: Whether its definitions are the worker's own, or were sent: so must be those of the arguments. None without.
        self.is_named = is_named
        self._data = data
        self._own = own
        self._spans: Spans = []
        self._block: Any = None
        if buffers:
            self._spans, self._block = _copied(buffers)
            backend.copied_bytes(sum(view.nbytes for view in buffers))

    def announcement(self) -> tuple[int, Any, Handles]:
        """Pickle what one worker needs; return the kind of the message, the bytes, the in-flight references in them."""
        kind = task_messages.FUNCTION | (
            task_messages.RICH if self._own or self._block is not None else task_messages.PLAIN
        )
        return kind, *dump_tracked((self._data, self._spans, self._block, self._own, self.kept))


def share(
    function: Callable[..., Any],
    number: int,
    forget: Forget,
    kept: bool = False,
    inheritance: Inheritance | None = None,
) -> SharedFunction | None:
    """
    Pickle *function* for all workers, which have the *inheritance*; None if its tasks have to carry it.

    *forget* is called when no task has it.

    If it is *kept*, the tasks of a worker share one function; see Note [A definition that stays].
    """
    if task_messages.is_plain(function):
        return None  # its name is its pickle

    def attempt(inherits: bool, names: bool) -> tuple[io.BytesIO, _Found, Any, bool | None]:
        file, found = io.BytesIO(), _Found()
        pickler = _Pickler(file, found)
        pickler.inherits, pickler.names, pickler.inheritance = inherits, names, inheritance
        # The objects that make references have no place in a pickle that is read more than once.
        return file, found, pickled(pickler.dump, function).handles, pickler.has_named

    try:
        file, found, references, is_named = definitions.pickled_or_inherited(attempt, inheritance)
    except Exception as error:
        if is_of_handler(error):
            raise
        return None  # it is for one receiver, or each task fails with this error
    if number == INITIALIZER and any(map(has_descriptors, found.own)):
        return None  # it goes with the arguments of each worker
    if references or (found.own and not can_be_pickled(found.own)):
        return None
    if kept and (found.own or found.buffers):
        return None
    buffers = [buffer.raw() for buffer in found.buffers]
    if buffers and not get_sharing():
        return None
    try:
        shared = SharedFunction(number, file.getvalue(), found.own, buffers, kept, is_named)
    except (OSError, MemoryError):
        return None  # no memory
    weakref.finalize(shared, _end, number, forget).atexit = False
    return shared


def _end(number: int, forget: Forget) -> None:
    method = None if forget is None else forget()
    if method is not None:
        method(number)


class _ForOneReceiver(Exception):
    """A pickle of this object may be read only once."""


class _Found:
    """The parts beside the pickle."""

    def __init__(self) -> None:
        self.own: list[Any] = []
        self.buffers: list[pickle.PickleBuffer] = []

    def stays(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes <= SMALL:
            return True
        if block_at(backend.address_of(view)) is not None:
            raise _ForOneReceiver  # shared memory must stay shared
        self.buffers.append(buffer)
        return False


class _Pickler(definitions.Pickler):
    def __init__(self, file: io.BytesIO, found: _Found) -> None:
        # ForkingPickler passes positional arguments on, but no keyword arguments.
        super().__init__(file, 5, True, found.stays)
        self._found = found

    def override(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        found, kind = self._found, type(thing)
        if is_for_one_receiver(thing):
            found.own.append(thing)
            return own_object, (len(found.own) - 1,)
        if isinstance(thing, Connection) or kind.__module__ == "multiprocessing.resource_sharer":
            raise _ForOneReceiver  # a descriptor
        reducer = ForkingPickler._extra_reducers.get(kind)  # type: ignore[attr-defined]
        if reducer is None:
            return NotImplemented
        if reducer.__module__ == "multiprocessing.reduction":
            if reducer.__name__ in definitions.OF_FUNCTIONS:
                return NotImplemented  # only the pickle of a connection or a socket is for one receiver
            raise _ForOneReceiver
        mode = fan_out_mode(reducer, thing)
        if mode == "out of band":
            return thing.__reduce_ex__(5)
        if mode == "per receiver":
            raise _ForOneReceiver
        return NotImplemented


def _copied(views: list[memoryview]) -> tuple[Spans, Block]:
    """Copy *views* into a block that is not changed afterwards."""
    spans, end = laid_out((view.nbytes, view.readonly) for view in views)
    block = allocate(end, zeroed=False)
    memory = memoryview(block)
    for (start, size, _), view in zip(spans, views, strict=True):
        memory[start : start + size] = view
    return spans, block
