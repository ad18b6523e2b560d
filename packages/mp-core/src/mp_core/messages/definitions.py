"""Functions and classes that their receiver cannot import travel as their definitions, made by cloudpickle.

    a name that the receiver can import         by name, as multiprocessing does
    a lambda, a local function or class         its definition
    of a main module without a file             its definition, see main_module.py

cloudpickle is imported when the first definition is sent or received.

Note [One main module]
----------------------
cloudpickle gives the functions of each message a namespace of their own. So an initializer that sets a global would set
it for nobody, and a later task would not find it. Here all functions of a main module that cannot be imported have the
receiver's main module as their globals. A message brings the globals that its functions use, and sets those that

    the receiver does not have          a new process has none
    a message has set before            the sender may have changed them: the new body of a function runs
    were there when it was forked       likewise

but none that the receiving process has set itself. So a worker keeps what its initializer has set, and the process that
a function came from keeps its own globals when the function comes back.

Note [One class]
----------------
An object of a class that was sent as a definition comes back as an object of the same class: a class gets an identity
when it is sent first, and a forked child has the identities of all classes of the main module, which are given before
the fork. The process that gave it the identity does not let a message change the class.
"""

from __future__ import annotations

import importlib
import operator
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import process
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType

from mp_core.children.main_module import (
    is_in_each_main,
    main_can_be_imported,
    note_definitions,
    note_main,
    own_definitions,
)
from mp_core.system.pickled_call import PickledCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The modules whose functions and classes `MainPickler` writes as definitions; those contain types of Python itself.
_OF_MAIN = ("__main__", "builtins")
_SINGLETONS = (type(None), type(...), type(NotImplemented))


class Pickler(ForkingPickler):
    """
    multiprocessing's pickler, which pickles functions and classes without a name by their definitions.

    *override*, like a `reducer_override`, is asked before. *same_main* says that the receiver has the very same main
    module.
    """

    override: Callable[[Any], Any] | None = None
    same_main = False
    _main_only = False

    def reducer_override(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        override = self.override or getattr(super(), "reducer_override", None)  # a program may have added one
        if override is not None:
            found = override(thing)
            if found is not NotImplemented:
                return found
        kind = type(thing)
        if issubclass(kind, ModuleType) and _is_imported(thing):
            return importlib.import_module, (thing.__name__,)  # cloudpickle knows no subclass
        if not (kind is FunctionType or issubclass(kind, type)) or kind in self.dispatch_table:
            return NotImplemented
        if is_found_by_name(thing, self.same_main) or (self._main_only and thing.__module__ not in _OF_MAIN):
            return NotImplemented
        return self._definition(thing)

    def _definition(self, thing: Any) -> Any:
        length = getattr(thing, "_length_", None) if type(thing).__module__ == "_ctypes" else None
        if length is not None and thing is thing._type_ * length:
            return operator.mul, (thing._type_, length)  # its metaclass makes no class by a call
        base = _cloudpickle(thing).Pickler
        if "globals_ref" not in vars(self):
            self.globals_ref: dict[int, Any] = {}
            for kind, reducer in base.dispatch_table.items():
                if kind not in self.dispatch_table:
                    dict.__setitem__(self.dispatch_table, kind, reducer)
            if not main_can_be_imported():
                self.globals_ref[id(vars(sys.modules["__main__"]))] = _MAIN
        self._function_getnewargs = base._function_getnewargs.__get__(self)
        if not isinstance(thing, FunctionType):
            found = base.reducer_override(self, thing)
            if len(found) != 6:
                return found  # a type of Python's own
            make, args, state, _, _, setter = found
            return _made_class, (_identity(thing), make, args), (setter, state), None, None, _set_class
        make, args, state, _, _, setter = base._dynamic_function_reduce(self, thing)
        if args[1] is not _MAIN:
            note_main(thing)
            return make, args, (setter, state), None, None, _set_definition
        needed, state[1]["__globals__"] = state[1]["__globals__"], {}
        return make, args, (setter, state, needed), None, None, _set_function


def _is_imported(module: ModuleType) -> bool:
    return sys.modules.get(module.__name__) is module


class MainPickler(Pickler):
    """Pickles only the main module's functions and classes by their definitions: others without a name are errors."""

    _main_only = True


def is_found_by_name(thing: Any, same_main: bool = False) -> bool:
    """Tell whether another process finds the function or class *thing* by its name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if name is None or any(thing is each for each in _SINGLETONS):
        return True  # pickle knows
    if module is None:  # pickle knows; but of a function, only that its globals have no name
        return not isinstance(thing, FunctionType)
    if module == "__main__" and not same_main and not is_in_each_main(thing):
        return False
    found = sys.modules.get(module)
    if found is None:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _cloudpickle(thing: Any) -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        name = getattr(thing, "__qualname__", thing)
        raise pickle.PicklingError(
            f"Can't pickle {thing!r}: another process cannot import {name} from {thing.__module__}. Install "
            "cloudpickle (pip install cloudpickle), by which it travels, or define it at the top level of a module"
        ) from None
    return cloudpickle


# ---- the receiver ----------------------------------------------------------------------------------------------------


def _set_definition(function: Any, state: Any) -> None:
    """Set the state of a function that has globals of its own."""
    note_definitions()
    setter, inner = state
    setter(function, inner)


def _main_globals() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


#: Stands in a pickle for the globals of the receiver's main module.
_MAIN = PickledCall(_main_globals)


# The globals that messages have set, and those from before: the main module of a new child has names of Python's own.
_given: dict[str, Any] | None = None


def _set_function(function: Any, state: Any) -> None:
    """Set the state of a function whose globals are the main module, see Note [One main module]."""
    global _given
    note_definitions()
    setter, inner, needed = state
    main = function.__globals__
    if _given is None:
        is_child = getattr(process.current_process(), "_inheriting", False) or process.parent_process() is not None
        _given = dict(main) if is_child else {}
    builtins = main.get("__builtins__")
    setter(function, inner)
    main["__builtins__"] = builtins
    _set_globals(main, needed)
    kept = getattr(_keeping, "globals", None)
    if kept is not None:
        kept.append((main, needed))


def _set_globals(main: dict[str, Any], needed: dict[str, Any]) -> None:
    assert _given is not None
    for name, value in needed.items():
        if name not in main or (name in _given and main[name] is _given[name]):
            main[name] = _given[name] = value
        else:
            _given.pop(name, None)


# The thread that unpickles a definition for many calls has a list of what that sets.
_keeping = threading.local()


def loads_kept(data: bytes) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the function of a pickle for many calls, and what sets the globals that came with it before each call."""
    kept = _keeping.globals = []
    try:
        function = pickle.loads(data)
    finally:
        _keeping.globals = None

    def set_globals() -> None:
        for main, needed in kept:
            _set_globals(main, needed)

    return function, set_globals


_lock = threading.RLock()
_identities: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def _identity(kind: type) -> str:
    with _lock:
        found = _identities.get(kind)
        if found is None:
            found = _identities[kind] = f"{os.getpid()} {os.urandom(16).hex()}"
            _classes[found] = kind
        return found


def _made_class(identity: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    note_definitions()
    known = _classes.get(identity)
    if known is not None:
        return known
    made = make(*args)
    with _lock:
        kind = _classes.setdefault(identity, made)
        _identities[kind] = identity
    return kind


def _set_class(kind: type, state: Any) -> None:
    setter, inner = state
    if _identities[kind].partition(" ")[0] != str(os.getpid()):
        setter(kind, inner)


def identify_classes() -> None:
    """Give the classes of the main module their identities, which a process that is forked now then knows."""
    for thing in own_definitions():
        if isinstance(thing, type):
            _identity(thing)


def _begin_in_child() -> None:
    global _lock, _given
    _lock = threading.RLock()
    _given = dict(vars(sys.modules["__main__"]))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
