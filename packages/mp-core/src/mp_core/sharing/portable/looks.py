"""The substitutes, without libshm, for the functions that look at what is in objects: see messages/contents.py."""

from __future__ import annotations

from typing import Any

__all__ = ["look", "see"]

_VALUES = frozenset({int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented)})
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


def look(
    pending: list[Any],
    begin: int,
    places: dict[int, tuple[int]],
    values: list[Any],
    getters: dict[int, Any],
    objects: int,
    parts: int,
) -> tuple[int, int]:
    """
    Look at the objects in *pending* from *begin* on, and at those that this appends: at most up to the number
    *objects*, and until so many *parts* were seen. Return the number of the first one that was not looked at, since it
    is none of these or has more than *parts*; and how many parts were seen.
    """
    count = 0
    while begin < min(objects, len(pending)) and count <= parts:
        each = pending[begin]
        kind = type(each)
        if any(kind is container for container in _CONTAINERS) and len(each) <= parts:
            values += kind, len(each)
            count += see([*each, *each.values()] if kind is dict else [*each], pending, places, values)
        elif id(kind) in getters:
            own = getters[id(kind)](each)
            values += id(kind), tuple(own)
            count += see([*own.values()], pending, places, values)
        else:
            break
        begin += 1
    return begin, count


def see(parts: list[Any], pending: list[Any], places: dict[int, tuple[int]], values: list[Any]) -> int:
    """See the objects in the list *parts*; return how many these are."""
    for part in parts:
        if type(part) in _VALUES:
            values.append(part)
            continue
        if id(part) not in places:
            places[id(part)] = (len(pending),)
            pending.append(part)
        values.append(places[id(part)])
    return len(parts)
