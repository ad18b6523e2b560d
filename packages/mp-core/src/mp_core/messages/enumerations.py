"""Enumerations that travel as their definitions: their members arrive with their values, data and attributes.

cloudpickle would make each member from its value, without the `__new__` and `__init__` that the program has.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import EnumMeta
    from typing import Any


def parts_of(kind: EnumMeta) -> tuple[Any, ...]:
    """Return the arguments of `made`. Other names of its members are not among them."""
    members: dict[str, Any] = dict(kind.__members__)
    data: Any = vars(kind)["_member_type_"]
    whole = {
        name: (member._value_, data.__getnewargs__(member) if hasattr(data, "__getnewargs__") else ())
        for name, member in members.items()
        if name == member.name
    }
    boundary = getattr(kind, "_boundary_", None)  # of flags
    return kind.__bases__, kind.__name__, kind.__qualname__, kind.__module__, boundary, whole


def members_of(kind: EnumMeta) -> dict[str, Any]:
    """Return the name of the member that each name means, and what `__init__` or `__new__` has given it."""
    members: dict[str, Any] = dict(kind.__members__)
    return {name: (member.name, _given(member)) for name, member in members.items()}


def _given(member: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if not (name.startswith("_") and name.endswith("_"))}


def made(bases: tuple[Any, ...], name: str, qualname: str, module: str, boundary: Any, members: dict[str, Any]) -> type:
    """Return an enumeration with these members, which have their values and data, and nothing else yet."""

    def make(cls: Any, key: Any) -> Any:
        value, data = members[key if isinstance(key, str) else key[0]]  # enum wraps that of a tuple
        member = cls._member_type_.__new__(cls, *data)
        member._value_ = value
        return member

    metaclass = type(bases[-1])
    namespace: Any = metaclass.__prepare__(name, bases)
    # In the place of those that its class, or a base, has: these take what stands in the program.
    namespace["__new__"], namespace["__init__"] = make, lambda self, key: None
    namespace["__module__"], namespace["__qualname__"] = module, qualname
    for each in members:
        namespace[each] = each
    kind: type = metaclass.__new__(metaclass, name, bases, namespace, boundary=boundary)
    for each in {"__init__", "__new_member__"} & vars(kind).keys():
        type.__delattr__(kind, each)
    return kind


def set_members(kind: Any, members: dict[str, Any]) -> None:
    """Set what `members_of` has returned; the names are in the order of the program then."""
    known: dict[str, Any] = kind._member_map_
    for name, (own_name, given) in members.items():
        member = known[own_name]
        vars(member).update(given)
        if name != own_name:
            type.__setattr__(kind, name, member)
        known.pop(name, None)
        known[name] = member
