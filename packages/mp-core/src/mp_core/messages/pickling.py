"""Pickling of messages: `ForkingPickler.dumps`, extended by the notes below.

Note [A message that fails]
---------------------------
A message that cannot be pickled leaks no memory and no descriptor, one that has no receiver no memory.

Pickling a block makes an in-flight reference, which keeps the memory until it is received. If a later object of the
same message cannot be pickled, or the pipe reports that its reader is gone, no process will receive it: so the
references of that message are discarded. `native/memory/message.c` keeps the list.

A descriptor in a message, as a socket's, is a duplicate that waits in this process until its receiver asks for it
(`multiprocessing.resource_sharer`). Nobody asks for one of a message that fails, so it is closed, see `note_waiting`.

Note [Buffers]
--------------
Since protocol 5 an object may offer its memory to the pickler (`pickle.PickleBuffer`: Arrow tables, the text columns of
pandas, other objects with large memory that are not arrays). The pickler calls a callback with each buffer; a buffer
that the callback takes stays out of the pickle and must be passed to the unpickler separately. Receivers call plain
`pickle.loads`, so if any buffer was taken, a second pickle wraps the first and passes the buffers on loading:

    nothing taken    pickle
    taken            pickle of (load_with, (bytes of the pickle, [Block, Block, ...]))

Only messages and the arguments of processes are pickled so, and only if the caller names no protocol.

Note [Large bytes]
------------------
``bytes``, ``bytearray``, ``str`` and the buffers that stay in the pickle travel through blocks from 64 KiB on
(`native/messages/pickle_writer.c`, Note [A divided pickle]). The receiver has to put the pickle together again:

    pickle of (load_divided, (stream, [(position, bytes of the length, handle), ...], buffers))

An `array.array` would put its bytes into a private copy first; `_reduce_array` saves that copy on both sides.

Note [Many objects]
-------------------
Of a message that needs a pickler, arrays and other objects of codecs leave it from the 17th on, and travel beside it
(`object_table.c`, Note [Objects beside a pickle]). The table of objects replaces the reducers in the message's
own pickler; a reducer that pickles something with another pickler meanwhile has the usual ones:

    pickle of (load_out_of_band, (bytes of the pickle, pickle of the list of the objects))
"""

from __future__ import annotations

import io
import pickle
import re
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

from mp_core.children import child_descriptors
from mp_core.children.main_module import UNPICKLABLE, main_can_be_imported, sends_definitions
from mp_core.messages import failed_messages, large_bytes
from mp_core.sharing import backend
from mp_core.sharing.backend import (
    ObjectTable,
    ReducerTable,
    by_value,
    in_message,
    load_out_of_band,
    pickled,
    plain_pickle,
)
from mp_core.system import imports, reducers
from mp_core.system.handler_errors import is_of_handler
from mp_core.system.pickled_call import PickledCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.messages.inherited_globals import Inheritance

# The functions that these replace, set by `set_up`.
_dumps: Callable[..., Any]
_make_pair: Callable[[bool], Any]
#: `ForkingPickler.loads`: receives a message, and handles one that fails.
loads: Callable[..., Any] = backend.loads
_set_up = False


def is_set_up() -> bool:
    return _set_up


def set_up(dumps: Callable[..., Any], loads: Callable[..., Any], make_pair: Callable[[bool], Any]) -> None:
    """
    Set the functions that `dumps` and `loads` extend, those of `ForkingPickler` before the installation.

    *make_pair* makes the channel for the arguments of a child.
    """
    global _dumps, _make_pair, _set_up
    _dumps, _make_pair = dumps, make_pair
    failed_messages.extend(loads)
    _set_up = True


def dumps(cls: type[ForkingPickler], obj: Any, protocol: int | None = None) -> Any:
    """`ForkingPickler.dumps`: pickle a message, and discard its in-flight references if that fails."""
    return _dumped(cls, obj) if protocol is None and cls is ForkingPickler else in_message(_pickle, cls, obj, protocol)


def dumps_home(obj: Any) -> Any:
    """Like `dumps`, for the process that has forked this one: definitions that both have go by their identities."""
    return ForkingPickler.dumps(obj) if main_can_be_imported() or not _set_up else _dumped(ForkingPickler, obj, True)


def _dumped(cls: type[ForkingPickler], obj: Any, home: bool = False) -> Any:
    # Most messages need no ForkingPickler, which takes several microseconds to make.
    data = plain_pickle(obj)
    if data is None and type(obj) in _alone:
        data = _dumps_alone(obj)
    if data is not None:
        return memoryview(data)
    return _dumps_of_main(obj, home) if sends_definitions() else in_message(_pickle, cls, obj)


def _pickle(cls: Any, obj: Any, protocol: int | None = None) -> Any:
    if protocol is None and not by_value() and cls.__init__ is ForkingPickler.__init__ and _is_self_contained(cls):
        return _dump(cls, obj)
    return _dumps(cls, obj, protocol)


_attributes = ForkingPickler.__dict__
_FOR_UNPICKLERS = "persistent_id", "dispatch_table"


def _is_self_contained(cls: Any) -> bool:
    """Return whether any unpickler reads what picklers of *cls* write, also one for a part of the message."""
    if cls is ForkingPickler:
        return _attributes.keys().isdisjoint(_FOR_UNPICKLERS)
    # With a table of its class, a pickler has none of our reducers.
    return all(getattr(cls, name, None) is getattr(pickle.Pickler, name, None) for name in _FOR_UNPICKLERS)


def _dumps_of_main(obj: Any, home: bool = False) -> Any:
    """Like `dumps` in a process whose program no other can import, see definitions.py."""
    mark = child_descriptors.mark()
    try:
        return in_message(_dump_without_main, obj)
    except (_MainIsNamed, *UNPICKLABLE):
        child_descriptors.take_back(mark)
    return _with_definitions(in_message, obj, main_only=True, home=home)


def _with_definitions(
    wrap: Callable[..., Any],
    obj: Any,
    main_only: bool = False,
    only_names: bool = False,
    **attributes: Any,
) -> Any:
    definitions = imports.load("mp_core.messages.definitions")
    base = definitions.MainPickler if main_only else definitions.Pickler

    def attempt(inherits: bool, names: bool) -> Any:
        return wrap(_pickle, definitions.pickler_class(base, inherits=inherits, names=names, **attributes), obj)

    return definitions.pickled_or_inherited(attempt, attributes.get("inheritance"), only_names)


class _MainIsNamed(Exception):
    """A pickle names the main module, which its receiver cannot import."""


_names_main = re.compile(b"__main__").search


def _dump_without_main(obj: Any) -> Any:
    _waiting.of_last = []
    data = _pickle(ForkingPickler, obj)
    if _names_main(data):
        close_waiting(*_waiting.of_last)
        raise _MainIsNamed
    return data


def pickled_for_task(
    dumps: Callable[..., Any],
    obj: Any,
    protocol: int | None = None,
    inheritance: Inheritance | None = None,
    only_names: bool = False,
) -> Any:
    """
    Return ``pickled(dumps, obj, protocol)``; functions and classes without a name travel as definitions.

    If all receivers have an *inheritance*, the message names what is in that, see inherited_globals.py; with
    *only_names*, it raises `NotInherited` where it would have to send a definition.

    For what a process is to do and not for all messages: what `multiprocessing` cannot put into a queue is an error.
    """
    mark = child_descriptors.mark()
    try:
        return pickled(dumps, obj, protocol) if inheritance is None else pickled(_dump_without_main, obj)
    except (_MainIsNamed, *UNPICKLABLE):
        child_descriptors.take_back(mark)
        try:
            return _with_definitions(pickled, obj, False, only_names, inheritance=inheritance)
        except Exception as error:
            raise error from None


def dump(obj: Any, file: Any, protocol: int | None = None) -> None:
    """Pickle the arguments of a new process, as multiprocessing does, as a message like any other."""
    message = pickled_for_task(ForkingPickler.dumps, obj, protocol)
    if child_descriptors.too_many():
        message = pickled_for_task(ForkingPickler.dumps, obj, protocol)
    reader = None
    if message.handles:
        reader = child_descriptors.send_arguments(message, _make_pair)
    file.write(message.data if reader is None else ForkingPickler.dumps(PickledCall(receive_arguments, reader)))


def receive_arguments(reader: Any) -> Any:
    """In a new process: receive its arguments, see Note [Arguments with memory] in child_descriptors.py."""
    with reader:
        return reader.recv()


PROTOCOL = max(5, pickle.DEFAULT_PROTOCOL)


def _take(buffer: pickle.PickleBuffer) -> Any:
    """Return (block, offset, nbytes, read-only), which the message carries instead of *buffer*; None if it stays."""
    return imports.load("mp_core.messages.buffers").take(buffer)


def _dumps_alone(obj: Any) -> bytes | None:
    """Return the pickle of a message that `use_alone` has a reducer for; it has no references, and no name of main."""
    call = _alone[type(obj)](obj)
    return None if call is None else pickle.dumps(PickledCall(call[0], *call[1]), PROTOCOL)


class _MessagePickler:
    """A pickler of *cls*, its file, the places of the buffers that it took, and the table of its objects."""

    __slots__ = ("file", "objects", "pickler", "reducers", "taken")

    def __init__(self, cls: Any, table: Any) -> None:
        self.reducers = table
        self.file = large_bytes.writer()
        self.taken = taken = []  # type: ignore[var-annotated]

        def stays(buffer: pickle.PickleBuffer) -> bool:
            place = _take(buffer)
            if place is not None:
                taken.append(place)
            return place is None

        self.pickler = reducers.new_pickler(cls, self.file, PROTOCOL, stays, table, ReducerTable)
        self.objects = None
        if isinstance(self.pickler.dispatch_table, dict):  # it may be a program's own
            self.objects = ObjectTable(self.pickler.dispatch_table)
            large_bytes.use_arrays(self.pickler.dispatch_table)


#: A pickler takes as long to make as a small message to pickle, so one that no message uses is kept. After a larger
#: message it would keep more memory than it is worth.
_unused: list[_MessagePickler] = []
MOST_KEPT = 1 << 15  # bytes of a pickle


def _dump(cls: Any, obj: Any) -> memoryview:
    table = reducers.merged(cls)
    try:
        made = _unused.pop()
    except IndexError:
        made = None
    if made is None or made.reducers is not table or table is None or cls is not ForkingPickler:
        made = _MessagePickler(cls, table)
    outer, own = _waiting.of_this, []  # type: ignore[var-annotated]
    _waiting.of_this = own
    try:
        made.pickler.dump(obj)
    except BaseException:
        close_waiting(*own)
        raise
    finally:
        _waiting.of_this, _waiting.of_last = outer, own
    stream, places = made.file.take()
    objects = None if made.objects is None else made.objects.written()
    taken = made.taken
    if not (places or taken or objects):
        if len(stream) <= MOST_KEPT and cls is ForkingPickler:
            made.pickler.memo = {}
            _unused[:] = (made,)
        return memoryview(stream)
    if places and not taken:
        # Nothing in it has a reducer of ForkingPickler, which takes several microseconds to make.
        stream = pickle.dumps(PickledCall(load_divided, stream, places, taken), PROTOCOL)
    elif places:
        stream = _wrapped(cls, load_divided, stream, places, taken)
    elif taken:
        stream = _wrapped(cls, load_with, stream, taken)
    if objects is not None:
        stream = _wrapped(cls, load_out_of_band, stream, objects)
    return memoryview(stream)


class _Waiting(threading.local):
    """The descriptors that wait, of the message that this thread is pickling, without those in it, and of its last."""

    of_this: list[tuple[Any, int]] | None = None
    of_last: list[tuple[Any, int]]


_waiting = _Waiting()
_sharer: Any = None


def note_waiting(sharer: Any) -> None:
    """Let the *sharer* of `multiprocessing.resource_sharer` tell which descriptors a message has registered."""
    global _sharer
    standard = sharer.register

    def register(send: Any, close: Callable[[], None]) -> tuple[Any, int]:
        if child_descriptors.trial.under_way:
            close()
            return None, 0
        identifier: tuple[Any, int] = standard(send, close)
        if _waiting.of_this is not None:
            _waiting.of_this.append(identifier)
        return identifier

    sharer.register = register
    _sharer = sharer


def close_waiting(*identifiers: tuple[Any, int]) -> None:
    """Close what waits in this process for its receiver, unless it has been received."""
    for address, key in identifiers:
        with _sharer._lock:
            _, close = _sharer._cache.pop(key, (None, None)) if address == _sharer._address else (None, None)
        if close is not None:
            close()


backend.setup_reducer_table(reducers.without, reducers.find)
_alone: dict[type, Callable[[Any], Any]] = {}


def use_alone(kind: type, reduce: Callable[[Any], tuple[Any, ...] | None]) -> None:
    """
    Pickle a message that is one object of *kind* as the call that *reduce* returns, without a ForkingPickler.

    The call has no objects that need one, and none of the main module.
    """
    _alone[kind] = reduce


def _wrapped(cls: Any, function: Callable[..., Any], *parts: Any) -> bytes:
    """Return the pickle of a call of *function* with *parts*."""
    file = io.BytesIO()
    cls(file, PROTOCOL).dump(PickledCall(function, *parts))
    return file.getvalue()


def load_with(data: bytes, places: list[Any]) -> Any:
    """Unpickle *data* with its out-of-band buffers, see Note [Buffers]. A place outside its block is a `ValueError`."""
    return pickle.loads(data, buffers=_buffers(places))


def load_divided(stream: bytes, pieces: list[large_bytes.Place], places: list[Any]) -> Any:
    """Unpickle a pickle whose large bytes are in blocks, see Note [Large bytes], with its out-of-band buffers."""
    return pickle.Unpickler(large_bytes.reader(stream, pieces), buffers=_buffers(places)).load()


def _buffers(places: list[Any]) -> list[memoryview]:
    buffers = []
    for block, offset, nbytes, readonly in places:
        view = memoryview(block)[offset : offset + nbytes]
        if offset < 0 or view.nbytes != nbytes:
            raise ValueError(
                f"the handle of a buffer is damaged: {nbytes} bytes at {offset} of {memoryview(block).nbytes}"
            )
        buffers.append(view.toreadonly() if readonly else view)
    return buffers


def try_to_pickle(dump: Callable[[Any], object], thing: Any) -> None:
    """Call *dump(thing)* for nobody, and raise its error: references are discarded, and descriptors not duplicated."""
    before = child_descriptors.trial.under_way
    child_descriptors.trial.under_way = True
    try:
        pickled(dump, thing)
    finally:
        child_descriptors.trial.under_way = before


def can_be_pickled(thing: Any) -> bool:
    """Return whether a message may contain *thing*."""
    if child_descriptors.trial.under_way:
        return True  # the outer trial decides
    try:
        try_to_pickle(ForkingPickler(io.BytesIO()).dump, thing)
    except Exception as error:
        if is_of_handler(error):
            raise
        return False
    return True
