"""Aliases and parameters of types travel with what they stand for: pickle would write their names only.

Each but an alias of the statement `type`, which has no weak references, gets an identity when it is sent first; one
that is a global, or a parameter of a function or class, before its process is forked. By that it is one object in
each process, as a class is, see Note [One class] in definitions.py.

Note [What is found later]
--------------------------
The statements `type A = ...` and `class C[T: ...]` find what stands for an alias, and the bounds of a parameter, when
somebody asks. That may refer to the alias, or to the class. So the receiver runs such a statement, which looks them up
in a list that the message fills last:

    class Node[T: Node]      sent: T with an empty list | Node, whose base is Generic[T] | the list: [Node]
"""

from __future__ import annotations

import functools
import sys
import weakref
from keyword import iskeyword
from types import FunctionType

from mp_core.messages.contents import attributes_of, class_name_of
from mp_core.messages.main_globals import new_identity
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# The other arguments of what makes one.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "NewType": (),
    "TypeVar": ("bound", "covariant", "contravariant"),
    "ParamSpec": ("bound", "covariant", "contravariant"),
    "TypeVarTuple": (),
}
_STARS = {"TypeVar": "", "TypeVarTuple": "*", "ParamSpec": "**"}
_KINDS = frozenset({*_OPTIONS, "ParamSpecArgs", "ParamSpecKwargs", "TypeAliasType"})
_MODULES = ("typing", "typing_extensions")
# What a Python before 3.13 does not know is an attribute, which typing_extensions sets.
_OF_EXTENSIONS = ("__default__", "has_default", "__infer_variance__")
_identities: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Where one finds what it stands for, by its `id`, until that is there.
_places: dict[int, list[Any]] = {}


def is_one(thing: Any) -> bool:
    """Tell whether *thing* is an alias or a parameter of types."""
    name = class_name_of(type(thing))
    return name in _KINDS and any(type(thing) is getattr(sys.modules.get(each), name, None) for each in _MODULES)


def is_of_main(thing: Any) -> bool:
    """Tell whether an alias or a parameter may be one of the main module: those of statements are typing's."""
    named = getattr(thing, "__origin__", thing)
    typing = sys.modules["typing"]
    return named.__module__ == "__main__" or (
        named.__module__ == "typing" and getattr(typing, named.__name__, None) is not named
    )


def identify(thing: Any) -> None:
    """Give its identity to *thing* if it is an alias or a parameter, and to the parameters of a function or class."""
    parameters: Any = ()
    if issubclass(type(thing), type):  # of which a metaclass may say what it likes
        parameters = attributes_of(thing).get("__type_params__")
    elif type(thing) is FunctionType:
        parameters = getattr(thing, "__type_params__", ())
    for each in (thing, *(parameters if type(parameters) is tuple else ())):
        if is_one(each) and type(each).__name__ in _OPTIONS:
            _identity(each)


def identities() -> frozenset[str]:
    """Return the identities so far, which a child that is forked now knows."""
    return frozenset(known.key for known in _known.valuerefs())


def has_one_of(identities: frozenset[str], thing: Any) -> bool:
    """Tell whether an alias or a parameter has one of these *identities*."""
    named = getattr(thing, "__origin__", thing)
    return type(named).__name__ in _OPTIONS and _identities.get(named) in identities


def named(thing: Any) -> Any:
    """Return the reduction of one for receivers that know its identity."""
    kind = type(thing).__name__
    if kind not in _OPTIONS:
        return getattr, (thing.__origin__, kind.removeprefix("ParamSpec").lower())
    return known_by, (_identities[thing],)


def known_by(identity: str) -> Any:
    """Return the alias or the parameter that has this identity."""
    return _known[identity]


def _identity(thing: Any) -> str:
    found = _identities.setdefault(thing, new_identity())
    _known[found] = thing
    return found


def reduce(thing: Any) -> Any:
    """Return the reduction of an alias or a parameter."""
    kind = type(thing).__name__
    if kind == "TypeAliasType":
        return _reduce_alias(thing)
    if kind not in _OPTIONS:
        return named(thing)
    if sys.version_info >= (3, 12) and getattr(thing, "__infer_variance__", kind == "TypeVarTuple"):
        return _reduce_parameter(thing)
    if kind == "NewType":
        args = thing.__qualname__, thing.__supertype__
    else:
        args = thing.__name__, *getattr(thing, "__constraints__", ())
    options = {name: getattr(thing, f"__{name}__") for name in _OPTIONS[kind]}
    if sys.version_info >= (3, 13) and getattr(thing, "has_default", bool)():
        options["default"] = thing.__default__
    make: Any = type(thing)
    return (
        *(made, (_identity(thing), thing.__module__, functools.partial(make, *args, **options))),
        *(_attributes(thing), None, None, set_attributes),
    )


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes that the program, or typing_extensions, has set."""
    names = [name for name in _OF_EXTENSIONS if not hasattr(type(thing), name) and hasattr(thing, name)]
    names += [name for name in getattr(thing, "__dict__", ()) if not name.startswith("__")]
    return {name: getattr(thing, name) for name in names}


def set_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(thing, name, value)


def made(identity: str, module: str, make: Callable[[], Any]) -> Any:
    """Return what has this identity, or else what *make* makes, which then has it."""
    known = _known.get(identity)
    if known is None:
        known = make()
        known.__module__ = module
        known = _known.setdefault(identity, known)
        _identities[known] = identity
    return known


def _reduce_parameter(parameter: Any) -> Any:
    """For a parameter that a statement has made, or may have."""
    kind = type(parameter).__name__
    values = _evaluated(lambda: parameter.__constraints__ or (parameter.__bound__,)) if kind == "TypeVar" else []
    bounds = [f"__mp_look({i})" for i in range(len(values))]
    source = _STARS[kind] + parameter.__name__
    if len(values) > 1:
        source += f": ({', '.join(bounds)})"
    elif values and values[0] is not None:
        source += f": {bounds[0]}"
    if getattr(parameter, "has_default", bool)():
        source += " = __mp_look(-1)"
        values += _evaluated(lambda: (parameter.__default__,))
    make = functools.partial(made_by_statement, f"type __mp_made[{source}] = None")
    return made, (_identity(parameter), parameter.__module__, make), values, None, None, set_values


def _reduce_alias(alias: Any) -> Any:
    """For an alias of the statement `type`; one without parameters may refer to itself."""
    name: str = alias.__name__
    value = _evaluated(lambda: (alias.__value__,))
    is_plain = name.isascii() and name.isidentifier() and not iskeyword(name) and name != "__debug__"
    if alias.__type_params__ or not is_plain or type(alias).__module__ != "typing":
        return made_by_call, (type(alias), name, *(value or [object]), alias.__type_params__)
    return made_by_statement, (f"type {name} = __mp_look(0)",), value, None, None, set_values


def _evaluated(evaluate: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return what stands for an alias; nothing if it has names that only a type checker knows."""
    try:
        return [*evaluate()]
    except Exception as error:
        if is_of_handler(error):
            raise
        return []


def made_by_call(make: Any, name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    """Return an alias of the main module: that of its caller."""
    namespace = {"__name__": "__main__", "make": make}
    return eval("lambda *args, **options: make(*args, **options)", namespace)(name, value, type_params=parameters)


def made_by_statement(source: str) -> Any:
    """Return the alias that the statement *source* makes, or its one parameter; it finds the rest when it is asked."""
    values: list[Any] = []

    def look(number: int) -> Any:
        try:
            return values[number]
        except IndexError:
            raise NameError(f"{source!r} stands for names that were not there when it was sent") from None

    namespace: dict[str, Any] = {"__name__": "__main__", "__mp_look": look}
    exec(source, namespace)
    alias = namespace[source.split()[1].partition("[")[0]]
    found = alias.__type_params__[0] if alias.__type_params__ else alias
    _places[id(found)] = values
    return found


def set_values(thing: Any, values: list[Any]) -> None:
    """Set what an alias, or a parameter, finds; one that was here has it already."""
    _places.pop(id(thing), []).extend(values)
