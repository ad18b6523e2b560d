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

but none that the receiving process has made its own, see main_globals.py. So a worker keeps what its initializer has
set, and the process that a function came from keeps its own globals when the function comes back.

Note [One class]
----------------
An object of a class that was sent as a definition comes back as an object of the same class: a class gets an identity
when it is sent first, and a forked child has the identities of all classes of the main module, which are given before
the fork. The process that gave it the identity does not let a message change the class.

Note [What cannot be pickled]
-----------------------------
A function may use a lock, an open file or a connection of the main module. A child that was forked has it, and
multiprocessing, which sends the function by its name there, lets it use that. So what the main module has gets an
identity before each fork, and before a pool that has an initializer. A message whose definitions cannot be pickled is
pickled again: it names what cannot be pickled and has an identity. A receiver with another one, or that was not forked,
has the error, unless it has set that global itself, as an initializer does. What has no weak references, as a list, has
no identity: it could be another by now.

    LOCK = Lock()          identity 1
    Pool(2) --fork-->      the workers know 1 as their own LOCK
    map(f, ...)            f is sent as its definition, with the global LOCK = "your 1"
    LOCK = Lock()          no identity: the next map is an error, until a pool is forked
"""

from __future__ import annotations

import enum
import functools
import importlib
import io
import operator
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    resolve_bases,
)

from mp_core.children.main_module import (
    NotInherited,
    is_found_by_name,
    is_imported,
    main_can_be_imported,
    note_definitions,
    note_main,
    own_definitions,
)
from mp_core.messages import aliases, ctypes_classes, enumerations, main_globals, sentinels
from mp_core.messages.contents import attributes_of, has_weak_references, lru_cache_wrapper
from mp_core.messages.function_parts import READS, names_of_globals
from mp_core.messages.main_globals import Absent, is_handle, new_identity
from mp_core.messages.random_generators import home_of
from mp_core.system.handler_errors import is_of_handler
from mp_core.system.pickled_call import PickledCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from mp_core.messages.inherited_globals import Inheritance

    T = TypeVar("T")

# What a class says of itself, whatever its metaclass or an attribute of this name says.
_OF_TYPE: dict[str, Callable[[type], Any]] = {
    **{name: type.__dict__[name].__get__ for name in ("__bases__", "__name__", "__qualname__")},
    "__class__": type,
}
# The modules whose functions and classes `MainPickler` writes as definitions; those contain types of Python itself.
_OF_MAIN = ("__main__", "builtins", None)
_PLAIN = (int, float, str, bytes, bool, type(None))
# The globals that each module has.
_OF_MODULES = frozenset(
    {*vars(ModuleType("")), "__builtins__", "__file__", "__cached__", "__path__", "__annotations__"}
)
_DESCRIPTORS = (property, classmethod, staticmethod)
_OF_CACHE = ("__wrapped__", "cache_parameters")
#: The reducers of multiprocessing for what has functions in it.
OF_FUNCTIONS = frozenset({"_reduce_method", "_reduce_method_descriptor", "_reduce_partial"})
# The code of functions that were sent with what cannot be pickled: there is no use in trying without.
_refused: weakref.WeakSet[CodeType] = weakref.WeakSet()


class Pickler(ForkingPickler):
    """
    multiprocessing's pickler, which pickles functions and classes without a name by their definitions.

    *override*, like a `reducer_override`, is asked before. *same_main* says that the receiver has the very same main
    module. One that *inherits* names what cannot be pickled, see Note [What cannot be pickled].

    The receiver of one for *home* has forked this process: definitions that both have travel by their identities. All
    receivers of one with an *inheritance* have that. One that *names* raises `NotInherited` for a definition that
    they may not have as it is, see Note [All or nothing] in inherited_globals.py.
    """

    override: Callable[[Any], Any] | None = None
    same_main = False
    inherits = False
    inheritance: Inheritance | None = None
    names = False
    home = False
    #: Whether it has named a definition, or sent one; None if there was none.
    has_named: bool | None = None
    _main_only = False
    _making = 0  # the classes that have not got their attributes yet
    _tried: dict[int, tuple[bool, Any]]  # whether it can be pickled, and the thing, by `id`

    def reducer_override(self, thing: Any) -> Any:
        """Return the reduction of *thing*, or NotImplemented for the usual one."""
        override = self.override or getattr(super(), "reducer_override", None)  # a program may have added one
        if override is not None:
            found = override(thing)
            if found is not NotImplemented:
                return found
        kind = type(thing)
        if issubclass(kind, ModuleType) and is_imported(thing):
            return importlib.import_module, (thing.__name__,)  # cloudpickle knows no subclass
        if kind is functools.cached_property:  # it has a lock up to 3.11
            return kind, (thing.func,), {"attrname": thing.attrname, "__doc__": thing.__doc__}
        if (dataclasses := sys.modules.get("dataclasses")) and thing is getattr(dataclasses, "MISSING", _DESCRIPTORS):
            return getattr, (dataclasses, "MISSING")
        if kind is functools.partial:  # multiprocessing leaves its attributes out
            make, args, (*parts, attributes) = thing.__reduce__()
            own = {name: value for name, value in (attributes or {}).items() if self._can_be_pickled(value)}
            return (make, args, (*parts, own)) if own else NotImplemented
        if issubclass(kind, _DESCRIPTORS) and kind not in _DESCRIPTORS and kind not in self.dispatch_table:
            return _reduce_descriptor(kind, thing)
        if kind is weakref.WeakKeyDictionary:  # as a `functools.singledispatch` function has, to look up less
            return kind, (dict(thing),)
        if kind in (BuiltinFunctionType, MethodType) and "globals_ref" in vars(self):
            if home := home_of(thing):
                return getattr, (home, thing.__name__)  # as a function that travels by its name would use it
            if kind is MethodType and type(thing.__func__) is FunctionType and not self._has_name(thing):
                return kind, (thing.__func__, thing.__self__)
        if kind is _Made:
            self._making -= 1
            return _Made, ()
        if aliases.is_one(thing):
            if self.same_main or main_can_be_imported() or not aliases.is_of_main(thing):
                return NotImplemented
            if self.names and self.inheritance:
                if not aliases.has_one_of(self.inheritance.aliases, thing):
                    raise NotInherited
                return aliases.named(thing)
            self._use_cloudpickle(thing)
            return aliases.reduce(thing)
        if not (kind in (FunctionType, lru_cache_wrapper) or issubclass(kind, type)) or kind in self.dispatch_table:
            return NotImplemented
        if is_found_by_name(thing, self.same_main):
            return NotImplemented
        if "_ctypes" in (thing.__module__, type(thing).__module__) and (found := ctypes_classes.reduce(thing)):
            return found
        if self._main_only and thing.__module__ not in _OF_MAIN:
            return NotImplemented
        if self.names:
            return self._named(thing)
        if self.home and (identity := _identity_at_home(thing)) is not None:
            return _definition_at_home, (identity, thing.__qualname__)
        if self.inherits:
            if self._is_refused(thing, thing.__qualname__):
                return _inherited, (_identity_of(thing), thing.__qualname__)
        elif kind is FunctionType and thing.__code__ in _refused and get_spawning_popen() is None:
            raise _RefusedError
        return self._definition(thing)

    def _is_refused(self, thing: Any, name: str) -> bool:
        """
        Tell whether *thing*, which has an identity then, cannot be pickled though what it uses goes by its identity.
        """
        if self._can_be_pickled(thing):
            return False
        if _identity_of(thing) is None or get_spawning_popen() is not None:  # a new process inherits nothing
            raise _UnknownError(repr(name))
        return True

    def _has_name(self, method: Any) -> bool:
        """Tell whether the receiver finds a method by asking its object: a class gets its attributes last."""
        own = method.__self__
        found = None if self._making else getattr(own if isinstance(own, type) else type(own), method.__name__, None)
        return found is not None and getattr(found, "__func__", found) is method.__func__

    def _can_be_pickled(self, value: Any) -> bool:
        """
        Tell whether a value, which may refer to itself, can be pickled; of a function, its globals do not count: each
        is asked for itself.
        """
        tried: dict[int, tuple[bool, Any]] = vars(self).setdefault("_tried", {})
        if type(value) not in _PLAIN and id(value) not in tried:
            tried[id(value)] = True, value  # while it is tried
            try:
                _trial(tried).dump(_own_parts(value) if type(value) is FunctionType else value)
            except Exception as error:
                if is_of_handler(error) or (isinstance(error, _UnknownGlobalError) and _is_definition(value)):
                    raise
                tried[id(value)] = False, value
        return tried.get(id(value), (True,))[0]

    def _named(self, thing: Any) -> Any:
        """Return what stands for a definition that the receiver has since its fork, with all that it needs."""
        assert self.inheritance is not None
        self.inheritance.needs(thing)
        self.has_named = True
        return _own_definition, (self.inheritance.identity, thing.__qualname__)

    def _definition(self, thing: Any) -> Any:
        self.has_named = False
        if type(thing) is lru_cache_wrapper:
            note_main(thing.__wrapped__)
            parameters = thing.cache_parameters()
            state = {name: value for name, value in vars(thing).items() if name not in _OF_CACHE}
            return _cached, (thing.__wrapped__, parameters["maxsize"], parameters["typed"]), state
        length = getattr(thing, "_length_", None) if type(thing).__module__ == "_ctypes" else None
        if length is not None and thing is thing._type_ * length:
            return operator.mul, (thing._type_, length)  # its metaclass makes no class by a call
        base = self._use_cloudpickle(thing)
        if not isinstance(thing, FunctionType):
            found = base.reducer_override(self, thing)
            if len(found) != 6:
                return found  # a type of Python's own
            make, args, (attributes, slots), _, _, setter = found
            own = attributes_of(thing)
            for part in own.values():
                sentinels.identify(part)
            # cloudpickle leaves out what is the very object of a base: the class may have had another one before.
            rest = {name: part for name, part in own.items() if _is_left_out(thing, name, part)}
            rest.update(attributes)
            if ctypes_classes.is_structure(thing):
                ctypes_classes.leave_out_fields(rest)
            members: dict[str, Any] = {}
            if isinstance(thing, enum.EnumMeta):
                make, args = enumerations.made, enumerations.parts_of(thing)
                members = enumerations.members_of(thing, self._can_be_pickled)
                rest = {name: part for name, part in rest.items() if name not in members}
            elif "__slots__" in own and not issubclass(thing, tuple):  # cloudpickle would set it when it has no effect
                args = *args[:3], {**args[3], "__slots__": own["__slots__"]}, *args[4:]
                rest = {name: part for name, part in rest.items() if type(part) is not MemberDescriptorType}
            self._making += 1
            says = {name: read(thing) for name, read in _OF_TYPE.items()}
            whole = setter, (rest, slots), [*own], members, says, _Made()
            return _made_class, (_identity(thing), make, args), whole, None, None, _set_class
        make, args, state, _, _, setter = base._dynamic_function_reduce(self, thing)
        if parameters := getattr(thing, "__type_params__", ()):
            state[1]["__type_params__"] = parameters
        # cloudpickle overlooks what the body of a class, in the function, uses.
        used, given, known = names_of_globals(thing.__code__) - _OF_MODULES, thing.__globals__, state[1]["__globals__"]
        more = {name: given[name] for name in used & given.keys() - known.keys()}
        for name, value in more.items():
            if _is_definition(value) or self._can_be_pickled(value):  # a task may well do without it
                known[name] = value
        if args[1] is not _MAIN:
            note_main(thing)
            return make, args, (setter, state), None, None, _set_definition
        needed, state[1]["__globals__"] = state[1]["__globals__"], {}
        needed = {name: Absent if is_handle(value) else value for name, value in needed.items()}
        for value in needed.values():
            sentinels.identify(value)
        needed.update((name, Absent) for name in used - given.keys())
        if self.inherits:
            needed = self._stand_ins(thing.__code__, needed)
        return make, args, (setter, state, needed), None, None, _set_function

    def _use_cloudpickle(self, thing: Any) -> Any:
        """Return cloudpickle's pickler, which has got its reducers, as for code, into this one."""
        base = _cloudpickle(thing).Pickler
        if "globals_ref" not in vars(self):
            self.globals_ref: dict[int, Any] = {}
            for kind, reducer in base.dispatch_table.items():
                if kind not in self.dispatch_table:
                    # cloudpickle would send a copy of what is in a file.
                    own = _reduce_file if kind is io.TextIOWrapper else reducer
                    dict.__setitem__(self.dispatch_table, kind, own)
            if not main_can_be_imported():
                self.globals_ref[id(vars(sys.modules["__main__"]))] = _MAIN
        return base

    def _function_getnewargs(self, function: Any) -> Any:
        # By its class: if the pickler had cloudpickle's as its attribute, that would keep it, and what it has pickled.
        return _cloudpickle(function).Pickler._function_getnewargs(self, function)

    def _stand_ins(self, code: CodeType, needed: dict[str, Any]) -> dict[str, Any]:
        """Return the globals that the code reads, with what stands for those that cannot be pickled."""
        read = names_of_globals(code, READS)
        found = {name: value for name, value in needed.items() if name in read}
        for name, value in found.items():
            try:
                if not _is_definition(value) and self._is_refused(value, name):
                    found[name] = _Inherited(_identity_of(value), name)
                    _refused.add(code)
            except _UnknownError as error:
                raise _UnknownGlobalError(repr(name)) from error
        return found


def _reduce_descriptor(kind: Any, thing: Any) -> Any:
    """
    Return the reduction of a property, or a method of a class, whose class derives from Python's; NotImplemented if it
    has one of its own.
    """
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return NotImplemented
    state = object.__getstate__(thing)  # type: ignore[attr-defined, unused-ignore]
    if issubclass(kind, property):
        return _made_descriptor, (kind, property, thing.fget, thing.fset, thing.fdel, thing.__doc__), state
    base = classmethod if issubclass(kind, classmethod) else staticmethod
    return _made_descriptor, (kind, base, thing.__func__), state


def _made_descriptor(kind: Any, base: Any, *args: Any) -> Any:
    made = kind.__new__(kind, *args)
    base.__init__(made, *args)
    return made


def _reduce_file(file: Any) -> Any:
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(f"cannot pickle {type(file).__name__!r} object")


class _Made:
    """Stands at the end of the attributes of a class."""


class MainPickler(Pickler):
    """Pickles only the main module's functions and classes by their definitions: others without a name are errors."""

    _main_only = True


class _RefusedError(Exception):
    """A function uses what cannot be pickled, as one time before."""


class _UnknownError(Exception):
    """What has this name cannot be pickled, and has no identity: what uses it cannot be sent either."""


class _UnknownGlobalError(_UnknownError):
    """The same of a global: a receiver must not use its own, which may be another object."""


def pickled_or_inherited(
    attempt: Callable[[bool, bool], T], inheritance: Inheritance | None = None, only_names: bool = False
) -> T:
    """
    Return *attempt(False, False)*; if that cannot pickle something, *attempt(True, False)*, whose pickler inherits.

    See Note [What cannot be pickled]. If that fails too, the error is the first one, with a note. If all receivers have
    an *inheritance*, *attempt(False, True)*, whose pickler names, is the first one. If it has to name *only*, and that
    fails, raise `NotInherited`.
    """
    if inheritance is not None:
        try:
            return attempt(False, True)
        except Exception as error:  # the next attempt may be possible, or says why not
            if is_of_handler(error):
                raise
            if only_names:
                raise NotInherited from error
    try:
        return attempt(False, False)
    except _RefusedError:
        first = None
    except Exception as error:
        if is_of_handler(error):
            raise
        first = error
    try:
        return attempt(True, False)
    except Exception as error:
        if is_of_handler(error):
            raise
        second = error
    try:
        if first is None:
            _refused.clear()
            return pickled_or_inherited(attempt)  # it may be possible by now; or says why not
        if isinstance(second, _UnknownError):
            first.add_note(f"what cannot be pickled is {second}")
        raise first
    finally:
        del first, second  # their tracebacks have this frame


def pickler_class(base: type[Pickler], **attributes: Any) -> type[Pickler]:
    """Return a class of picklers that have these attributes."""
    inheritance: Inheritance | None = attributes.get("inheritance")
    known = _pickler_classes if inheritance is None else inheritance.picklers
    key = base, *attributes.items()
    if key not in known:
        known[key] = type(base.__name__, (base,), attributes)
    return known[key]


_pickler_classes: dict[Any, type[Pickler]] = {}


class _Trial(Pickler):
    """Finds out whether something can be pickled; what has a reducer for messages can, and is not copied for it."""

    inherits = True

    def override(self, thing: Any) -> Any:
        kind = type(thing)
        try:
            reducer = ForkingPickler._extra_reducers[kind]  # type: ignore[attr-defined]
        except KeyError:
            return NotImplemented
        return NotImplemented if reducer.__name__ in OF_FUNCTIONS else (bool, ())


def _trial(tried: dict[int, Any]) -> _Trial:
    trial = _Trial(io.BytesIO(), 5)
    trial._tried = tried
    return trial


def _is_definition(thing: Any) -> bool:
    return issubclass(type(thing), FunctionType | type | ModuleType | lru_cache_wrapper)


def _own_parts(function: Any) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return function.__defaults__, function.__kwdefaults__, vars(function), cells


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


def _set_function(function: Any, state: Any) -> None:
    """Set the state of a function whose globals are the main module, see Note [One main module]."""
    note_definitions()
    setter, inner, needed = state
    main = function.__globals__
    main_globals.note_globals(main)
    builtins = main.get("__builtins__")
    setter(function, inner)
    main["__builtins__"] = builtins
    set_globals = functools.partial(main_globals.set_globals, main, needed, _resolved)
    set_globals()
    _keep(set_globals)


def _own_definition(fork: str, name: str) -> Any:
    """Return the definition that this process has since that fork, in the main module as it was then."""
    if fork not in main_globals.forks:
        raise pickle.UnpicklingError(
            f"this message only names {name!r} of the main module, for workers that were forked with it, and this "
            "process was not: start the pool again"
        )
    note_definitions()
    main_globals.take_back()
    _keep(main_globals.take_back)
    return operator.attrgetter(name)(sys.modules["__main__"])


def _keep(set_globals: Callable[[], None]) -> None:
    kept = getattr(_keeping, "kept", None)
    if kept is not None and set_globals not in kept:
        kept.append(set_globals)


def _identity_at_home(thing: Any) -> str | None:
    """Return the identity that a definition with a name had before this process was forked."""
    identity = None if "<" in thing.__qualname__ else _identity_of(thing)
    return None if identity is None or identity.startswith(f"{os.getpid()} ") else identity


def _definition_at_home(identity: str, name: str) -> Any:
    """Return a definition that this process had when it forked the sender; if that has gone, one of this name."""
    known = _by_identity.get(identity)
    thing = None if known is None else known()
    return operator.attrgetter(name)(sys.modules["__main__"]) if thing is None else thing


def _resolved(value: Any) -> Any:
    return _inherited(value.identity, value.name) if type(value) is _Inherited else value


# The thread that unpickles a definition for many calls has a list of what sets its globals.
_keeping = threading.local()


def loads_kept(data: bytes) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the function of a pickle for many calls, and what sets the globals that came with it before each call."""
    kept: list[Callable[[], None]] = []
    _keeping.kept = kept
    try:
        function = pickle.loads(data)
    finally:
        _keeping.kept = None

    def set_globals() -> None:
        for each in kept:
            each()

    return function, set_globals


_lock = threading.RLock()
_identities: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
# Of the attributes that the last message has set.
_names_of: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()
_made: weakref.WeakSet[type] = weakref.WeakSet()  # those that messages have made in this process


def _identity(kind: type) -> str:
    with _lock:
        found = _identities.get(kind)
        if found is None:
            found = _identities[kind] = new_identity()
            _classes[found] = kind
        return found


def _made_class(identity: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    note_definitions()
    known = _classes.get(identity)
    if known is not None:
        return known
    made = _made_with_hooks(make, args)
    with _lock:
        kind = _classes.setdefault(identity, made)
        _identities[kind] = identity
        _made.add(kind)
    return kind


def _made_with_hooks(make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """
    Make a class, and call `__init_subclass__` of its bases again; not if that wants what the class gets later, or what
    stands in its line, and if the bases travel as it does: what it has done to them comes with them.
    """
    try:
        return make(*args)
    except Exception as error:
        if is_of_handler(error):
            raise
        bases = resolve_bases([each for arg in args if isinstance(arg, tuple) for each in arg])
        hooked = {
            base: attributes_of(base)["__init_subclass__"]
            for kind in bases
            for base in kind.__mro__
            if base in _identities and "__init_subclass__" in attributes_of(base)
        }
        if not hooked:
            raise
    with _lock:
        try:
            for base in hooked:
                type.__setattr__(base, "__init_subclass__", classmethod(functools.partial(_call_next_hook, base)))
            return make(*args)
        finally:
            for base, hook in hooked.items():
                type.__setattr__(base, "__init_subclass__", hook)


def _call_next_hook(base: type, kind: type) -> None:
    super(base, kind).__init_subclass__()  # type: ignore[arg-type]


def _is_left_out(kind: type, name: str, part: Any) -> bool:
    return _is_of_program(part) and any(attributes_of(base).get(name, Absent) is part for base in kind.__bases__)


def _is_of_program(part: Any) -> bool:
    """Tell whether the program may have set this attribute of a class, or deleted it."""
    return type(part) not in (MemberDescriptorType, GetSetDescriptorType) and not ctypes_classes.is_field(part)


def _set_class(kind: type, state: Any) -> None:
    if _identities[kind].partition(" ")[0] != str(os.getpid()) and not main_globals.is_own(kind):
        set_attributes = functools.partial(_set_attributes, kind, *state[:-1])
        if kind in _made:
            set_attributes()
        else:
            main_globals.set_class(kind, set_attributes)


def _set_attributes(
    kind: type,
    setter: Callable[[type, Any], object],
    inner: Any,
    names: list[str],
    members: dict[str, Any],
    says: dict[str, Any],
) -> None:
    """Set the attributes of a class, and delete those that it had at the fork or by the last message."""
    own = attributes_of(kind)
    is_new = kind in _made and kind not in _names_of
    for name, value in says.items():
        if value != _OF_TYPE[name](kind) and not (is_new and name in ("__bases__", "__class__")):
            type.__setattr__(kind, name, value)
    for name in _names_of.get(kind, {*own}) | main_globals.restored(kind):
        if name in own and name not in names and _is_of_program(own[name]):
            main_globals.set_attribute(kind, name, Absent)
    if "_fields_" in own and ctypes_classes.is_structure(kind):
        inner[0].pop("_fields_", None)  # they are set once
    setter(kind, inner)
    if members:
        enumerations.set_members(kind, members)
    _names_of[kind] = {*names}


# What the main module had at a fork: the references to objects by their identities, and with these by `id`.
_by_identity: dict[str, weakref.ref[Any]] = {}
_at: dict[int, tuple[str, weakref.ref[Any]]] = {}


def identify() -> None:
    """Give what the main module has its identities, which a process that is forked now then knows."""
    global _by_identity, _at
    names = vars(sys.modules["__main__"])
    with _lock:
        if len(_by_identity) > 2 * len(names) + 100:  # a notebook's, of which most may have gone
            _by_identity = {key: known for key, known in _by_identity.items() if known() is not None}
            _at = {place: entry for place, entry in _at.items() if entry[1]() is not None}
        for thing in own_definitions():
            if isinstance(thing, type):
                _identity(thing)
                own = attributes_of(thing)
                for part in own.values():
                    sentinels.identify(part)
                if thing not in _made:
                    _names_of[thing] = {*own}  # what a message may delete in a child that is forked now
                    enumerations.note_names(thing)
            _identify(thing)
            aliases.identify(thing)
        for thing in list(names.values()):
            # Of one that has no weak references, as a list, nobody knows whether it is still the same.
            if has_weak_references(thing) and not issubclass(type(thing), ModuleType):
                _identify(thing)
            aliases.identify(thing)
            sentinels.identify(thing)


def _identify(thing: Any) -> None:
    if _identity_of(thing) is None:
        key, known = new_identity(), weakref.ref(thing)
        _by_identity[key], _at[id(thing)] = known, (key, known)


def _identity_of(thing: Any) -> str | None:
    key, known = _at.get(id(thing), (None, None))
    return key if known is not None and known() is thing else None


class _Inherited:
    """Stands in a message for a global that its receiver has."""

    def __init__(self, identity: Any, name: str) -> None:
        self.identity, self.name = identity, name

    def __reduce__(self) -> Any:
        return _Inherited, (self.identity, self.name)


def _inherited(identity: str, name: str) -> Any:
    known = _by_identity.get(identity)
    thing = None if known is None else known()
    if thing is None:
        raise pickle.UnpicklingError(
            f"{name!r} of the main module cannot be pickled, and this process was not forked with it: start the "
            "process or the pool after it is made, by fork, or make it in the process"
        )
    return thing


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _begin_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _made.clear()
    main_globals.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
