"""Classes of ctypes that travel: structures by their definitions, and what ctypes makes of others by how it does."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_structure(kind: Any) -> bool:
    ctypes = sys.modules.get("ctypes")
    return ctypes is not None and issubclass(kind, ctypes.Structure | ctypes.Union)


def is_field(part: Any) -> bool:
    """Tell whether ctypes has made this attribute of a structure from its `_fields_`."""
    return type(part).__name__ == "CField" and type(part).__module__ in ("_ctypes", "ctypes")


def leave_out_fields(attributes: dict[str, Any]) -> None:
    """Leave out what ctypes makes of `_fields_`; and put those last, since no later line changes the layout."""
    if "_fields_" in attributes:
        for name in [name for name, part in attributes.items() if is_field(part)]:
            del attributes[name]
        attributes["_fields_"] = attributes.pop("_fields_")


def reduce(thing: Any) -> Any:
    """Return the reduction of a class that ctypes keeps, and that has no name there; None for another."""
    ctypes = sys.modules["ctypes"]
    if issubclass(thing, type):  # of structures, and so on
        return next(((type, (each,)) for each in vars(ctypes).values() if type(each) is thing), None)
    if issubclass(thing, ctypes._Pointer):
        pointed = getattr(thing, "_type_", None)
        return (ctypes.POINTER, (pointed,)) if pointed and ctypes.POINTER(pointed) is thing else None
    if issubclass(thing, ctypes._CFuncPtr) and hasattr(thing, "_argtypes_"):
        types = getattr(thing, "_restype_", None), *thing._argtypes_
        return (ctypes.CFUNCTYPE, types) if ctypes.CFUNCTYPE(*types) is thing else None
    if not issubclass(thing, ctypes._SimpleCData):
        return None
    # A number in another order of bytes.
    natives = [each for each in vars(ctypes).values() if isinstance(each, type)]
    orders = [(each, order) for order in ("__ctype_be__", "__ctype_le__") for each in natives]
    return next(((getattr, found) for found in orders if getattr(*found, None) is thing), None)
