"""The globals of a main module that nobody can import: which a message sets, and which this process has made its own.

Note [Whose value it is]
------------------------
A message brings the globals that its functions use, since the program may have changed them. But what this process has
made of one stays:

    a function sets it                                       another object: seen
    an initializer changes it in place: fills a dict, ...    seen by a look at its contents, before and after
    an initializer gives a class an attribute                likewise; the class is one object in all messages
    an initializer gives a function an attribute             likewise; the function of a later message gets it
    an initializer changes a function's cells, its defaults  likewise; the function stays while the program's does
    a task changes it in place                               not seen: the next message replaces it
    it is a generator of random numbers                      goes on here, until the program has another state
"""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import process
from types import CellType, FunctionType

from mp_core.children.main_module import main_can_be_imported
from mp_core.messages.contents import attributes_of, bases_of, contents_of, module_of
from mp_core.messages.function_parts import content_of
from mp_core.messages.random_generators import GENERATORS, name_of, set_state, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.messages.contents import Contents

MOST_OF_ALL = 50_000  # objects that are looked at before an initializer: some milliseconds

# The globals that messages have set, and those from before: the main module of a new child has names of Python's own.
_given: dict[str, Any] | None = None
# What an initializer has given attributes; the functions by their names, since each message makes new ones, with the
# names of these attributes, and the numbers of their defaults and cells with the contents from before.
_own_classes: weakref.WeakSet[type] = weakref.WeakSet()
_own_functions: dict[str, dict[Any, Contents | None]] = {}
# The states of the generators of random numbers that messages have brought, and of those that an initializer found.
_states: dict[str, bytes] = {}
_has_states = False  # of all that were there at the fork
#: By which messages name what this process was forked with, see inherited_globals.py.
forks: set[str] = set()
# What messages have replaced in a process that may be sent such names: globals, and the attributes of classes, with the
# new ones.
_before: dict[str, Any] = {}
_classes_before: dict[type, dict[str, tuple[Any, Any]]] = {}
# The attributes of classes that were taken back, until the next message.
_restored: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()

_METHODS = (FunctionType, property, staticmethod, classmethod)
_HANDLES = (
    ("multiprocessing.pool", "Pool"),
    ("multiprocessing.pool", "ApplyResult"),
    ("multiprocessing.pool", "IMapIterator"),
    ("concurrent.futures._base", "Executor"),
    ("concurrent.futures._base", "Future"),
)


def new_identity() -> str:
    """Return a text by which processes know a thing: no other process, and no later call, returns it."""
    return f"{os.getpid()} {os.urandom(16).hex()}"


class Absent:
    """Stands in a message for a global that the receiver cannot have."""


def is_handle(thing: Any) -> bool:
    """
    Tell whether *thing* stands for work of this process, as a pool, a future or a result. A function may mention one
    that another process does not have: it is an error where the function uses it.
    """
    kind = type(thing)
    if str(kind.__module__).partition(".")[0] not in ("multiprocessing", "concurrent", "mp_pool"):
        return False  # a program's own may be sent
    return any(issubclass(kind, getattr(sys.modules.get(module), name, ())) for module, name in _HANDLES)


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
            continue
        if forks and name not in _before:
            _before[name] = main.get(name, Absent)
        if value is Absent:
            main.pop(name, None)
            _given.pop(name, None)
        elif name_of(type(value)) in GENERATORS and (state := _pickled_state(value)):
            generators.append((name, value, state))
        else:
            if name in _own_functions and type(value) is type(main.get(name)) is FunctionType:
                value = _with_own_parts(value, main[name], _own_functions[name])
            main[name] = _given[name] = resolved(value)
    if generators:
        _set_generators(main, _given, generators)


def _with_own_parts(function: Any, own: Any, before: dict[Any, Contents | None]) -> Any:
    """
    Return a function with what an initializer has given its *own*, which had the contents *before* in these parts. If
    only defaults or cells differ by that, it is the own function.
    """
    is_own = any(type(part) is int for part in before) and _is_as_before(function, own, before)
    first, second = (own, function) if is_own else (function, own)
    vars(first).update((name, value) for name, value in vars(second).items() if (name in before) is not is_own)
    return first


def _is_as_before(function: Any, own: Any, before: dict[Any, Contents | None], seen: tuple[Any, ...] = ()) -> bool:
    """Tell whether the program still gives a function the code, the defaults and the cells that were here."""
    if any(function is each for each in seen):
        return True
    here, given = _numbered_parts(own), _numbered_parts(function)
    if function.__code__ != own.__code__ or given.keys() != here.keys():
        return False
    for number, part in given.items():
        inner, others = (content_of(each) if type(each) is CellType else each for each in (part, here[number]))
        if type(inner) is type(others) is FunctionType:  # each message makes a new one
            if not _is_as_before(inner, others, {}, (*seen, function)):
                return False
            continue
        first = before[number] if number in before else contents_of(here[number])
        now = contents_of(part)
        if first is None or now is None or not now.are_same_as(first):
            return False
    return True


def _numbered_parts(function: Any) -> dict[int, Any]:
    """Return the defaults and the cells of a function."""
    parts = function.__defaults__, function.__kwdefaults__, *(function.__closure__ or ())
    return {number: part for number, part in enumerate(parts) if part is not None}


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


def take_back() -> None:
    """
    Take back what messages have set, so that the main module is as it was at the fork, but for what is this process's
    own. See Note [All or nothing] in inherited_globals.py.
    """
    global _has_states
    main = vars(sys.modules["__main__"])
    note_globals(main)
    assert _given is not None
    if not _has_states:
        _has_states = True
        _states.update({**_states_in(main), **_states})
    for kind, changes in list(_classes_before.items()):
        _take_back_class(kind, changes)
    _classes_before.clear()
    for name, value in list(_before.items()):
        copy = main.get(name, Absent)
        if copy is not _given.get(name, Absent):
            continue
        if value is Absent:
            main.pop(name, None)
            _given.pop(name, None)
            continue
        if type(copy) is type(value) and _pickled_state(value):
            set_state(value, state_of(copy))  # it goes on
        main[name] = _given[name] = value
    _before.clear()


def set_class(kind: type, set_attributes: Callable[[], object]) -> None:
    """Have a message set the attributes of a class that was there at the fork."""
    before = dict(attributes_of(kind))
    set_attributes()
    if not forks:
        return
    known = _classes_before.setdefault(kind, {})
    after = attributes_of(kind)
    for name in {**before, **after}:
        former, value = before.get(name, Absent), after.get(name, Absent)
        if value is not former:
            first, last = known.get(name, (former, former))
            known[name] = first if last is former else former, value


def _take_back_class(kind: type, changes: dict[str, tuple[Any, Any]]) -> None:
    for name, (former, value) in changes.items():
        if attributes_of(kind).get(name, Absent) is not value:
            continue  # a task has set it meanwhile
        if former is not value:
            set_attribute(kind, name, former)
            _restored.setdefault(kind, set()).add(name)


def restored(kind: type) -> set[str]:
    """Return, once, the names of the attributes that were taken back: the next message may be without them."""
    return _restored.pop(kind, set())


def set_attribute(kind: Any, name: str, value: Any) -> None:
    """Set an attribute of a class, or delete it if the value is `Absent`."""
    # A metaclass of a program, or of enumerations, may refuse; those of ctypes have to do it themselves.
    if value is Absent:
        try:
            type.__delattr__(kind, name)
        except TypeError:
            delattr(kind, name)
        return
    try:
        type.__setattr__(kind, name, value)
    except TypeError:
        setattr(kind, name, value)


def _states_in(main: dict[str, Any]) -> dict[str, bytes]:
    return {name: state for name, value in main.items() if (state := _pickled_state(value))}


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
    _states.update(_states_in(main))
    before: list[tuple[str, _Found]] = []
    left = MOST_OF_ALL
    for name, found in _globals_and_their_classes(main):
        if left > 0 and not _is_of_a_module(found) and state_of(found) is None:
            before.append((name, contents := _Found(found)))
            left -= contents.count
    function(*args)
    for name, contents in before:
        value = contents.thing
        if (name and main.get(name) is not value) or not (changed := contents.changed()):
            continue
        if issubclass(type(value), type):
            _own_classes.add(contents.thing)
        elif type(value) is FunctionType:
            _own_functions.setdefault(name, {}).update(changed)
        else:
            _given.pop(name, None)


def _globals_and_their_classes(main: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals, with their names, and the classes of the main module in their classes, without."""
    # Functions last: what is in their cells may be all that can be looked at.
    pending = sorted(main.items(), key=lambda item: type(item[1]) is FunctionType)
    seen = {id(thing) for _, thing in pending}
    for name, thing in pending:  # it grows
        yield name, thing
        if issubclass(type(thing), type) and not _is_of_a_module(thing):
            inner = [part for part in attributes_of(thing).values() if issubclass(type(part), type)]
            pending += [("", part) for part in inner if id(part) not in seen]
            seen.update(map(id, inner))


def _is_of_a_module(thing: Any) -> bool:
    """Tell whether *thing* is a function or class that every process can import."""
    if type(thing) is FunctionType:
        return thing.__module__ != "__main__"
    return issubclass(type(thing), type) and module_of(thing) != "__main__"


class _Found:
    """
    The contents of *thing*: of a class by the attribute, of a function too, whose defaults and cells have numbers, of
    anything else in one piece.
    """

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        parts = _parts_of(thing)
        is_class = issubclass(type(thing), type)
        self._held = [*attributes_of(thing).values(), *bases_of(thing), type(thing)] if is_class else []
        self._parts = {name: contents_of(part, keep=True) for name, part in parts.items()}
        self.count = sum(contents.count for contents in self._parts.values() if contents is not None) + 1
        numbered = _numbered_parts(thing) if type(thing) is FunctionType else {}
        self._first = {number: contents_of(part) for number, part in numbered.items()}

    def changed(self) -> dict[Any, Contents | None]:
        """Return which parts have other contents now; of defaults and cells, with those from before."""
        parts = _parts_of(self.thing)
        return {
            name: self._first.get(name)
            for name in parts.keys() | self._parts.keys()
            if name not in parts
            or name not in self._parts
            or not _are_same(contents_of(parts[name], keep=True), self._parts[name])
        }


def _are_same(now: Contents | None, before: Contents | None) -> bool:
    return now is None or before is None or now.are_same_as(before)


def _class_parts(kind: type) -> dict[Any, Any]:
    """
    Return the attributes of a class that have not the form of those of Python and its enumerations, and, to be compared
    by their identities, its methods that have, its bases and its metaclass.
    """
    own = attributes_of(kind)
    parts: dict[Any, Any] = {0: str([*map(id, (*bases_of(kind), type(kind)))])}
    for name, part in own.items():
        if type(name) is not str:
            continue
        if not (name.startswith("_") and name.endswith("_")):
            parts[name] = part
        elif type(part) in _METHODS and not any(attributes_of(base).get(name) is part for base in bases_of(kind)[1:]):
            parts[name] = id(part)  # a Protocol gives a class the `__init__` of a base when it is used
    return parts


def _parts_of(thing: Any) -> dict[Any, Any]:
    if type(thing) is FunctionType:
        return {**vars(thing), **_numbered_parts(thing)}
    return _class_parts(thing) if issubclass(type(thing), type) else {"": thing}


def begin_in_child() -> None:
    """Forget what the parent was sent: all is from before now."""
    global _given, _has_states
    # To count references to each global would copy the memory of all of them. Where the main module can be imported,
    # the first message from a program without one looks at them instead.
    _given = None if main_can_be_imported() else dict(vars(sys.modules["__main__"]))
    _own_classes.clear()
    _own_functions.clear()
    _states.clear()
    _has_states = False
    _before.clear()
    _classes_before.clear()
