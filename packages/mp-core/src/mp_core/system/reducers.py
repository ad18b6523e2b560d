"""The table of reducers of `ForkingPickler`, extended to classes that cannot be registered by name.

Python looks a reducer up by the exact class. Three cases need more than that:

- the subclasses of a class: `of_subclasses` offers a reducer to those that have none;
- a library that registers its own classes when it is imported, now or later: `when_registered` sees this and may
  replace the reducer;
- a class that this process may never send: `when_needed` calls a function, which registers a reducer, before the first
  object of the class is pickled. The class need not exist yet.

So a subclass of dict that handles *misses* and *insertions* replaces the table. A hit costs the same as before. A class
that has no reducer is looked for in vain in each message; these are remembered. Each pickler has a table of its own: a
copy of copyreg's, updated with the registered reducers.
"""

from __future__ import annotations

import copyreg
import pickle
from _thread import get_ident
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Reducer = Callable[["Any"], "Any"]

_bases: dict[type, Callable[[type], Reducer | None]] = {}
_watchers: dict[str, list[Callable[[type, Reducer], Reducer]]] = {}
# By "module.name" of a class, and by the name of a package that registers classes.
_awaited: dict[str, list[Callable[[], object]]] = {}
# The names of those classes, without their modules.
_names: set[str] = set()
_under_way: set[tuple[str, int]] = set()


class _Known(ref):  # type: ignore[type-arg]
    """A class without a reducer; and how its objects are written, if that is known: see native/messages/objects.c."""

    __slots__ = ("way",)
    way: int | None


#: Classes of which no base is awaited or has an offer, by id: until one of these tables has another entry.
without: dict[int, _Known] = {}


class _Table(dict[type, "Reducer"]):
    def __missing__(self, kind: type) -> Reducer:
        return find(self, kind)

    def get(self, kind: type, default: Any = None) -> Any:
        if _awaited and kind not in self:
            _meet(kind)
        return super().get(kind, default)

    def __setitem__(self, kind: type, reducer: Reducer) -> None:
        package = kind.__module__.partition(".")[0]
        if _awaited:
            _call_for(package)
        for watch in _watchers.get(package, ()):
            reducer = watch(kind, reducer)
        super().__setitem__(kind, reducer)
        without.pop(id(kind), None)


def find(table: dict[type, Reducer], kind: type) -> Reducer:
    """Return the reducer for a class that is not in *table*; raise a `KeyError` if it has none."""
    registered = install()
    known = without.get(id(kind))
    if known is not None and known() is kind and kind not in registered:
        raise KeyError(kind)
    if _awaited:
        _meet(kind)
    if table is not registered and kind in registered:  # since this table was copied for one pickler
        dict.__setitem__(table, kind, registered[kind])
    if kind in table:
        return table[kind]
    chooses = [choose for base, choose in _bases.items() if base in kind.__mro__]
    for choose in chooses:
        reducer = choose(kind)
        if reducer is not None:
            return reducer
    if not chooses:
        _remember(kind, id(kind))
    raise KeyError(kind)


def _remember(kind: type, key: int) -> None:
    known = _Known(kind, lambda _: without.pop(key, None))
    known.way = None
    without[key] = known


class _Copyreg(ChainMap[type, "Any"]):
    """A live view of copyreg's table; its copy, which becomes a pickler's table, is a `_Table`."""

    def copy(self) -> Any:
        return _Table(copyreg.dispatch_table)


def install() -> _Table:
    """Replace the table of `ForkingPickler`, if it is not replaced yet; return it."""
    pickler: Any = ForkingPickler
    if not isinstance(pickler._extra_reducers, _Table):
        pickler._copyreg_dispatch_table = _Copyreg(copyreg.dispatch_table)
        pickler._extra_reducers = _Table(pickler._extra_reducers)
    table: _Table = pickler._extra_reducers
    return table


# The reducers of `ForkingPickler` and of copyreg when the table was made that picklers copy, and the table.
_merged: tuple[dict[type, Any], dict[type, Any], _Table] = {}, {}, _Table()
# Whether its ``__init__`` is the standard library's: a program may have replaced it before.
_init = ForkingPickler.__init__
_is_standard = _init.__module__ == "multiprocessing.reduction"


def merged(cls: Any) -> dict[type, Any] | None:
    """
    Return the table of reducers that each pickler of *cls*, a `ForkingPickler`, copies; None if a program changed it.

    It is made again when a reducer has been registered, with `ForkingPickler` or copyreg.
    """
    global _merged
    table = install()
    if not (
        _is_standard
        and cls.__init__ is _init
        and cls.__new__ is pickle.Pickler.__new__
        and cls._extra_reducers is table
        and type(cls._copyreg_dispatch_table) is _Copyreg
    ):
        return None
    standard = copyreg.dispatch_table
    extra_seen, standard_seen, both = _merged
    if extra_seen != table or standard_seen != standard:
        extra_seen, standard_seen = dict(table), dict(standard)
        both = _Table(standard_seen)
        both.update(extra_seen)
        _merged = extra_seen, standard_seen, both
    return both


def new_pickler(
    cls: Any,
    file: Any,
    protocol: int,
    buffer_callback: Callable[[pickle.PickleBuffer], Any],
    table: dict[type, Any] | None,
    make_table: Callable[[dict[type, Any]], dict[type, Any]],
) -> Any:
    """
    Return ``cls(file, protocol, True, buffer_callback)``, a `ForkingPickler`, in half the time.

    *table* is what `merged` returns. Its table of reducers, by *make_table*, is its own, as theirs are.
    """
    if table is None:
        return cls(file, protocol, True, buffer_callback)
    pickler = cls.__new__(cls)
    pickle.Pickler.__init__(pickler, file, protocol, True, buffer_callback)
    pickler.dispatch_table = make_table(table)
    return pickler


def offer(kind: type, reducer: Reducer) -> None:
    """Register *reducer* for objects of exactly the class *kind*, unless the program has registered one."""
    table = install()
    if not (dict.__contains__(table, kind) or kind in copyreg.dispatch_table):
        table[kind] = reducer


def of_subclasses(base: type, choose: Callable[[type], Reducer | None]) -> None:
    """Ask *choose* for the reducer of each subclass of *base* that has none; None leaves the class to pickle."""
    install()
    _bases[base] = choose
    without.clear()


def when_needed(subject: str, call: Callable[[], object]) -> None:
    """
    Call *call*, once, before this process pickles an object of the class *subject* or of a subclass of it.

    A *subject* without a dot is a package: *call* is called when its first class is registered with `ForkingPickler`,
    and at once if one is registered already. Nothing is imported.
    """
    table = install()
    if "." not in subject and any(kind.__module__.partition(".")[0] == subject for kind in table):
        call()
        return
    _names.add(subject.rpartition(".")[2])
    _awaited.setdefault(subject, []).append(call)
    without.clear()


def _meet(kind: type) -> None:
    """Make the calls that wait for a class of this one's bases."""
    for base in kind.__mro__:
        if base.__name__ in _names:
            _call_for(f"{base.__module__}.{base.__name__}")


def _call_for(subject: str) -> None:
    """
    Make the calls that wait for *subject*.

    A second thread that needs them meanwhile also makes them, and so waits for what the first one imports. If a call
    fails, the next message has the same error.
    """
    calls, mine = _awaited.get(subject), (subject, get_ident())
    if calls is None or mine in _under_way:
        return
    _under_way.add(mine)
    try:
        for call in calls:
            call()
    finally:
        _under_way.discard(mine)
    _awaited.pop(subject, None)


def when_registered(package: str, watch: Callable[[type, Reducer], Reducer], *, last: bool = False) -> None:
    """
    Call *watch* with each class of *package* and its registered reducer, and use the reducer that it returns instead.

    It is called at once for classes that are registered already. Nothing is imported. Several watchers are called in
    turn, each with the reducer of the one before; one that is to be the *last* has the final word.
    """
    table = install()
    watchers = _watchers.setdefault(package, [])
    if watch in watchers:
        return
    watchers.insert(len(watchers) if last else 0, watch)
    for kind, reducer in list(table.items()):
        if kind.__module__.partition(".")[0] == package:
            table[kind] = reducer
