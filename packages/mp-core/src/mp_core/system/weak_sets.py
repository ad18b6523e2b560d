"""`members`: the objects in a weak set that signal handlers and other threads add to meanwhile."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import weakref
    from typing import TypeVar

    T = TypeVar("T")


def members(of: weakref.WeakSet[T]) -> list[T]:
    """
    Return the objects in a weak set, at one moment.

    A `weakref.WeakSet` is iterated in Python, and raises RuntimeError when an object is added in between.

    Parameters
    ----------
    of : weakref.WeakSet
        Each object that is added while this function runs may be in the list or not.

    Returns
    -------
    list
        The objects that live, in no order.

    Examples
    --------
    >>> mp_core.system.weak_sets.members(weakref.WeakSet())
    []
    """
    while True:
        try:
            return list(of)
        except RuntimeError:
            pass
