"""`Definitions`: a function without a name, as of a notebook or a lambda, goes to each worker once.

Note [A definition that stays]
------------------------------
A function that a worker cannot import travels as its definition (`mp_core.messages.definitions`), with the globals that
it uses. To make that anew for each task costs twenty times a small task. So when a task calls the same definition
again, it is announced to the workers, as the function of a `map` is, and a worker keeps the function itself. The same
means: the code is the same object, and all that it is made of is too:

    its defaults, closure and attributes       looked at before each task, by identity
    the globals that it names                  likewise, and of each function among them the same
    a list, an array, an object among these    forked workers have it: mp_core.messages.inherited_globals. To others,
                                               the task carries the definition: nobody sees whether it was changed

A cell of a notebook that runs again makes new code, and so a new definition. The worker sets the globals of a
definition before each task, by the rule of `mp_core.messages.definitions`: another message may have set one of them
meanwhile.
A function that assigns to a variable of the function around it, or to globals that each message makes anew, is not
kept: each of its tasks begins with the values that the program has.
"""

from __future__ import annotations

import sys
import weakref
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from mp_core.children.main_module import (
    NotInherited,
    has_name,
    is_found_by_name,
    is_imported,
    main_can_be_imported,
    sends_definitions,
)
from mp_core.messages.function_parts import codes, function_parts
from mp_core.messages.pickling import is_set_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mp_core.messages.inherited_globals import Inheritance
    from mp_pool.tasks.shared_function import SharedFunction

MOST = 64  # definitions that workers keep at one time
LONG = 4096  # characters, bytes or elements

_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), type(...)})
_SIZED = frozenset({str, bytes, tuple, frozenset})
_MISSING = object()


class Definitions:
    """
    Decides which functions without a name the workers of a pool keep: from the second task on, if nothing in them can
    change.

    *share* announces a function to the workers and returns what their tasks name, or None if it cannot be pickled. If
    the workers *are forked*, ask for the `inheritance` before.
    """

    def __init__(self, share: Callable[[Any, Inheritance | None], SharedFunction | None], are_forked: bool) -> None:
        self._share = share
        self._known: dict[int, _Known | _Inherited] = {}  # by the code, which each keeps alive
        self._are_forked = are_forked
        self._inheritance: dict[None, Inheritance | None] = {}

    @property
    def inheritance(self) -> Inheritance | None:
        """What the workers have since their fork; None if messages do not name it."""
        if None not in self._inheritance:
            found = None
            if self._are_forked and is_set_up() and sends_definitions():
                from mp_core.messages.inherited_globals import Inheritance

                found = Inheritance()
            self._inheritance.setdefault(None, found)  # another thread may be about to fork too
        return self._inheritance[None]

    def of(self, function: Any, often: bool = False) -> SharedFunction | None:
        """
        Return *function* for a task that calls it, for its first task only if it is called *often*; None if the task
        has to carry it.
        """
        if type(function) is not FunctionType or has_name(function):
            return None
        known = self._known.get(id(function.__code__))
        if known is None or not known.is_same(function):
            self._known.pop(id(function.__code__), None)
            try:
                known = _Known(function)
            except _Changeable:
                if (inherited := self._inherited(function)) is None:
                    return None
                known = inherited
            for oldest in list(self._known)[: len(self._known) - MOST + 1]:  # several threads submit
                self._known.pop(oldest, None)
            self._known[id(function.__code__)] = known
        elif not known.is_shared:
            often = True
        if often and not known.is_shared:
            known.shared, known.is_shared = self._share(function, self.inheritance), True
        return known.shared

    def inheritance_for(self, function: Any) -> Inheritance | None:
        """Return what a message with *function* may name, after `of`."""
        if type(function) is FunctionType and not has_name(function):
            known = self._known.get(id(function.__code__))
            return None if known is None else self.inheritance
        return self.inheritance

    def _inherited(self, function: Any) -> _Inherited | None:
        if self.inheritance is None:
            return None
        try:
            return _Inherited(function, self.inheritance)
        except NotInherited:
            return None

    def kept(self, function: Any) -> SharedFunction | None:
        """Return *function* if the workers keep it, and it is what they have; None otherwise."""
        known = self._known.get(id(function.__code__)) if type(function) is FunctionType else None
        return known.shared if known is not None and known.is_shared and known.is_same(function) else None


class _Changeable(Exception):
    """A function has a part that may change and stay the same object."""


class _Known:
    """What a definition is made of."""

    def __init__(self, function: FunctionType) -> None:
        self.shared: SharedFunction | None = None
        self.is_shared = False
        self._state = function_parts(function)
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._others: list[tuple[FunctionType, list[Any]]] = []  # the functions that it calls
        self._look_at(function, set())

    def is_same(self, function: Any) -> bool:
        """Tell whether *function*, which has the same code, is the same definition."""
        if not _are_same(function_parts(function), self._state):
            return False
        for names, name, value in self._globals:
            if names.get(name, _MISSING) is not value:
                return False
        return all(_are_same(function_parts(other), state) for other, state in self._others)

    def _look_at(self, function: FunctionType, seen: set[int]) -> None:
        seen.add(id(function))
        names = function.__globals__
        is_of_main = names is vars(sys.modules["__main__"]) and not main_can_be_imported()
        if any(_assigns(code, not is_of_main) for code in codes(function.__code__)):
            raise _Changeable
        for value in function_parts(function)[1:]:
            self._check(value, seen)
        for name in {name for code in codes(function.__code__) for name in code.co_names}:
            value = names.get(name, _MISSING)
            self._globals.append((names, name, value))
            if value is not _MISSING:
                self._check(value, seen)

    def _check(self, value: Any, seen: set[int]) -> None:
        kind = type(value)
        if kind in _SIZED and len(value) > LONG:
            raise _Changeable  # what is kept is kept in each worker
        if kind in _ATOMS or id(value) in seen:
            return
        if kind in (tuple, frozenset):
            for each in value:
                self._check(each, seen)
        elif kind is FunctionType and not _is_found(value):
            self._others.append((value, function_parts(value)))
            self._look_at(value, seen)
        elif not (isinstance(value, ModuleType | BuiltinFunctionType | FunctionType | type) and _is_found(value)):
            raise _Changeable


class _Inherited:
    """A definition that the workers have, with all that it needs."""

    def __init__(self, function: FunctionType, inheritance: Inheritance) -> None:
        self.shared: SharedFunction | None = None
        self.is_shared = False
        self._function, self._code = weakref.ref(function), function.__code__
        self._needs = inheritance.needs(function)

    def is_same(self, function: Any) -> bool:
        """Tell whether *function*, which has the same code, is the same definition."""
        return function is self._function() and self._needs.are_same()


def _is_found(value: Any) -> bool:
    """Tell whether another process has *value* by its name."""
    if isinstance(value, ModuleType):
        return value.__name__ != "__main__" and is_imported(value)
    own = value.__self__ if isinstance(value, BuiltinFunctionType) else None  # a metaclass may answer for a class
    return isinstance(own, ModuleType | None) and is_found_by_name(value)


def _are_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(map(is_, first, second))


def _assigns(code: CodeType, to_globals: bool) -> bool:
    """Tell whether the code assigns to a variable of a function around it, or to a global one."""
    from opcode import opmap

    found = {opmap["STORE_DEREF"], opmap["DELETE_DEREF"]} if code.co_freevars else set()
    if to_globals:
        found |= {opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"]}
    return not found.isdisjoint(code.co_code[::2])
