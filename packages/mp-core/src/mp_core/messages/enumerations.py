"""Enumerations that travel as their definitions: their members arrive with their values, data and attributes.

cloudpickle would make each member from its value, without the `__new__` and `__init__` that the program has.

Note [The data of a member]
---------------------------
A member of `class Price(Decimal, Enum)` is a Decimal. Its data is made as a pickle of a Decimal would make it, by the
arguments of `__getnewargs__` or of its reduction; what `__init__` and later lines have set follows in `set_members`.
"""

from __future__ import annotations

import copyreg
import weakref
from enum import EnumMeta
from types import BuiltinFunctionType, MemberDescriptorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The names of the attributes of members, by the members' own, which the last message has set.
_names_of: weakref.WeakKeyDictionary[type, dict[str, list[str]]] = weakref.WeakKeyDictionary()
# What enum itself sets.
_OF_ENUM = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})


def parts_of(kind: EnumMeta) -> tuple[Any, ...]:
    """Return the arguments of `made`. Other names of its members are not among them."""
    members: dict[str, Any] = dict(kind.__members__)
    base = _base_of(vars(kind)["_member_type_"])
    whole = {
        name: (member._value_, _data_of(base, member)) for name, member in members.items() if name == member._name_
    }
    boundary = getattr(kind, "_boundary_", None)  # of flags
    return type(kind), kind.__bases__, kind.__name__, kind.__qualname__, kind.__module__, boundary, whole


def _base_of(data: type) -> Any:
    """Return the type, written in C, whose `__new__` makes the data: the attributes of others are set later."""
    return next(each for each in data.__mro__ if type(vars(each).get("__new__", made)) is BuiltinFunctionType)


def _data_of(base: Any, member: Any) -> Any:
    """Return the arguments of `__new__` of its type of data, whether `__init__` gets them too, and its items."""
    if base is object:
        return (), False, [], {}
    if hasattr(base, "__getnewargs__"):
        return base.__getnewargs__(member), False, [], {}
    function, args, _, items, pairs = (*base.__reduce_ex__(member, 2), None, None, None)[:5]
    is_new = function is copyreg.__newobj__  # type: ignore[attr-defined]
    if not is_new and function is not type(member):
        raise TypeError(f"{member!r} cannot be sent: a {base.__name__} is pickled by a function of its own")
    return args[is_new:], not is_new, list(items or ()), dict(pairs or ())


def members_of(kind: EnumMeta, can_be_pickled: Callable[[Any], bool]) -> dict[str, Any]:
    """
    Return the name of the member that each name means, its value, what `__init__`, `__new__` or a line has given it
    (its attributes, and those in slots), and the names of all attributes. A task may well do without what cannot be
    pickled.
    """
    members: dict[str, Any] = dict(kind.__members__)
    slots = _slots_of(kind)
    found = {}
    for name, member in members.items():
        own = {key: value for key, value in getattr(member, "__dict__", {}).items() if key not in _OF_ENUM}
        in_slots = {key: slot.__get__(member) for key, slot in slots.items() if _has(slot, member)}
        given = [{key: value for key, value in each.items() if can_be_pickled(value)} for each in (own, in_slots)]
        found[name] = member._name_, member._value_, *given, [*own]
    return found


def _slots_of(kind: type) -> dict[str, Any]:
    parts = [part for each in kind.__mro__ if "__slots__" in vars(each) for part in vars(each).values()]
    return {part.__name__: part for part in parts if type(part) is MemberDescriptorType}


def _has(slot: Any, member: Any) -> bool:
    try:
        slot.__get__(member)
    except AttributeError:
        return False
    return True


def made(
    metaclass: Any,
    bases: tuple[Any, ...],
    name: str,
    qualname: str,
    module: str,
    boundary: Any,
    members: dict[str, Any],
) -> type:
    """Return an enumeration with these members, which have their values and data, and nothing else yet."""

    def make(cls: Any, key: Any) -> Any:
        value, (args, initialises, items, pairs) = members[key if isinstance(key, str) else key[0]]  # of a tuple
        base = _base_of(cls._member_type_)
        member = base.__new__(cls, *args)
        if initialises and base.__init__ is not object.__init__:
            base.__init__(member, *args)
        if items:
            base.extend(member, items)
        if pairs:
            base.update(member, pairs)
        member._value_ = value
        return member

    namespace: Any = metaclass.__prepare__(name, bases)
    # In the place of those that its class, or a base, has: these take what stands in the program.
    namespace["__new__"], namespace["__init__"] = make, lambda self, key: None
    namespace["__module__"], namespace["__qualname__"] = module, qualname
    for each in members:
        namespace[each] = each
    options = {} if boundary is None else {"boundary": boundary}
    kind: type = metaclass(name, bases, namespace, **options)
    for each in {"__init__", "__new_member__"} & vars(kind).keys():
        type.__delattr__(kind, each)
    return kind


def note_names(kind: Any) -> None:
    """Note the names of the attributes of members, if it is an enumeration, of which a message may delete some."""
    if isinstance(kind, EnumMeta):
        _names_of[kind] = {each._name_: [*getattr(each, "__dict__", ())] for each in kind._member_map_.values()}


def set_members(kind: Any, members: dict[str, Any]) -> None:
    """Set what `members_of` has returned; the names are in the order of the program then."""
    known: dict[str, Any] = kind._member_map_
    slots = _slots_of(kind)
    before = _names_of.get(kind, {})  # not of one that this message has made
    _names_of[kind] = {own_name: names for own_name, *_, names in members.values()}
    for name, (own_name, value, given, in_slots, names) in members.items():
        member = known[own_name]
        if type(value).__hash__ is None:  # it may have been changed in place
            member._value_ = value
        if own := getattr(member, "__dict__", None):  # a property may have the name of one
            for each in {*before.get(own_name, ())} - {*names} - _OF_ENUM:
                own.pop(each, None)
            own.update(given)
        for key, value in in_slots.items():
            slots[key].__set__(member, value)
        if name != own_name:
            type.__setattr__(kind, name, member)
            known[name] = member
    if [*known] != [*members]:
        kind._member_map_ = {name: known[name] for name in members}
