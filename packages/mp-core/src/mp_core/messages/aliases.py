"""Aliases of types, which the statement `type` makes, travel with their values: pickle would write their names only."""

from __future__ import annotations

import copyreg
from keyword import iskeyword

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where an alias finds its value, by its `id`, until it has it.
_places: dict[int, list[Any]] = {}


def reduce(alias: Any) -> Any:
    """Return the reduction of an alias; one without parameters may refer to itself."""
    name: str = alias.__name__
    try:
        value = [alias.__value__]
    except Exception:  # it has names that only a type checker knows
        value = []
    if alias.__type_params__ or not (name.isascii() and name.isidentifier()) or iskeyword(name) or name == "__debug__":
        parameters = {"type_params": alias.__type_params__}
        args = type(alias), (name, *(value or [object])), parameters
        return copyreg.__newobj_ex__, args  # type: ignore[attr-defined]
    return made, (name,), value, None, None, set_value


def made(name: str) -> Any:
    """Return an alias that looks its value up when it is asked for."""
    place: list[Any] = []

    def look() -> Any:
        if not place:
            raise NameError(f"the value of {name} has names that were not there when it was sent")
        return place[0]

    namespace: dict[str, Any] = {"__name__": "__main__", "__mp_look": look}
    exec(f"type {name} = __mp_look()", namespace)
    alias = namespace[name]
    _places[id(alias)] = place
    return alias


def set_value(alias: Any, value: list[Any]) -> None:
    _places.pop(id(alias)).extend(value)
