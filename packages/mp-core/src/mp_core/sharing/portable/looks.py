"""The substitutes, without libshm, for the functions that look at what is in objects: see messages/contents.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

__all__ = ["dict_of", "look", "see"]

_VALUES = frozenset({int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented)})
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


_Classes = dict[int, bool | None]
_State = tuple[list[Any], dict[int, tuple[int]], list[Any], list[Any], _Classes, Iterator[Any] | None, list[int]]


def look(state: _State, begin: int, count: int, most_objects: int, most_parts: int) -> tuple[int, int]:
    """
    Look at the pending objects from *begin* on, and at those that this appends, up to these numbers. Return the number
    of the first one that was not looked at, since it is no container, of none of the classes or has more than
    *most_parts*; and the *count* of parts that were seen.
    """
    pending, _places, values, objects, classes = state[:5]
    while begin < min(most_objects, len(pending)) and count <= most_parts:
        each = pending[begin]
        kind = type(each)
        if any(kind is container for container in _CONTAINERS) and len(each) <= most_parts:
            values += kind, len(each)
            count += see(state, [*each, *each.values()] if kind is dict else [*each])
        elif id(kind) not in classes:
            break
        elif (has_dict := classes[id(kind)]) is None:
            parts = [part for part in gc.get_referents(each) if part is not kind]
            see(state, [kind, *parts])
            count += sum(type(part) not in _VALUES for part in parts)  # the numbers of a slice do not count
        elif not has_dict:
            objects.append(each)
        else:
            own = dict_of(each)
            values += id(kind), tuple(own)
            count += see(state, [*own.values()])
        begin += 1
    return begin, count


def see(state: _State, parts: list[Any]) -> int:
    """See the objects in the list *parts*; return how many these are."""
    pending, places, values, _objects, _classes, rest, _ids = state
    if rest is not None:
        raise LookupError("to compare would save no time here")
    for part in parts:
        if type(part) in _VALUES:
            values.append(part)
            continue
        if id(part) not in places:
            places[id(part)] = (len(pending),)
            pending.append(part)
        values.append(places[id(part)])
    return len(parts)


def dict_of(thing: Any) -> dict[Any, Any]:
    """Return the dict of the attributes of an object, of whose class it is known that it says nothing of `__dict__`."""
    own: dict[Any, Any] = object.__getattribute__(thing, "__dict__")
    return own
