"""Hooks around a fork: one table for all modules of Python.

    register(before, after_in_parent, after_in_child)

Note [A hook that comes during a fork]
--------------------------------------
The interpreter looks each kind of hook up by itself. A module that registers its hooks while another thread forks, as
modules that are imported late do, would have its `after_in_parent` called without its `before`, and release a lock that
nobody has taken. Here the hooks after a fork are those whose `before` has returned for this fork, in reverse order, as
the interpreter orders them. `after_in_child` alone is always called: it makes things new.

libshm has hooks of its own (`libshm/src/session/fork.c`), which run inside of these.
"""

from __future__ import annotations

import os
from _thread import get_ident

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from collections.abc import Callable

    Hook = Callable[[], object]

__all__ = ["register"]

_befores: list[tuple[Hook, Hook | None]] = []
_in_child: list[Hook] = []
# Those of the forks that are under way, by thread: a `before` that waits lets other threads run, which may fork, too.
_to_undo: dict[int, list[Hook | None]] = {}


def register(
    *, before: Hook | None = None, after_in_parent: Hook | None = None, after_in_child: Hook | None = None
) -> None:
    """
    Register functions as `os.register_at_fork` does; *after_in_parent* is called only if *before* has returned.

    Nothing happens on a system that cannot fork.

    Parameters
    ----------
    before : callable, optional
        It is called in the parent before it forks, the one that was registered last first.
    after_in_parent : callable, optional
        It is called in the parent after the fork, and undoes what *before* has done.
    after_in_child : callable, optional
        It is called in the child.

    Examples
    --------
    >>> mp_core.forks.register(after_in_child=lambda: None)
    """
    if not hasattr(os, "register_at_fork"):
        return
    if not _befores and not _in_child:
        os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
    if after_in_child is not None:
        _in_child.append(after_in_child)
    if before is not None:
        _befores.append((before, after_in_parent))


def _before() -> None:
    done: list[Hook | None] = []
    _to_undo[get_ident()] = done
    for before, undo in reversed(_befores.copy()):
        before()
        done.append(undo)


def _after_in_parent() -> None:
    for undo in reversed(_to_undo.pop(get_ident(), [])):
        if undo is not None:
            undo()


def _after_in_child() -> None:
    _to_undo.clear()
    for make in _in_child:
        make()
