"""The globals of a main module that nobody can import: which a message sets, and which this process has made its own.

Note [Whose value it is]
------------------------
A message brings the globals that its functions use, since the program may have changed them. But what this process has
made of one stays:

    a function sets it                                       another object: seen
    an initializer changes it in place: fills a dict, ...    seen by a look at its contents, before and after
    an initializer gives a class an attribute                likewise; the class is one object in all messages
    an initializer gives a function an attribute             likewise; the function of a later message gets it
    a task changes it in place                               not seen: the next message replaces it
    it is a generator of random numbers                      goes on here, until the program has another state

The look runs no code of the program, and does not go far: into lists, dicts, sets, small arrays, and the attributes of
objects of the program's own classes.
"""

from __future__ import annotations

import pickle
import sys
import weakref
from collections import deque
from collections.abc import Callable
from itertools import islice
from multiprocessing import process
from operator import is_
from types import FunctionType, SimpleNamespace

from mp_core.children.main_module import main_can_be_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Of one global: it takes some milliseconds to look at many.
MOST_OBJECTS = 1000
MOST_BYTES = 1 << 16

# The globals that messages have set, and those from before: the main module of a new child has names of Python's own.
_given: dict[str, Any] | None = None
# What an initializer has given attributes; the functions by their names, since each message makes new ones.
_own_classes: weakref.WeakSet[type] = weakref.WeakSet()
_own_functions: set[str] = set()
# The states of the generators of random numbers that messages have brought, and of those that an initializer found.
_states: dict[str, bytes] = {}
_GENERATORS = frozenset({"Generator", "RandomState", "Random"})


def note_globals(main: dict[str, Any]) -> None:
    """Note what was there before the first message sets something."""
    global _given
    if _given is None:
        is_child = getattr(process.current_process(), "_inheriting", False) or process.parent_process() is not None
        _given = dict(main) if is_child else {}


def set_globals(main: dict[str, Any], needed: dict[str, Any], resolved: Callable[[Any], Any]) -> None:
    """Set those of the globals that this process has not made its own; *resolved* returns a value in its place."""
    assert _given is not None
    for name, value in needed.items():
        if name not in main or (name in _given and main[name] is _given[name]):
            if type(value).__name__ in _GENERATORS and _goes_on(main, name, value):
                continue
            if name in _own_functions and type(value) is type(main.get(name)) is FunctionType:
                vars(value).update(vars(main[name]))
            main[name] = _given[name] = resolved(value)
        else:
            _given.pop(name, None)


def _goes_on(main: dict[str, Any], name: str, value: Any) -> bool:
    """Tell whether the program has the same state as before, in which the generator here began."""
    now, before = _state(value), _states.get(name) or _state(main.get(name))
    _states[name] = now
    return bool(now) and now == before and type(main.get(name)) is type(value)


def _state(generator: Any) -> bytes:
    """Return the state of a generator of random numbers; nothing for what is none."""
    kind = type(generator)
    match kind.__module__, kind.__name__:
        case "random", "Random":
            return pickle.dumps(generator.getstate())
        case "numpy.random._generator", "Generator":
            return pickle.dumps(generator.bit_generator.state)
        case "numpy.random.mtrand", "RandomState":
            return pickle.dumps(generator.get_state(legacy=False))
    return b""


def is_own(kind: type) -> bool:
    """Tell whether an initializer has changed the attributes of the class."""
    return kind in _own_classes


def initialize(function: Callable[..., object], *args: Any) -> None:
    """Call an initializer; what it changes of the main module is this process's own from then on."""
    if _given is None:
        function(*args)  # the program has no such main module
        return
    main = vars(sys.modules["__main__"])
    before = {name: _Contents(value) for name, value in main.items() if not _is_of_a_module(value)}
    _states.update((name, _state(value)) for name, value in main.items() if type(value).__name__ in _GENERATORS)
    function(*args)
    for name, contents in before.items():
        value = contents.thing
        if main.get(name) is not value or contents.is_same():
            continue
        if issubclass(type(value), type):
            _own_classes.add(value)  # type: ignore[arg-type]
        elif type(value) is FunctionType:
            _own_functions.add(name)
        else:
            _given.pop(name, None)


def _is_of_a_module(thing: Any) -> bool:
    """Tell whether *thing* is a function or class that every process can import."""
    if type(thing) is FunctionType:
        return thing.__module__ != "__main__"
    return issubclass(type(thing), type) and vars(thing).get("__module__") != "__main__"


class _Contents:
    """The objects in *thing*, which are kept so that no other has the place of one, and what else tells of a change."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self._objects, self._rest = _looked_at(thing)

    def is_same(self) -> bool:
        """Tell whether *thing* has the same contents now."""
        objects, rest = _looked_at(self.thing)
        return len(objects) == len(self._objects) and all(map(is_, objects, self._objects)) and rest == self._rest


def _looked_at(thing: Any) -> tuple[list[Any], list[Any]]:
    """Return the first objects in *thing*, and the lengths of its lists and the bytes of its arrays."""
    objects: list[Any] = [thing]
    rest: list[Any] = []
    seen = {id(thing)}
    for each in objects:  # it grows
        if len(objects) > MOST_OBJECTS:
            break
        kind = type(each)
        if issubclass(kind, dict | list | tuple | set | frozenset | deque):
            parts = _parts(each, kind, rest)
        elif _is_array(kind):
            if each.nbytes <= MOST_BYTES and not each.dtype.hasobject:
                rest.append(each.tobytes())
            continue
        elif kind is FunctionType or issubclass(kind, type):
            if each is not thing:
                continue
            parts = [part for name, part in vars(each).items() if not name.startswith("__")]
        elif kind is SimpleNamespace or vars(kind).get("__module__") == "__main__":
            parts = _attributes(each)
        else:
            continue
        objects += [part for part in parts if id(part) not in seen]
        seen.update(map(id, parts))
    return objects, rest


def _parts(each: Any, kind: type, lengths: list[Any]) -> list[Any]:
    # By the methods of Python's own class, which a class of the program may have replaced.
    base: Any = next(base for base in (dict, list, tuple, set, frozenset, deque) if issubclass(kind, base))
    lengths.append(base.__len__(each))
    parts = [*islice(base.__iter__(each), MOST_OBJECTS)]
    return [*parts, *islice(dict.values(each), MOST_OBJECTS)] if base is dict else parts


def _is_array(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.ndarray


def _attributes(thing: Any) -> list[Any]:
    try:
        return [*object.__getattribute__(thing, "__dict__").values()]
    except Exception:
        return []  # it has none, or its class has something else by this name


def begin_in_child() -> None:
    """Forget what the parent was sent: all is from before now."""
    global _given
    # To count references to each global would copy the memory of all of them. Where the main module can be imported,
    # the first message from a program without one looks at them instead.
    _given = None if main_can_be_imported() else dict(vars(sys.modules["__main__"]))
    _states.clear()
