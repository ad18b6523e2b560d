"""The table of reducers of `ForkingPickler`, extended to classes that cannot be registered by name.

Python looks a reducer up by the exact class. Two cases need more than that:

- the subclasses of a class: `of_subclasses` offers a reducer to those that have none;
- a library that registers its own classes when it is imported, now or later: `when_registered` sees this and may
  replace the reducer.

So a subclass of dict that handles *misses* and *insertions* replaces the table. A hit costs the same as before. Each
pickler has a table of its own: a copy of copyreg's, updated with the registered reducers.
"""

from __future__ import annotations

import copyreg
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = ["Reducer", "of_subclasses", "when_registered"]

Reducer = Callable[[Any], Any]

_bases: dict[type, Callable[[type], Reducer | None]] = {}
_watchers: dict[str, list[Callable[[type, Reducer], Reducer]]] = {}


class _Table(dict[type, Reducer]):
    def __missing__(self, kind: type) -> Reducer:
        for base, choose in _bases.items():
            if base in kind.__mro__:
                reducer = choose(kind)
                if reducer is not None:
                    return reducer
        raise KeyError(kind)

    def __setitem__(self, kind: type, reducer: Reducer) -> None:
        for watch in _watchers.get(kind.__module__.partition(".")[0], ()):
            reducer = watch(kind, reducer)
        super().__setitem__(kind, reducer)


class _Copyreg(ChainMap[Any, Any]):
    """A live view of copyreg's table; its copy, which becomes a pickler's table, is a `_Table`."""

    def copy(self) -> Any:
        return _Table(copyreg.dispatch_table)


def _install() -> _Table:
    pickler: Any = ForkingPickler
    if not isinstance(pickler._extra_reducers, _Table):
        pickler._copyreg_dispatch_table = _Copyreg(copyreg.dispatch_table)
        pickler._extra_reducers = _Table(pickler._extra_reducers)
    table: _Table = pickler._extra_reducers
    return table


def of_subclasses(base: type, choose: Callable[[type], Reducer | None]) -> None:
    """Ask *choose* for the reducer of each subclass of *base* that has none; None leaves the class to pickle."""
    _install()
    _bases[base] = choose


def when_registered(package: str, watch: Callable[[type, Reducer], Reducer], *, last: bool = False) -> None:
    """
    Call *watch* with each class of *package* and its registered reducer, and use the reducer that it returns instead.

    It is called at once for classes that are registered already. Nothing is imported. Several watchers are called in
    turn, each with the reducer of the one before; one that is to be the *last* has the final word.
    """
    table = _install()
    watchers = _watchers.setdefault(package, [])
    if watch in watchers:
        return
    watchers.insert(len(watchers) if last else 0, watch)
    for kind, reducer in list(table.items()):
        if kind.__module__.partition(".")[0] == package:
            table[kind] = reducer
