"""Aliases and parameters of types travel with what they stand for: pickle would write their names only.

Each but an alias of the statement `type`, which has no weak references, gets an identity when it is sent first or its
process is forked. By that it is one object in each process, as a class is, see Note [One class] in definitions.py.

Note [What is found later]
--------------------------
The statements `type A = ...` and `class C[T: ...]` find what stands for an alias, and the bounds of a parameter, when
somebody asks. That may refer to the alias, or to the class. So the receiver runs such a statement, which looks them up
in a list that the message fills last:

    class Node[T: Node]      sent: T with an empty list | Node, whose base is Generic[T] | the list: [Node]
"""

from __future__ import annotations

import copyreg
import functools
import os
import sys
import weakref
from keyword import iskeyword

from mp_core.messages.contents import class_name_of
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# The other arguments of what makes one, as far as this Python has them.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "NewType": (),
    "TypeVar": ("bound", "covariant", "contravariant", "default"),
    "ParamSpec": ("bound", "covariant", "contravariant", "default"),
    "TypeVarTuple": ("default",),
}
_STARS = {"TypeVar": "", "TypeVarTuple": "*", "ParamSpec": "**"}
_KINDS = frozenset({*_OPTIONS, "ParamSpecArgs", "ParamSpecKwargs", "TypeAliasType"})
_identities: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Where one finds what it stands for, by its `id`, until that is there.
_places: dict[int, list[Any]] = {}


def is_one(thing: Any) -> bool:
    """Tell whether *thing* is an alias or a parameter of types."""
    name = class_name_of(type(thing))
    return name in _KINDS and type(thing) is getattr(sys.modules.get("typing"), name, None)


def is_of_main(thing: Any) -> bool:
    """Tell whether an alias or a parameter may be one of the main module: those of statements are typing's."""
    named = getattr(thing, "__origin__", thing)
    typing = sys.modules["typing"]
    return named.__module__ == "__main__" or (
        named.__module__ == "typing" and getattr(typing, named.__name__, None) is not named
    )


def identify(thing: Any) -> None:
    """Give *thing* its identity if it is an alias or a parameter."""
    if is_one(thing) and type(thing).__name__ in _OPTIONS:
        _identity(thing)


def _identity(thing: Any) -> str:
    found = _identities.setdefault(thing, f"{os.getpid()} {os.urandom(16).hex()}")
    _known[found] = thing
    return found


def reduce(thing: Any) -> Any:
    """Return the reduction of an alias or a parameter."""
    kind = type(thing).__name__
    if kind == "TypeAliasType":
        return _reduce_alias(thing)
    if kind not in _OPTIONS:
        return getattr, (thing.__origin__, kind.removeprefix("ParamSpec").lower())
    if getattr(thing, "__infer_variance__", kind == "TypeVarTuple" and sys.version_info >= (3, 12)):
        return _reduce_parameter(thing)
    if kind == "NewType":
        args = thing.__qualname__, thing.__supertype__
    else:
        args = thing.__name__, *getattr(thing, "__constraints__", ())
    options = {name: getattr(thing, f"__{name}__") for name in _OPTIONS[kind] if hasattr(thing, f"__{name}__")}
    make: Any = type(thing)
    return made, (_identity(thing), thing.__module__, functools.partial(make, *args, **options))


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
    if alias.__type_params__ or not (name.isascii() and name.isidentifier()) or iskeyword(name) or name == "__debug__":
        parameters = {"type_params": alias.__type_params__}
        args = type(alias), (name, *(value or [object])), parameters
        return copyreg.__newobj_ex__, args  # type: ignore[attr-defined]
    return made_by_statement, (f"type {name} = __mp_look(0)",), value, None, None, set_values


def _evaluated(evaluate: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return what stands for an alias; nothing if it has names that only a type checker knows."""
    try:
        return [*evaluate()]
    except Exception as error:
        if is_of_handler(error):
            raise
        return []


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
