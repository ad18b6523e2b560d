"""A look at what is in an object, which tells later whether it was changed in place.

It runs no code of the program. It goes into lists, dicts, sets, arrays, functions, classes and attributes of objects as
far as the first `MOST_PARTS` of them; of what is larger, it sees the lengths, the shapes and some of the parts.
A second look compares, and ends at the first difference.

Note [What is seen]
-------------------
    numbers, texts, bytes                     by their values and types
    functions, classes, what never changes    by their identity
    where the same object comes again         by its place, so that no look goes in circles
    generators of random numbers              by their states
    arrays that others share                  by their identity: the others see each change as well
    objects whose state is not in Python      not: such contents are not `complete`

The attributes of an object are its state if its size is that of its dict and its slots.
"""

from __future__ import annotations

import abc
import pickle
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from enum import Enum, EnumMeta
from functools import lru_cache, partial
from itertools import islice
from operator import is_
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType

from mp_core.children.main_module import is_found_by_name, is_imported
from mp_core.memory.block import block_at
from mp_core.messages.function_parts import function_parts
from mp_core.messages.random_generators import is_generator, state_of
from mp_core.sharing.backend import dict_of, look, see
from mp_core.system.handler_errors import is_of_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Way = Callable[["Contents", Any], object]  # sees an object of one kind

MOST_PARTS, MOST_OBJECTS = 10_000, 4000  # of the parts, those that have parts themselves: less than a millisecond
MOST_BYTES, MOST_BYTES_OF_ALL = 1 << 16, 1 << 20  # of an array that is seen whole, and of all such
LONG_TEXT = 1 << 12
SAMPLE = 64  # parts of what is longer
ELEMENTS = 1024  # of an array

lru_cache_wrapper: Any = type(lru_cache(len))
#: What is compared by its value.
VALUES = frozenset({int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented)})
_SIGNED = frozenset({float, complex})
# For a class of the program that derives from one of these.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}
_CONTAINERS = (OrderedDict, dict, list, tuple, set, frozenset, deque)
# What is made of references alone.
_LINKS = frozenset({partial, MethodType, CellType, property, staticmethod, classmethod, slice, types.MappingProxyType})
_NEVER_CHANGE: tuple[type, ...] = (
    *(date, time, timedelta, tzinfo, range, type, types.CodeType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(MemberDescriptorType, GetSetDescriptorType),
)
# By the `id`: the hash of a class may be the program's. The first look tells which functions and classes these are.
_AT_FIRST_LOOK: dict[int, bool | None] = {id(kind): False for kind in _NEVER_CHANGE if kind not in (type, time)}
_AT_FIRST_LOOK |= {id(kind): None for kind in _LINKS}
_AT_SECOND_LOOK = _AT_FIRST_LOOK | {id(type): False, id(FunctionType): False}
# By their modules and names, which are all of a module if there are none: these are imported late or by nobody.
_KNOWN_NEVER_CHANGE = {
    "_abc": "_abc_data",
    "_collections": "_tuplegetter",
    "_struct": "Struct",
    "_thread": "lock RLock _local",
    "collections": "_tuplegetter",
    "decimal": "Decimal",
    "logging": "Logger RootLogger",
    "pandas._libs.sparse": "",
    "pyarrow.lib": "",
    "re": "Pattern",
    "typing": "ForwardRef TypeVar ParamSpec TypeVarTuple ParamSpecArgs ParamSpecKwargs",  # their bounds come later
    # A worker has its own copy of these, or the same open file. What travels at all would be the same.
    "_contextvars": "ContextVar",
    "_io": "TextIOWrapper BufferedReader BufferedWriter BufferedRandom FileIO",
    "builtins": "generator",
    "sqlite3": "Connection Cursor",
}
_KNOWN_LINKS = {
    "numpy": "ufunc",
    "operator": "itemgetter attrgetter methodcaller",
    "typing": "TypeAliasType",
}
_BUFFERS = {"array": "array"}
# Objects of their libraries' own classes that derive from these, or of ours, never change or are everyone's.
_KNOWN_BASES = {
    "multiprocessing.connection": "",
    "multiprocessing.managers": "",
    "multiprocessing.queues": "",
    "multiprocessing.sharedctypes": "",
    "multiprocessing.synchronize": "",
    "pandas._libs.tslibs.offsets": "BaseOffset",
    "pandas.api.extensions": "ExtensionDtype",
    "pandas.core.dtypes.base": "ExtensionDtype",
    "pathlib": "PurePath",
    "pathlib._local": "PurePath",  # in 3.13
}
# Of these, only the names change. (The third version of pandas calls it by its public name.)
_LABELS = {"pandas": "Index", "pandas.core.indexes.base": "Index"}
# What there is in objects of C classes of these modules, beside caches and who else refers to the same.
_KNOWN_PARTS = {
    "pandas._libs.arrays": ("_ndarray", "_dtype"),
    "pandas._libs.internals": ("axes", "blocks", "values", "_mgr_locs", "indexer"),
}
# What Python and libraries put there when a class or an object is used.
_MADE_LATER = frozenset({"__slotnames__", "__annotations__", "__annotations_cache__", "__annotate_func__"})
_OF_ENUM = frozenset({"_value2member_map_", "_inverted_"})  # of the class, and of a member: by what flags are together
_CACHES = {"pandas": frozenset({"_cache", "_item_cache", "cat", "dt", "list", "plot", "sparse", "str", "struct"})}

# By what Python says of a class, whatever its metaclass says.
module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
attributes_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_size_of: Callable[[type], int] = type.__dict__["__basicsize__"].__get__
_base_of: Callable[[type], type] = type.__dict__["__base__"].__get__
_weakref_offset_of: Callable[[type], int] = type.__dict__["__weakrefoffset__"].__get__
class_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


class _Frozen(weakref.ref[object]):
    """Stands for an object that is compared by its identity; an object may have weak references of its own."""

    __slots__ = ()


class Contents:
    """
    What is seen of *thing*.

    With *keep*, an object in it that is replaced by an equal one counts as a change, and all of them are kept alive.
    With *before*, frozen contents, raise `LookupError` at the first difference, also if an object in it is another one.
    """

    __slots__ = (
        "_ids",
        "_is_definition",
        "_is_second",
        "_state",
        "complete",
        "count",
        "definitions",
        "nbytes",
        "objects",
        "values",
    )

    def __init__(self, thing: Any, keep: bool = False, before: Contents | None = None) -> None:
        #: Whether all was understood that was looked at.
        self.complete = True
        #: The functions and classes of the main module in it, unless they are those *before*.
        self.definitions: list[Any] = []
        #: How much was looked at.
        self.count = 0
        self.nbytes = 0
        self.values: list[Any] = []
        self.objects: list[Any] = []  # compared by identity
        places: dict[int, tuple[int]] = {}  # by the `id` of what is at them
        self._ids: list[int] = []
        self._is_second = before is not None
        pending: list[Any] = []
        rest: Iterator[Any] | None = None
        classes = _AT_FIRST_LOOK.copy()
        if before is not None:
            rest, self._ids, classes = iter(before.values), before._ids, _AT_SECOND_LOOK.copy()
        self._state = state = (pending, places, self.values, self.objects, classes, rest, self._ids)
        self._is_definition: bool = is_definition(thing) if before is None else before._is_definition
        if self._is_definition:
            self.objects.append(thing)
            self.see_all(definition_parts(thing))
        else:
            self.see_all([thing])
        begin, has_no_zones = 0, None
        while self.complete or keep:
            begin, self.count = look(state, begin, self.count, MOST_OBJECTS, MOST_PARTS)
            if self.count > MOST_PARTS or begin == len(pending) or begin == MOST_OBJECTS:
                break
            each = pending[begin]
            way = _way_to_see(type(each))
            if way is _see_attributes_alone:
                self.see_definition(type(each))
                classes[id(type(each))] = True
            elif way is _see_links:
                classes[id(type(each))] = None
            elif way is see_identity:
                classes[id(type(each))] = False
            elif way is _see_moment and has_no_zones is None and (has_no_zones := not _has_own_zones(tzinfo)):
                classes.update({id(datetime): False, id(time): False})
            else:
                way(self, each)
                begin += 1
        if begin < len(pending) and _registered:
            kinds = {id(type(each)): type(each) for each in pending}
            self.complete &= not any(_library_of(kind) in _registered for kind in kinds.values())
        self.objects += pending if keep else ()
        if rest is None or before is None:
            self._ids = [*places]
        else:
            if self.values:
                self.see_all([])
            if not self.complete or next(rest, self) is not self or not before.are_objects(self.objects):
                raise LookupError("not as before")
        del self._state

    def freeze(self) -> None:
        """Keep nothing alive but small things that never change."""
        self.definitions.clear()
        self.values = without_long_texts(self.values)
        self.objects = [_Frozen(each) if has_weak_references(each) else each for each in self.objects]

    def are_same_as(self, before: Contents) -> bool:
        """Tell whether these are the contents that were seen before."""
        return (
            _are_all_same(self.values, before.values) or _are_all_same(without_long_texts(self.values), before.values)
        ) and before.are_objects(self.objects)

    def are_objects(self, objects: list[Any]) -> bool:
        """Tell whether these are the objects that were seen, in their order."""
        own = [each() if type(each) is _Frozen else each for each in self.objects]
        return len(own) == len(objects) and all(map(is_, own, objects))

    def see_all(self, parts: list[Any]) -> None:
        """See *parts*, at once or later, but each object once."""
        self.count += see(self._state, parts)

    def see_definition(self, each: Any) -> None:
        """See a function or class."""
        self.objects.append(each)
        if not self._is_second and is_definition(each):
            self.definitions.append(each)

    def see_unknown(self, each: Any) -> None:
        """See an object that may have a state of which Python does not know."""
        self.objects.append(each)
        self.complete = False

    def see_elements(self, array: Any) -> None:
        """See the elements of an array which nobody shares."""
        self.nbytes += array.nbytes
        is_one_of_many = self.nbytes > MOST_BYTES_OF_ALL
        if (array.nbytes > MOST_BYTES or is_one_of_many) and array.ndim:
            if array.dtype.itemsize * SAMPLE > MOST_BYTES:
                self.complete = False
                return
            most = SAMPLE if is_one_of_many else min(ELEMENTS, MOST_BYTES // max(1, array.dtype.itemsize))
            along = max(1, int(most ** (1 / array.ndim)))
            array = array[tuple(slice(None, None, max(1, -(-length // along))) for length in array.shape)]
        if not array.dtype.hasobject:
            self.values.append(array.tobytes())
        elif array.dtype.kind == "O":
            self.see_all(array.ravel().tolist()[:MOST_PARTS])
        else:
            self.complete = False


def see_identity(contents: Contents, each: Any) -> None:
    """For an object that is compared by its identity: `look` does it."""


def _see_weak_reference(contents: Contents, each: Any) -> None:
    """An object has one without a callback, so that another one is to another object."""
    contents.objects.append(each)


def _see_links(contents: Contents, each: Any) -> None:
    """For an object that is made of references alone: `look` does it."""


def _see_alias(contents: Contents, each: Any) -> None:
    """For `list[int]` and `int | str`: Python puts there later which parameters it has."""
    contents.see_all([type(each), getattr(each, "__origin__", None), each.__args__])


def _see_moment(contents: Contents, each: Any) -> None:
    """For a date or time, if the program has a class of time zones."""
    contents.objects.append(each)
    contents.see_all([each.tzinfo])


def _see_attributes_alone(contents: Contents, each: Any) -> None:
    """For an object which is nothing but its one dict: `look` does it."""


def _see_labels(contents: Contents, each: Any) -> None:
    """For an index of pandas."""
    own = dict_of(each)
    contents.objects.append(each)
    contents.see_all([own.get("_name"), own.get("_names"), own.get("_levels")])
    data: Any = own.get("_data")
    if type(data) is sys.modules["numpy"].ndarray and data.dtype.kind == "O":
        contents.see_all(data[:SAMPLE].tolist())


def _see_method(contents: Contents, each: Any) -> None:
    contents.see_all([each.__name__, each.__self__])


def _see_module(contents: Contents, each: Any) -> None:
    (contents.objects.append if is_imported(each) else contents.see_unknown)(each)


def _see_buffer(contents: Contents, each: Any) -> None:
    """For a bytearray, or an array of the standard library."""
    length, size = len(each), getattr(each, "itemsize", 1)
    contents.nbytes += length * size
    contents.values += type(each), length, getattr(each, "typecode", "B"), bytes(each[:: -(-length // ELEMENTS) or 1])
    if contents.nbytes <= MOST_BYTES_OF_ALL:
        contents.values.append(bytes(each[: MOST_BYTES // size]))


def _see_generator(contents: Contents, each: Any) -> None:
    contents.values.append(pickle.dumps(state_of(each)))


def _see_cached(contents: Contents, each: Any) -> None:
    contents.objects.append(each)
    contents.see_all([each.__wrapped__, *vars(each).values()])


def _see_container(base: Any, contents: Contents, each: Any) -> None:
    length = base.__len__(each)
    contents.values += base, length, deque.maxlen.__get__(each) if base is deque else None
    contents.see_all(_items_of(each, base, length))


def _see_dtype(contents: Contents, each: Any) -> None:
    contents.objects.append(each)
    contents.values.append(str(each))


def _see_array(contents: Contents, thing: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    array = numpy.ndarray.view(thing, numpy.ndarray)
    described = array.dtype.str if array.dtype.names is None else str(array.dtype)
    contents.values += array.shape, array.strides, described, array.flags.writeable
    sharing = _sharing_of(thing)
    if sharing is None:
        contents.complete = False
    if sharing is not False:
        contents.objects.append(thing)
        return
    contents.see_elements(array)


# By the library, the modules and names of classes.
_registered: dict[str, dict[tuple[str, str], _Way]] = {}


def register(module: str, name: str, way: Callable[[Contents, Any], object]) -> None:
    """
    Let a look see the objects of a class, of this module and name, by *way*, which runs no code of the program.

    A look which does not come to all is not complete if there are objects of this library.
    """
    _registered.setdefault(module.partition(".")[0], {})[module, name] = way
    _ways.clear()


_ways: dict[int, tuple[weakref.ref[type], _Way]] = {}  # by the `id` of the class


def _way_to_see(kind: type) -> _Way:
    """Return how to see an object of this kind."""
    known = _ways.get(id(kind))
    if known is None or known[0]() is not kind:
        if len(_ways) > MOST_PARTS:
            _ways.clear()
        known = _ways[id(kind)] = weakref.ref(kind), _find_way(kind)
    return known[1]


def _find_way(kind: type) -> _Way:
    for base in _CONTAINERS:
        if issubclass(kind, base):
            way = partial(_see_container, base)
            return way if kind is base else _both(way, _see_attributes(kind, base))
    if kind is FunctionType or issubclass(kind, type):
        return Contents.see_definition
    if kind is lru_cache_wrapper:
        return _see_cached
    if issubclass(kind, (types.GenericAlias, types.UnionType)):
        return _see_alias
    if kind in _LINKS or _is_known(kind, _KNOWN_LINKS):
        return _see_links
    if kind in (datetime, time):
        return _see_moment
    if any(_names_of_parts(base) for base in bases_of(kind)):
        return _see_parts(kind)
    if kind is weakref.ref:
        return _see_weak_reference
    if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
        return _see_method
    if issubclass(kind, types.ModuleType):
        return _see_module
    if any(_is_known(base, _LABELS) for base in bases_of(kind)):
        return _see_labels
    known = [base for base in bases_of(kind) if _is_known(base, _KNOWN_BASES)]
    if known and _library_of(kind) in (_library_of(known[0]), _library_of(Contents)):
        return see_identity
    if (issubclass(kind, _NEVER_CHANGE) and module_of(kind) != "__main__") or _is_known(kind, _KNOWN_NEVER_CHANGE):
        return see_identity
    registered = _registered.get(_library_of(kind), {}).get((_module_name(kind), class_name_of(kind)))
    if registered is not None:
        return registered
    if kind is bytearray or _is_known(kind, _BUFFERS):
        return _see_buffer
    if (numpy := sys.modules.get("numpy")) is not None:
        if kind is type(numpy.dtype("V")):  # those with fields, which can get other names
            return _see_dtype
        if issubclass(kind, (numpy.generic, numpy.dtype)) and not issubclass(kind, numpy.void):
            return see_identity
        if issubclass(kind, numpy.ndarray):
            has_no_more = kind is numpy.ndarray or kind is numpy.memmap
            return _see_array if has_no_more else _both(_see_array, _see_attributes(kind, numpy.ndarray))
    for plain, value_of in _PLAIN.items():
        if issubclass(kind, plain):
            return _both(partial(_see_plain, value_of), _see_attributes(kind, plain))
    if is_generator(kind):
        return _see_generator
    return see_identity if kind is object else _see_attributes(kind, object)  # an `object()` is a sentinel


def _see_parts(kind: type) -> _Way:
    """Return how to see the known parts of an object of this kind, and its other attributes."""
    known = [base for base in bases_of(kind) if _names_of_parts(base)]
    names = [(attributes_of(base), name) for base in known for name in _names_of_parts(base)]
    readers = [attributes[name].__get__ for attributes, name in names if name in attributes]

    def way(contents: Contents, each: Any) -> None:
        contents.see_all([type(each), *(read(each) for read in readers)])

    return way if kind in known else _both(way, _see_attributes(kind, known[0]))


def _module_name(kind: type) -> str:
    """Return the name of the module of a class; an empty one if the program has put something else there."""
    module = module_of(kind)
    return module if type(module) is str else ""


def _library_of(kind: type) -> str:
    return _module_name(kind).partition(".")[0]


def _names_of_parts(kind: type) -> tuple[str, ...]:
    return _KNOWN_PARTS.get(_module_name(kind), ())


def _see_plain(value_of: Callable[[Any], Any], contents: Contents, each: Any) -> None:
    contents.values.append(value_of(each))


def _both(first: _Way, second: _Way) -> _Way:
    def way(contents: Contents, each: Any) -> None:
        first(contents, each)
        second(contents, each)

    return way


def _see_attributes(kind: type, base: type) -> _Way:
    """Return how to see the attributes of an object of this kind, whose state as a *base* is seen apart."""
    dicts, slots = 0, len(_slots_of(kind, base))
    for its in bases_of(kind):
        attributes = attributes_of(its)
        found = attributes.get("__dict__")
        own = _slots_in(its)
        if its is base:
            break
        room = len(own) + (found is not None) + ("__weakref__" in attributes)
        dicts += type(found) in (GetSetDescriptorType, MemberDescriptorType)
        if _size_of(its) - _size_of(_base_of(its)) > 8 * room or not (found is None or dicts):
            return Contents.see_unknown
    caches = _OF_ENUM if issubclass(kind, Enum) else _CACHES.get(_library_of(kind), frozenset())
    if base is object and dicts and not slots and not caches:
        return _see_attributes_alone

    def way(contents: Contents, each: Any) -> None:
        contents.see_definition(type(each))
        if dicts:
            own = {name: part for name, part in dict_of(each).items() if name not in caches}
            contents.see_all([*own.keys(), *own.values()])
        if slots:
            found = _slots_of(type(each), base)
            are_set = tuple(_is_set(slot, each) for slot in found)
            contents.values.append(are_set)
            contents.see_all([slot.__get__(each) for slot, is_set in zip(found, are_set, strict=True) if is_set])

    return way


def _slots_of(kind: type, base: type) -> list[Any]:
    """Return the slots of the objects of a class. Nobody keeps them: each keeps its class alive."""
    bases = bases_of(kind)
    return [slot for its in bases[: bases.index(base) + 1] for slot in _slots_in(its)]


def _slots_in(kind: type) -> list[Any]:
    attributes = attributes_of(kind)
    found = attributes.get("__dict__")
    return [slot for slot in attributes.values() if type(slot) is MemberDescriptorType and slot is not found]


def are_same(value: Any, before: Any) -> bool:
    """Tell whether a value that was seen is that from before; 0.0 is not -0.0."""
    if type(value) is not type(before):
        return False
    return value is before or (value == before and (type(value) not in _SIGNED or repr(value) == repr(before)))


def _are_all_same(values: list[Any], before: list[Any]) -> bool:
    return len(values) == len(before) and all(map(are_same, values, before))


def contents_of(thing: Any, keep: bool = False, before: Contents | None = None) -> Contents | None:
    """
    Return the contents of *thing*; None if another thread changes it meanwhile, or a class of it refuses, or they are
    not those *before*.
    """
    try:
        return Contents(thing, keep, before)
    except Exception as error:
        if is_of_handler(error):
            raise
        return None


def has_weak_references(thing: Any) -> bool:
    return _weakref_offset_of(type(thing)) != 0


def without_long_texts(values: list[Any]) -> list[Any]:
    """Return the values, with the type, length and hash of a long text."""
    return [(type(each), len(each), hash(each)) if _is_long_text(each) else each for each in values]


def _is_long_text(value: Any) -> bool:
    return (type(value) is str or type(value) is bytes) and len(value) > LONG_TEXT


def _is_known(kind: type, known: dict[str, str]) -> bool:
    names = known.get(_module_name(kind))
    return names == "" or (names is not None and class_name_of(kind) in names.split())


def is_definition(thing: Any) -> bool:
    """Tell whether *thing* is a function or class that other processes do not find by its name."""
    return issubclass(type(thing), FunctionType | type) and not is_found_by_name(thing)


def definition_parts(thing: Any) -> list[Any]:
    """Return what a function or class has of its own."""
    if type(thing) is FunctionType:
        return function_parts(thing)
    later = _MADE_LATER | _OF_ENUM if issubclass(type(thing), EnumMeta) else _MADE_LATER
    attributes = {name: part for name, part in attributes_of(thing).items() if name not in later}
    registered = len(abc._get_dump(thing)[0]) if "_abc_impl" in attributes else 0  # type: ignore[attr-defined]
    words = class_name_of(thing), type.__dict__["__qualname__"].__get__(thing)
    return [*attributes.keys(), *attributes.values(), *words, type(thing), *bases_of(thing)[1:], registered]


def _has_own_zones(kind: type) -> bool:
    """Tell whether the main module has a class that derives from this one."""
    derived: list[type] = type.__subclasses__(kind)
    return any(module_of(each) == "__main__" or _has_own_zones(each) for each in derived)


def _is_set(slot: Any, thing: Any) -> bool:
    try:
        slot.__get__(thing)
        return True
    except AttributeError:
        return False


def _items_of(each: Any, base: Any, length: int) -> list[Any]:
    # By the methods of Python's own class, which a class of the program may have replaced.
    if length <= MOST_PARTS:
        parts = [*base.__iter__(each)]
        return [*parts, *dict.values(each)] if issubclass(base, dict) else parts
    if base is list or base is tuple:
        return [*base.__getitem__(each, slice(None, None, length // SAMPLE)), base.__getitem__(each, -1)]
    if issubclass(base, dict):
        values = dict.values(each)
        return [*islice(dict.keys(each), SAMPLE), *islice(values, SAMPLE), *islice(reversed(values), SAMPLE)]
    return [*islice(base.__iter__(each), SAMPLE)]


def _sharing_of(array: Any) -> bool | None:
    """Tell whether others see what is written to *array*; None if nobody knows, as of a buffer of another library."""
    numpy: Any = sys.modules["numpy"]
    base = array
    while issubclass(type(base), numpy.ndarray):
        if issubclass(type(base), numpy.memmap):
            return None if vars(base).get("mode", "c") == "c" else True
        own = attributes_of(numpy.ndarray)
        owner = own["base"].__get__(base)
        if owner is None:
            return False if own["flags"].__get__(base).owndata else None
        base = owner
    if type(base) is bytes:
        return False
    address = numpy.ndarray.view(array, numpy.ndarray).__array_interface__["data"][0]
    return True if block_at(address) is not None else None
