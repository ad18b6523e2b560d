"""What the forked workers of a pool have of a main module that nobody can import, and when a message may name it.

Note [All or nothing]
---------------------
A function that nobody can import brings its globals. A table of 200 000 entries with each task would cost a thousand
times the task; multiprocessing, whose forked workers have the table, sends a name. So a message to workers that were
forked is a name as well, while all that it needs is as it was at the fork:

    table = {...}
    def look(i): return table[i]
    Pool(2) --fork-->      noted: `look`, and the `table` that it mentions
    map(look, ...)         "look": the worker's own, in the main module as it was at the fork
    table["a"] = 5         seen: from now on `look` is sent, with the values of all its globals

A mixture would be neither: to name a list of nodes and send their root takes apart what refers to the same, and a cache
that tasks have filled is wrong with another number. So one change, also of a number or of a function, sends all by
value; and a worker that is sent a name takes back what messages by value have set (`main_globals.take_back`).

A change is told by a look at the contents (`contents.py`) at the fork and before each message. What that misses of a
large object is as it was at the fork, as in multiprocessing. What was seen to be changed is never named again. Nothing
is kept alive for this: a list, which has no weak references, is known by its place and its contents. (Another one with
the same, as a new empty dict for an old one, may be taken for it; then a worker uses its own, as in multiprocessing.)

A worker that is forked later, because the process that forks them was killed, has the main module of that moment, as in
multiprocessing.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import BuiltinFunctionType, FunctionType, ModuleType

from mp_core.children.main_module import NotInherited, is_found_by_name, is_imported
from mp_core.messages import aliases, main_globals, sentinels
from mp_core.messages.contents import (
    VALUES,
    Contents,
    are_same,
    contents_of,
    has_weak_references,
    is_definition,
    lru_cache_wrapper,
    without_long_texts,
)
from mp_core.messages.function_parts import names_of_globals, words_of
from mp_core.messages.main_globals import Absent, is_handle
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_OF_ALL = 20_000  # objects that are looked at before a fork: some milliseconds

_COMPARED = VALUES | {tuple}

_alive: weakref.WeakSet[Inheritance] = weakref.WeakSet()


class _Known:
    """An object that was there before a fork."""

    def __init__(self, thing: Any) -> None:
        self._id = id(thing)
        self._known: Callable[[], Any] | None = weakref.ref(thing) if has_weak_references(thing) else None

    def may_be(self, thing: Any) -> bool:
        """Tell whether it is *thing*, as far as that can be told of what has no weak references."""
        return id(thing) == self._id and (self._known is None or self._known() is thing)


class _Noted(_Known):
    """An object, and what was in it before a fork."""

    def __init__(self, thing: Any, contents: Contents) -> None:
        super().__init__(thing)
        #: The functions and classes of the main module in it.
        self.definitions = [weakref.ref(each) for each in contents.definitions]
        self._contents = contents
        self._alone = _code_alone(thing)
        self._has_changed = False
        contents.freeze()

    def is_same(self, thing: Any) -> bool:
        """Tell whether *thing* is the object, and never was seen with other contents than those from before."""
        before = self._contents
        if self._has_changed or not self.may_be(thing):
            return False
        if self._alone is not None and _code_alone(thing) == self._alone:
            return True
        if contents_of(thing, before=before) is not None:
            return True
        contents = contents_of(thing)
        if contents is None or not contents.are_same_as(before):
            self._has_changed = True
            return False
        contents.freeze()
        self._contents = contents  # with equal objects at other places, where the next look finds them
        return True


class _Global:
    """What a global was before a fork: an object that is looked at, the value of another one, or that there is none."""

    def __init__(self, value: Any) -> None:
        self.is_looked_at = _is_looked_at(value)
        self._before: Any = _Known(value) if self.is_looked_at else _without_text(value)
        self._has_changed = False

    def is_same(self, value: Any) -> bool:
        """Tell whether it always was that when it was asked, as far as it is not in the contents."""
        if self.is_looked_at:
            same = self._before.may_be(value)
        else:
            same = value is self._before or (not _is_looked_at(value) and _is_same(_without_text(value), self._before))
        self._has_changed = self._has_changed or not same
        return not self._has_changed


class Inheritance:
    """
    What the workers of a pool have of this process's main module, if they are forked from now on.

    Threads may use it together.
    """

    def __init__(self) -> None:
        #: By which a worker knows that it was forked with it.
        self.identity = main_globals.new_identity()
        #: Picklers for it, see definitions.py.
        self.picklers: dict[Any, type] = {}
        self._noted: dict[int, _Noted] = {}  # by the `id`
        self._globals: dict[str, _Global] = {}  # that functions mention
        # By the `id`: those of a function whose globals are neither the main module's nor those of another module.
        self._others: dict[int, dict[str, _Global]] = {}
        main = dict(vars(sys.modules["__main__"]))
        for value in main.values():
            aliases.identify(value)
            sentinels.identify(value)
        self._note(main)
        #: Those of aliases and parameters of types that the workers know.
        self.aliases = aliases.identities()
        _alive.add(self)

    def _note(self, main: dict[str, Any]) -> None:
        left = MOST_OF_ALL
        definitions = {id(value): value for value in main.values() if _is_callable_by_name(value)}
        pending, seen = [*definitions.values()], {*definitions}
        for each in pending:  # it grows
            contents = contents_of(each)
            if contents is None or not contents.complete or contents.count > left:
                continue
            aliases.identify(each)
            left -= contents.count
            parts = [*contents.definitions]
            if type(each) is FunctionType:
                for name in names_of_globals(each.__code__) - self._globals.keys():
                    value = main.get(name, Absent)
                    self._globals[name] = noted = _Global(value)
                    if noted.is_looked_at:
                        parts.append(value)
                if names := _of_no_module(each):
                    self._others[id(each)] = {name: _Global(each.__globals__.get(name, Absent)) for name in names}
            for part in parts:
                if id(part) not in seen:
                    seen.add(id(part))
                    pending.append(part)
            self._noted[id(each)] = _Noted(each, contents)

    def needs(self, definition: Any) -> Needs:
        """
        Return what a function or class needs; raise `NotInherited` if the workers may not have all of it, or do not
        find it by its name.
        """
        if not is_found_by_name(definition, same_main=True):
            raise NotInherited
        return Needs(self, definition)

    def noted(self, thing: Any) -> _Noted:
        """Return what was in *thing* at the fork; raise `NotInherited` if the workers may have other contents."""
        noted = self._noted.get(id(thing))
        if noted is None or not noted.is_same(thing):
            raise NotInherited
        return noted

    def noted_others(self, function: Any) -> dict[str, _Global]:
        """
        Return what globals of its own a function had at the fork; raise `NotInherited` if the workers may have others.
        """
        names = _of_no_module(function)
        if not names:
            return {}
        found = self._others.get(id(function), {})
        if found.keys() != names or not _are_steady(function, found):
            raise NotInherited
        return found

    def noted_global(self, name: str, value: Any) -> _Global:
        """Return what the global was at the fork; raise `NotInherited` if the workers may have another *value*."""
        found = self._globals.get(name)
        if found is None or not found.is_same(value):
            raise NotInherited
        return found


class Needs:
    """What a definition needs, and the workers have."""

    def __init__(self, inheritance: Inheritance, definition: Any) -> None:
        self._main = main = vars(sys.modules["__main__"])
        self._definitions: list[tuple[Callable[[], Any], _Noted]] = []
        self._globals: dict[str, tuple[_Global, _Noted | None]] = {}
        self._others: list[tuple[Callable[[], Any], dict[str, _Global]]] = []
        pending, seen = [definition], set()
        for each in pending:  # it grows
            if id(each) in seen:
                continue
            seen.add(id(each))
            noted = inheritance.noted(each)
            self._definitions.append((weakref.ref(each), noted))
            pending += [found() for found in noted.definitions]
            if type(each) is FunctionType and each.__globals__ is main:
                for name in names_of_globals(each.__code__) - self._globals.keys():
                    value = main.get(name, Absent)
                    before = inheritance.noted_global(name, value)
                    contents = inheritance.noted(value) if before.is_looked_at else None
                    self._globals[name] = before, contents
                    if contents is not None:
                        pending += [value] if is_definition(value) else [found() for found in contents.definitions]
            elif type(each) is FunctionType and (others := inheritance.noted_others(each)):
                self._others.append((weakref.ref(each), others))

    def are_same(self) -> bool:
        """Tell whether the workers still have all of it."""
        looked_at = set()
        for known, noted in self._definitions:
            looked_at.add(noted)
            if not noted.is_same(known()):
                return False
        if not all(_are_steady(known(), others) for known, others in self._others):
            return False
        for name, (before, contents) in self._globals.items():
            value = self._main.get(name, Absent)
            if not before.is_same(value):
                return False
            if contents is not None and contents not in looked_at:
                looked_at.add(contents)
                if not contents.is_same(value):
                    return False
        return True


def _code_alone(thing: Any) -> Any:
    """Return the code and the names of a function that has no more of its own, as most; None of another object."""
    if type(thing) is not FunctionType or thing.__defaults__ or thing.__kwdefaults__ or thing.__closure__:
        return None
    return None if thing.__dict__ else (thing.__code__, *words_of(thing))


def _of_no_module(function: Any) -> frozenset[str]:
    """Return the names of the globals that a function uses, if these are not a module's."""
    given = function.__globals__
    if vars(sys.modules.get(given.get("__name__"), sys)) is given:
        return frozenset()
    return names_of_globals(function.__code__)


def _are_steady(function: Any, others: dict[str, _Global]) -> bool:
    """Tell whether a function has its own globals as at the fork, all of which are such as never change in place."""
    values = {} if function is None else {name: function.__globals__.get(name, Absent) for name in others}
    return values.keys() == others.keys() and all(
        each.is_same(values[name]) and (not each.is_looked_at or type(values[name]) is BuiltinFunctionType)
        for name, each in others.items()
    )


def _is_callable_by_name(value: Any) -> bool:
    try:
        return is_definition(value) or type(value) is lru_cache_wrapper
    except Exception as error:  # a metaclass of the program
        if is_of_handler(error):
            raise
        return False


def _is_looked_at(value: Any) -> bool:
    """Tell whether a global may change in place: most numbers, texts and what has a name elsewhere do not."""
    kind = type(value)
    try:
        if kind is ModuleType:
            return not is_imported(value)
        if kind in VALUES or is_handle(value) or issubclass(kind, FunctionType | type):
            return is_definition(value)
    except Exception as error:  # a metaclass of the program
        if is_of_handler(error):
            raise
    return True


def _without_text(value: Any) -> Any:
    """Return what is kept of a global that is not looked at."""
    return Absent if is_handle(value) else without_long_texts([value])[0]


def _is_same(value: Any, before: Any) -> bool:
    return value is before or (type(value) in _COMPARED and are_same(value, before))


def _begin_in_child() -> None:
    global _alive
    main_globals.forks.update(inheritance.identity for inheritance in list(_alive))
    _alive = weakref.WeakSet()


os.register_at_fork(after_in_child=_begin_in_child)
