"""The globals of a main module that nobody can import: which a message sets, and which this process has made its own.

Note [Whose value it is]
------------------------
A message brings the globals that its functions use. The sender may have changed one since the last message: then its
value counts. Or the receiver may have, as an initializer that sets a global, fills a dict, or gives a class or a
function an attribute: then its own does.

    the program                      brings                           the value here
    ------------------------------   ------------------------------   ----------------------------------------
    has not changed it               what the last message brought,   stays, with what functions have made of it
                                     or what was there at the fork
    has changed it                   another value                    is replaced
    whatever it did                  whatever                         stays if it was set here

Whether a list, a dict or an object is the same as before, its pickle says, if it is short. Of a longer one and of an
array nobody knows: one that an initializer uses is this process's own from then on, any other is replaced.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import process
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType

from mp_core.children.main_module import main_can_be_imported
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SHORT = 1 << 14  # bytes of a pickle
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_FIXED = frozenset({int, float, complex, bool, str, bytes, type(None)})
_CONTAINERS = frozenset({list, dict, set})
_CACHED: Any = type(functools.lru_cache(len))

# The globals that messages have set, and those from before: the main module of a new child has names of Python's own.
_given: dict[str, Any] | None = None
# The short pickles of what messages have brought last; None of another value.
_brought: dict[str, bytes | None] = {}
# Those with attributes that an initializer has changed, the functions by their names: each message makes new ones.
_own_classes: weakref.WeakSet[type] = weakref.WeakSet()
_own_functions: set[str] = set()


def is_definition(thing: Any) -> bool:
    return issubclass(type(thing), FunctionType | type | ModuleType | _CACHED)


def read_in(code: CodeType) -> set[Any]:
    """Return the names that the code reads, and the functions in it; it may only set others."""
    import dis

    names = {each.argval for each in dis.get_instructions(code) if each.opname in _READS}
    return names.union(*(read_in(each) for each in code.co_consts if type(each) is CodeType))


def note_main(main: dict[str, Any]) -> None:
    """Note, before the first message sets something, what was there."""
    global _given
    if _given is None:
        is_child = getattr(process.current_process(), "_inheriting", False) or process.parent_process() is not None
        _given = dict(main) if is_child else {}


def set_globals(main: dict[str, Any], needed: dict[str, Any], resolved: Callable[[Any], Any]) -> None:
    """Set those of the globals that this process has not made its own; *resolved* returns a value in its place."""
    assert _given is not None
    for name, value in needed.items():
        if name not in main:
            _brought.pop(name, None)
        elif not (name in _given and main[name] is _given[name]):
            _given.pop(name, None)
            continue
        if type(value) in _FIXED or is_definition(value) or not _is_as_before(main, name, value):
            if name in _own_functions and type(value) is type(main.get(name)) is FunctionType:
                vars(value).update(vars(main[name]))
            main[name] = _given[name] = resolved(value)


def is_own(kind: type) -> bool:
    """Tell whether an initializer has changed the attributes of the class."""
    return kind in _own_classes


def _is_as_before(main: dict[str, Any], name: str, value: Any) -> bool:
    before = _brought[name] if name in _brought else _short_pickle(main.get(name))
    _brought[name] = now = _short_pickle(value)
    return name in main and now is not None and now == before


class _LongError(Exception):
    """A pickle is long, or has an array."""


class _Short(io.BytesIO):
    def write(self, part: Any) -> int:
        if self.tell() + len(part) > SHORT:
            raise _LongError
        return super().write(part)


def _refuse(buffer: pickle.PickleBuffer) -> NoReturn:
    raise _LongError


def _short_pickle(value: Any) -> bytes | None:
    file = _Short()
    try:
        pickle.Pickler(file, 5, buffer_callback=_refuse).dump(value)
    except Exception as error:
        if is_of_handler(error):
            raise
        return None
    return file.getvalue()


# ---- initializers ----------------------------------------------------------------------------------------------------


def initialize(function: Callable[..., object], *args: Any) -> None:
    """Call an initializer; what it changes of the main module is this process's own from then on."""
    main = vars(sys.modules["__main__"])
    if _given is None:
        function(*args)  # the program has no such main module
        return
    used = {name: main[name] for name in _used_by([function, *args], main)}
    for name, value in used.items():
        if not is_definition(value) and type(value) not in _FIXED:
            _brought[name] = _short_pickle(value)
    changeable = {name: value for name, value in used.items() if issubclass(type(value), FunctionType | type)}
    before = {name: dict(vars(value)) for name, value in changeable.items()}
    pickles = {name: _pickles(value) for name, value in before.items()}
    function(*args)
    for name in used.keys() & _brought.keys():
        if _brought[name] is None:
            _given.pop(name, None)
    for name, value in changeable.items():
        if _are_same(dict(vars(value)), before[name]) and _pickles(vars(value)) == pickles[name]:
            continue
        if issubclass(type(value), type):
            _own_classes.add(value)
        else:
            _own_functions.add(name)


def _are_same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() == before.keys() and all(map(is_, now.values(), before.values()))


def _pickles(attributes: Mapping[str, Any]) -> list[bytes | None]:
    return [_short_pickle(value) for value in attributes.values() if type(value) in _CONTAINERS]


def _used_by(things: list[Any], main: dict[str, Any]) -> set[str]:
    """Return the names of the globals that are among *things*, or that functions of these use, or what those call."""
    at: dict[int, list[str]] = {}
    for name, value in main.items():
        at.setdefault(id(value), []).append(name)
    names: set[str] = set()
    seen: dict[int, Any] = {}
    while things:
        thing = things.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)], kind = thing, type(thing)
        names.update(at.get(id(thing), ()))
        if issubclass(kind, functools.partial):
            things += [thing.func, *thing.args, *thing.keywords.values()]
        elif issubclass(kind, MethodType | classmethod | staticmethod):
            things += [thing.__func__, getattr(thing, "__self__", None)]
        elif kind is FunctionType:
            things += [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
            if thing.__globals__ is main:
                things += [main[name] for name in read_in(thing.__code__) if name in main]
        elif issubclass(kind, type):
            if thing.__module__ == "__main__":
                things += vars(thing).values()
        elif kind.__module__ == "__main__":
            things.append(kind)
    return names


def begin_in_child() -> None:
    """Forget what the parent was sent. To count references to each global would copy the memory of all of them."""
    global _given
    # Where the main module can be imported, the first message from a program without one looks at them instead.
    _given = None if main_can_be_imported() else dict(vars(sys.modules["__main__"]))
    _brought.clear()
