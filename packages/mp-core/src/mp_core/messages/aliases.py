"""Aliases of types, which the statement `type` makes, travel with their values: pickle would write their names only."""

from __future__ import annotations

import copyreg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where an alias finds its value, by its `id`, until it has it.
_places: dict[int, list[Any]] = {}


def reduce(alias: Any) -> Any:
    """Return the reduction of an alias; one without parameters may refer to itself."""
    try:
        value = [alias.__value__]
    except Exception:  # it has names that only a type checker knows
        value = []
    if alias.__type_params__:
        parameters = {"type_params": alias.__type_params__}
        return copyreg.__newobj_ex__, (type(alias), (alias.__name__, *value), parameters)  # type: ignore[attr-defined]
    return made, (alias.__name__,), value, None, None, set_value


def made(name: str) -> Any:
    """Return an alias that looks its value up when it is asked for."""
    place: list[Any] = []
    namespace: dict[str, Any] = {"__name__": "__main__", "__mp_value": place}
    exec(f"type {name} = __mp_value[0]", namespace)
    alias = namespace[name]
    _places[id(alias)] = place
    return alias


def set_value(alias: Any, value: list[Any]) -> None:
    _places.pop(id(alias)).extend(value)
