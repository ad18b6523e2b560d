"""Generators of random numbers: their states, and the module whose functions are the methods of one that it hides."""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _set_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


#: By the name of the class: its module, what reads a state, and what sets it.
GENERATORS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "Random": ("random", lambda generator: generator.getstate(), lambda generator, state: generator.setstate(state)),
    "Generator": ("numpy.random", lambda generator: generator.bit_generator.state, _set_bits),
    "RandomState": (
        "numpy.random",
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(state),
    ),
}
_HIDDEN = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))

# By what Python says of a class, whatever its metaclass says.
name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


def state_of(thing: Any) -> Any:
    """Return the state of a generator; None for what is none, as an object of a subclass."""
    kind = type(thing)
    return GENERATORS[name_of(kind)][1](thing) if is_generator(kind) else None


def is_generator(kind: type) -> bool:
    """Tell whether objects of *kind* have such a state."""
    name = name_of(kind)
    return name in GENERATORS and kind is getattr(sys.modules.get(GENERATORS[name][0]), name, None)


def set_state(generator: Any, state: Any) -> None:
    """Set a state that `state_of` has returned for a generator of this class."""
    GENERATORS[name_of(type(generator))][2](generator, state)


def home_of(method: Any) -> ModuleType | None:
    """Return the module whose function is this method of a generator that the module hides, as `random.random` is."""
    for name, hidden in _HIDDEN:
        module = sys.modules.get(name)
        if module is not None and method.__self__ is getattr(module, hidden) and hasattr(module, method.__name__):
            return module
    return None
