"""Tasks and results as bytes: kinds of messages, and pickles without multiprocessing's reducers if none is needed."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from multiprocessing.reduction import ForkingPickler
from types import BuiltinFunctionType, FunctionType

from mp_core.children.main_module import UNPICKLABLE, has_definitions, has_name
from mp_core.sharing.backend import is_of_atoms, plain_data, plain_loads, recorders, timeline_blocks
from mp_pool.tasks.function_cache import FunctionReference
from mp_pool.tasks.mappers import map_chunk, starmap_chunk, take_failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The number of the task or function, and the kind of the message; before the data of a packet (`task_rings.py`).
HEADER = struct.Struct("<QQ")

# Kinds of messages. PLAIN pickles were made without reducers, and hold no resource that has to be released.
PLAIN, RICH = 0, 1
# Of a worker; PLAIN or RICH is added. A message that is longer than a ring takes comes as PARTs before its last part,
# in both directions; a worker asks for MORE of them, or of tasks, when it has emptied the ring without an answer.
DONE, FAILED, READY, INIT_FAILED, HAS_FUNCTION, MORE, BEGUN = 0, 2, 4, 6, 8, 10, 12
TASK, BATCH, FUNCTION, FORGET, END = 0, 2, 4, 6, 8  # of the parent; likewise
PART = 32

_PROTOCOL = max(5, pickle.DEFAULT_PROTOCOL)
FUNCTIONS = frozenset({FunctionType, BuiltinFunctionType})


Frame = tuple[int, int, "Any"]  # number, kind, data


def is_plain(thing: Any) -> bool:
    """Tell whether the pickle of *thing* needs no reducers and holds no resources."""
    # A function is pickled by its name, unless it has none or a library has registered a reducer.
    kind = type(thing)
    if kind in FUNCTIONS or kind is range:
        return kind not in ForkingPickler._extra_reducers and (kind is range or has_name(thing))  # type: ignore[attr-defined]
    return is_of_atoms(thing) or kind is FunctionReference


def is_mapper(function: Any) -> bool:
    """Tell whether *function* calls another for each item of a chunk; its one argument is (the other, the chunk)."""
    return function is map_chunk or function is starmap_chunk


def name_of(function: Any, args: tuple[Any, ...]) -> str:
    """Return the name of the user's function in a call: mappers and partials call another function."""
    if is_mapper(function):
        function = args[0][0]
    while hasattr(function, "func"):
        is_chunk = getattr(function.func, "__name__", "") == "_process_chunk"  # of a standard executor's `map`
        function = function.args[0] if is_chunk else function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def dump_plain(
    function: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any] | None, *key: Any
) -> bytes | None:
    """Pickle a task that needs no reducers; return None for another one. *key* is that of its random numbers."""
    if kwds or not is_plain(function):
        return None
    for thing in args[0] if is_mapper(function) else args:
        if not is_plain(thing):
            return None
    try:
        return pickle.dumps((function, args, None, *key), _PROTOCOL)
    except UNPICKLABLE:
        return None  # its name is another function's


def seeded(seed: Any, call: tuple[Any, ...]) -> tuple[Any, ...]:
    """
    Return the function, arguments and keywords of a task whose random numbers depend on *seed* and on the task's key.
    """
    from mp_core.children.random_streams import ForEach, set_stream

    function, args, kwds, (number, index) = call
    if is_mapper(function):
        inner, items = args[0]
        return function, ((ForEach(inner, seed, number, index), items),), kwds
    set_stream(seed, number, index)
    return function, args, kwds


def unpacked(payload: Any) -> tuple[list[bytes], list[tuple[int, tuple[Any, ...]]]]:
    """
    Return the contents of a batch: the functions' pickles, and the calls, each the index of a function and arguments.
    """
    functions, indices, arguments = pickle.loads(payload)
    if indices is None:  # one function, with one argument for each call
        return functions, list(zip(repeat(0), zip(arguments, strict=True), strict=False))
    return functions, list(zip(indices, arguments, strict=True))


def dump_result(value: Any, dump: Callable[..., Any]) -> tuple[int, Any]:
    """Pickle the result of a task, for the ring whose method is *dump*."""
    data = plain_data(value)
    if data is not None:
        return PLAIN, data
    if is_plain(value):
        return PLAIN, pickle.dumps(value, _PROTOCOL)
    if recorders:
        timeline_blocks()  # the task may have sent others
    from mp_core.messages.pickling import dumps_home

    try:
        return RICH, dump(dumps_home, value)
    except UNPICKLABLE:
        if not has_definitions():
            raise
        # An object of a class that came as a definition has to go back as one.
        from mp_core.messages.pickling import pickled_for_task

        message = pickled_for_task(ForkingPickler.dumps, value)
        message.leave()
        return RICH, message.data


def drop(kind: int, data: Any) -> None:
    """Release the shared memory and descriptors of a message that will not be received."""
    if kind & RICH:
        from mp_pool.tasks.release import release

        release(data)


def _described(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}: {error}"


def _formatted(error: BaseException) -> str:
    """Return the traceback as text; without a descriptor to import traceback by, the type only."""
    try:
        import traceback
    except OSError:
        return f"{type(error).__qualname__}\n"
    return "".join(traceback.format_exception(error))


def dump_error(error: BaseException) -> bytes:
    """Pickle an exception with its traceback as text, which can be sent even if the exception cannot."""
    text = _formatted(error)
    inner: bytes | None = None
    reason: str = ""
    try:
        from mp_core.messages.pickling import dumps_home

        inner = bytes(dumps_home(error))
    except Exception as why:
        reason = _described(why)
    try:
        name = _described(error)
    except Exception:
        name = type(error).__qualname__  # its text cannot be made
    return pickle.dumps((name, text, inner, reason, take_failed()), _PROTOCOL)


def unsent(error: BaseException, value: Any) -> BaseException:
    """Return what a pool raises for a result that cannot be pickled, for the reason *error*."""
    try:
        from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
    except OSError:
        return error  # no descriptor is left to import it by
    try:
        return MaybeEncodingError(error, value)  # type: ignore[no-any-return]
    except Exception:
        text = f"an object of {type(value).__qualname__}"  # its repr() also fails
        return MaybeEncodingError(error, text)  # type: ignore[no-any-return]


def load_error(data: Any, cause: Callable[[str], BaseException]) -> BaseException:
    """
    Return the exception of a worker; its `__cause__`, made by *cause*, has the traceback in the worker.

    An exception that cannot be unpickled becomes a `MaybeEncodingError` that names its type.
    """
    name, text, inner, reason, place = pickle.loads(data)
    error: Any = None
    if inner is not None:
        try:
            error = loads(inner)
        except BaseException as why:
            reason = _described(why)
    if not isinstance(error, BaseException):
        if inner is not None and not reason:
            reason = f"its pickle makes {type(error).__name__}, which is no exception"
        from mp_pool.tasks.unpicklable_exception import UnpicklableExceptionError

        error = UnpicklableExceptionError(name, reason)
    raised: BaseException = error
    raised.__cause__ = cause(f'\n"""\n{text}"""')
    if place:
        with suppress(Exception):  # it takes no attributes
            error._mp_place = place
    return raised


def place_of(error: Any) -> int:
    """Return the place, in the chunk of its task, of the item that raised *error*, once."""
    return int(getattr(error, "__dict__", {}).pop("_mp_place", 0))


def assembled(messages: list[Frame], parts: list[bytes]) -> list[Frame]:
    """Return the whole messages among *messages*; *parts* has those of the last one, from call to call."""
    frames = []
    for number, kind, data in messages:
        if kind == PART:
            parts.append(data)
        elif parts:
            frames.append((number, kind, b"".join((*parts, data))))
            parts.clear()
        else:
            frames.append((number, kind, data))
    return frames


def loads(data: Any) -> Any:
    """
    Unpickle a message, and raise the error that an object has raised, also an `OSError`.

    `ForkingPickler.loads` raises a `ReceiveError` for that, because who reads a pipe would take it for the pipe's end.
    The cause of one that is about a block has not been raised by anything.
    """
    if recorders:
        timeline_blocks()
    try:
        return ForkingPickler.loads(data)
    except Exception as error:
        errors: Any = sys.modules.get("mp_core.system.errors")
        cause = error.__cause__
        if errors is None or type(error) is not errors.ReceiveError or cause is None or cause.__traceback__ is None:
            raise
    try:
        raise cause
    finally:
        del cause  # the traceback has this frame


def outcome(kind: int, data: Any, cause: Callable[[str], BaseException]) -> tuple[bool, Any]:
    """Unpickle the outcome of a task."""
    try:
        if kind == DONE | PLAIN:
            return True, plain_loads(data)
        if kind & ~RICH == DONE:
            return True, loads(data)
        return False, load_error(data, cause)
    except BaseException as error:
        from mp_core.system.handler_errors import is_of_handler  # no worker comes here

        if is_of_handler(error):
            raise
        return False, error  # only this task fails


def load(
    frames: list[Frame],
    cause: Callable[[str], BaseException],
    held: Callable[[int, Any, Callable[[str], BaseException]], Any] | None,
) -> tuple[list[tuple[int, tuple[bool | None, Any]]], list[Frame]]:
    """
    Unpickle the messages of a worker: return the outcomes of tasks, each behind its number, and the other messages.

    *held* returns the outcome of a message that may not be unpickled now, see `unopened.py`, and None for the others.
    """
    outcomes: list[tuple[int, tuple[bool | None, Any]]] = []
    others: list[Frame] = []
    for number, kind, data in frames:
        try:
            if held is not None and (unopened := held(kind, data, cause)) is not None:
                outcomes.append((number, (None, unopened)))
            elif kind == DONE | PLAIN:
                outcomes.append((number, (True, plain_loads(data))))
            elif kind & ~RICH in (DONE, FAILED):
                outcomes.append((number, outcome(kind, data, cause)))
            else:
                failed = kind & ~RICH == INIT_FAILED
                others.append((number, kind & ~RICH, load_error(data, cause) if failed else None))
        except BaseException as error:
            outcomes.append((number, (False, error)))  # only this task fails
    return outcomes, others
