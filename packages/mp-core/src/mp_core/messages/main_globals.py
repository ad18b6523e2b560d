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
from types import FunctionType, GetSetDescriptorType, SimpleNamespace

from mp_core.children.main_module import main_can_be_imported
from mp_core.messages.random_generators import GENERATORS, name_of, set_state, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Of one global, and of all: it takes some milliseconds to look at so many.
MOST_OBJECTS, MOST_OF_ALL = 1000, 50_000
MOST_BYTES = 1 << 16

# The globals that messages have set, and those from before: the main module of a new child has names of Python's own.
_given: dict[str, Any] | None = None
# What an initializer has given attributes; the functions by their names, since each message makes new ones, with the
# names of these attributes.
_own_classes: weakref.WeakSet[type] = weakref.WeakSet()
_own_functions: dict[str, set[str]] = {}
# The states of the generators of random numbers that messages have brought, and of those that an initializer found.
_states: dict[str, bytes] = {}

# By what Python says of a class, whatever its metaclass says.
_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
_attributes_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__


class Absent:
    """Stands in a message for a global that the receiver cannot have."""


def note_globals(main: dict[str, Any]) -> None:
    """Note what was there before the first message sets something."""
    global _given
    if _given is None:
        is_child = getattr(process.current_process(), "_inheriting", False) or process.parent_process() is not None
        _given = dict(main) if is_child else {}


def set_globals(main: dict[str, Any], needed: dict[str, Any], resolved: Callable[[Any], Any]) -> None:
    """Set those of the globals that this process has not made its own; *resolved* returns a value in its place."""
    assert _given is not None
    generators: list[tuple[str, Any, bytes]] = []
    for name, value in needed.items():
        if name in main and not (name in _given and main[name] is _given[name]):
            _given.pop(name, None)
        elif value is Absent:
            main.pop(name, None)
            _given.pop(name, None)
        elif name_of(type(value)) in GENERATORS and (state := _pickled_state(value)):
            generators.append((name, value, state))
        else:
            if name in _own_functions and type(value) is type(main.get(name)) is FunctionType:
                own = vars(main[name])
                vars(value).update((key, own[key]) for key in _own_functions[name] if key in own)
            main[name] = _given[name] = resolved(value)
    if generators:
        _set_generators(main, _given, generators)


def _set_generators(main: dict[str, Any], given: dict[str, Any], generators: list[tuple[str, Any, bytes]]) -> None:
    """Set generators of random numbers; one that the program has in the same state as before goes on as it is here."""
    for name, value, state in generators:
        own = main.get(name)
        before = _states.get(name) or _pickled_state(own)
        _states[name] = state
        # The object of the message, since others in that may refer to it.
        if state == before and type(own) is type(value) and _pickled_state(value) == state:
            set_state(value, state_of(own))
        main[name] = given[name] = value


def _pickled_state(thing: Any) -> bytes:
    """Return what tells whether two generators of random numbers have one state; nothing for what is none."""
    state = state_of(thing)
    return b"" if state is None else pickle.dumps(state)


def is_own(kind: type) -> bool:
    """Tell whether an initializer has changed the attributes of the class."""
    return kind in _own_classes


def initialize(function: Callable[..., object], *args: Any) -> None:
    """Call an initializer; what it changes of the main module is this process's own from then on."""
    if _given is None:
        function(*args)  # the program has no such main module
        return
    main = vars(sys.modules["__main__"])
    _states.update((name, state) for name, value in main.items() if (state := _pickled_state(value)))
    before: dict[str, _Contents] = {}
    left = MOST_OF_ALL
    for name, found in main.items():
        if left > 0 and not _is_of_a_module(found):
            before[name] = contents = _Contents(found)
            left -= contents.count
    function(*args)
    for name, contents in before.items():
        value = contents.thing
        if main.get(name) is not value or not (changed := contents.changed()):
            continue
        if type(value) is FunctionType:
            _own_functions.setdefault(name, set()).update(changed)
        elif issubclass(type(value), type):
            _own_classes.add(contents.thing)
        else:
            _given.pop(name, None)


def _is_of_a_module(thing: Any) -> bool:
    """Tell whether *thing* is a function or class that every process can import."""
    if type(thing) is FunctionType:
        return thing.__module__ != "__main__"
    return issubclass(type(thing), type) and _module_of(thing) != "__main__"


class _Contents:
    """What is in *thing*, of a function or class by the attribute, of anything else in one piece."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self._parts = {name: _looked_at(part) for name, part in _parts_of(thing).items()}
        self.count = sum(len({*map(id, objects)}) for objects, _ in self._parts.values()) + 1

    def changed(self) -> set[str]:
        """Return which parts have other contents now."""
        parts = _parts_of(self.thing)
        return {
            name
            for name in parts.keys() | self._parts.keys()
            if name not in parts or name not in self._parts or not _are_same(_looked_at(parts[name]), self._parts[name])
        }


def _parts_of(thing: Any) -> dict[str, Any]:
    if type(thing) is FunctionType:
        attributes = vars(thing)
    elif issubclass(type(thing), type):
        attributes = _attributes_of(thing)
    else:
        return {"": thing}
    return {name: part for name, part in attributes.items() if type(name) is str and not _is_of_python(name)}


def _is_of_python(name: str) -> bool:
    """Tell whether *name* has the form of those of Python and its enumerations: `__doc__`, `_member_map_`."""
    return name.startswith("_") and name.endswith("_")


def _are_same(now: tuple[list[Any], list[Any]], before: tuple[list[Any], list[Any]]) -> bool:
    return len(now[0]) == len(before[0]) and all(map(is_, now[0], before[0])) and now[1] == before[1]


def _looked_at(thing: Any) -> tuple[list[Any], list[Any]]:
    """
    Return the first objects in *thing*, and the lengths of its lists and the bytes of its arrays.

    The objects are kept until they are compared, so that no other has the place of one.
    """
    objects: list[Any] = [thing]  # wherever they are: the program may exchange two
    different: list[Any] = [thing]
    rest: list[Any] = []
    seen = {id(thing)}
    left = MOST_BYTES
    for each in different:  # it grows
        if len(different) > MOST_OBJECTS:
            break
        kind = type(each)
        if issubclass(kind, dict | list | tuple | set | frozenset | deque):
            parts = _items_of(each, kind, rest)
        elif _is_private_array(each) and each.nbytes <= left:
            left -= each.nbytes
            rest.append(each.tobytes())
            continue
        elif kind is SimpleNamespace or (_module_of(kind) == "__main__" and not issubclass(kind, type)):
            parts = _values_of(each, kind)
        else:
            continue
        objects += parts
        different += [part for part in parts if id(part) not in seen]
        seen.update(map(id, parts))
    return objects, rest


def _items_of(each: Any, kind: type, lengths: list[Any]) -> list[Any]:
    # By the methods of Python's own class, which a class of the program may have replaced.
    base: Any = next(base for base in (dict, list, tuple, set, frozenset, deque) if issubclass(kind, base))
    lengths.append(base.__len__(each))
    parts = [*islice(base.__iter__(each), MOST_OBJECTS)]
    return [*parts, *islice(dict.values(each), MOST_OBJECTS)] if base is dict else parts


def _is_private_array(each: Any) -> bool:
    """Tell whether *each* is an array with memory of its own: others may change what is shared."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(each) is numpy.ndarray and each.base is None and not each.dtype.hasobject


def _values_of(thing: Any, kind: type) -> list[Any]:
    """Return the attributes of an object, if it has a dict that is no property of its class."""
    for base in type.__dict__["__mro__"].__get__(kind):
        found = _attributes_of(base).get("__dict__")
        if found is not None:
            return [*found.__get__(thing).values()] if type(found) is GetSetDescriptorType else []
    return []


def begin_in_child() -> None:
    """Forget what the parent was sent: all is from before now."""
    global _given
    # To count references to each global would copy the memory of all of them. Where the main module can be imported,
    # the first message from a program without one looks at them instead.
    _given = None if main_can_be_imported() else dict(vars(sys.modules["__main__"]))
    _own_classes.clear()
    _own_functions.clear()
    _states.clear()
