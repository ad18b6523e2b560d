"""Subclasses of `np.ndarray` are sent as arrays are, and keep their type and their attributes.

Note [Two kinds of subclasses]
------------------------------
Reducers cannot be registered for classes that do not exist yet, so a class is judged by how it is pickled:

    as NumPy does it         recarray, matrix, MaskedArray,      data as of an ndarray; a view of shared memory
    (no __reduce__ of its    and most classes of users           is shared, private data is copied once. The
    own)                                                         content of its __dict__ is sent too
    by methods of its own    classes that follow NumPy's         they must see the bytes, since they may compute
    (__reduce__ and/or       documentation, astropy's, unyt's    with them: the receiver rebuilds the object as
    __setstate__)                                                pickle does, then its memory is exchanged for
                                                                 the shared one, if both have the same bytes

Pickle drops the attributes of the first kind (a MaskedArray keeps its mask, but not that the mask is hard). Attributes
that cannot be pickled are dropped here as well: a program that runs on multiprocessing works without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.messages import pickling
from mp_core.sharing import backend
from mp_reductions import _functions, inline
from mp_reductions._functions import swap_memory
from mp_reductions.sharing import address_of, is_shared, share_memory, use_over

_ndarray: Any = np.ndarray
_frombuffer: Any = np.frombuffer


def _as_numpy() -> set[Any]:
    """Return the methods by which NumPy itself pickles."""
    # Importing numpy.ma takes longer than the rest of this package: if it is not imported, no masked array exists.
    masked: Any = getattr(sys.modules.get("numpy.ma.core"), "MaskedArray", _ndarray)
    return {method for kind in (_ndarray, masked) for method in (kind.__reduce__, kind.__setstate__)}


def choose_reducer(kind: type) -> Callable[[Any], Any] | None:
    """Return the reducer of a subclass of `np.ndarray`, see Note [Two kinds of subclasses]; None means pickle's."""
    subclass: Any = kind
    if subclass.__reduce_ex__ is not _ndarray.__reduce_ex__ or issubclass(kind, np.memmap):
        return None
    as_numpy = _as_numpy()
    if subclass.__reduce__ in as_numpy and subclass.__setstate__ in as_numpy:
        return reduce_view
    return reduce_customised


# ---- pickled as NumPy does it ----------------------------------------------------------------------------------------


def reduce_view(a: np.ndarray[Any, Any]) -> Any:
    """Reduce an array to its data, its type and its attributes."""
    if backend.by_value():
        return a.__reduce_ex__(inline.AS_NUMPY)
    if a.dtype.hasobject:
        return a.__reduce__()
    state = _attributes(a)
    if state is None and a.flags.writeable and not is_shared(a) and _functions.has_room(a.nbytes):
        return a.__reduce__()  # which is faster
    # Its bytes are copied later, perhaps without the GIL: another thread must not resize the array meanwhile.
    plain = _functions.held_view(a)
    arguments = (type(a), plain) if a.flags.writeable else (type(a), plain, False)
    return (rebuild_view, arguments) if state is None else (rebuild_view, arguments, state, None, None, restore)


def rebuild_view(kind: Any, plain: np.ndarray[Any, Any], writeable: bool = True) -> np.ndarray[Any, Any]:
    """Return an array of class *kind* over the memory of *plain*, read-only if *plain* is."""
    if not (isinstance(kind, type) and issubclass(kind, np.ndarray) and isinstance(plain, np.ndarray)):
        raise ValueError(f"the handle of an array is damaged: {kind!r} on {type(plain).__name__}")
    # Over the buffer itself, not as a view of *plain*: `__array_finalize__` must get None, as from pickle.
    layout = plain.shape, plain.dtype
    if plain.flags.c_contiguous:
        a: np.ndarray[Any, Any] = _ndarray.__new__(kind, *layout, plain)
    else:
        buffer: Any = plain.base
        offset = address_of(plain) - address_of(_frombuffer(buffer, np.uint8))
        a = _ndarray.__new__(kind, *layout, buffer, offset, plain.strides)
    if not (writeable and plain.flags.writeable):
        a.flags.writeable = False
    return a


def over(plain: np.ndarray[Any, Any], a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array over the memory of *plain* that has the class and the attributes of *a*, and its mask, shared."""
    found = rebuild_view(type(a), plain)
    state = _object.__getstate__(a)
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    attributes = dict(attributes or {})
    if isinstance(attributes.get("_mask"), np.ndarray):
        attributes["_mask"] = share_memory(attributes["_mask"])
    restore(found, (attributes, slots))
    return found


use_over(over)


def restore(a: np.ndarray[Any, Any], state: Any) -> None:
    """Restore the attributes of *a*, including those in slots."""
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    if attributes:
        a.__dict__.update(attributes)
    for name, value in slots.items():
        setattr(a, name, value)


def _attributes(a: np.ndarray[Any, Any]) -> Any:
    """Return the picklable attributes of *a*: None, a dict, or two dicts (the second for slots)."""
    state = _object.__getstate__(a)
    if isinstance(state, tuple):
        return tuple(_picklable(part or {}) for part in state)
    return _picklable(state) if state else None


_object: Any = object


def _picklable(attributes: dict[str, Any]) -> dict[str, Any]:
    doubtful = {name: value for name, value in attributes.items() if not _is_simple(value)}
    if not doubtful or pickling.can_be_pickled(doubtful):
        return attributes
    return {name: value for name, value in attributes.items() if name not in doubtful or pickling.can_be_pickled(value)}


_SIMPLE = (type(None), bool, int, float, complex, str, bytes)


def _is_simple(value: Any) -> bool:
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    # An empty list, for example, or the attribute `_baseclass` of every MaskedArray.
    return type(value) in _SIMPLE or value is np.ndarray or (type(value) in (dict, list, tuple) and not value)


# ---- pickled by methods of its own -----------------------------------------------------------------------------------


def reduce_customised(a: np.ndarray[Any, Any]) -> Any:
    """Reduce an array by its class's own methods, with the bytes in shared memory."""
    reduced = a.__reduce__()
    if backend.by_value():
        return reduced
    shared = is_shared(a)
    if a.dtype.hasobject or (not shared and _functions.has_room(a.nbytes)):
        return reduced
    match reduced:
        case (reconstruct, arguments, state) if type(state) is tuple and (place := _place_of_bytes(state, a)):
            data, order = _part(state, place), _order(state, place)
        case _:
            return reduced
    if not shared:
        # NumPy's copy of the bytes, not `a`: the class may have changed them.
        plain: np.ndarray[Any, Any] = _ndarray(a.shape, a.dtype, data, 0, None, order)
    elif np.ndarray.tobytes(a, order) == data:
        plain = np.ndarray.view(a, np.ndarray)
    else:
        return reduced
    return rebuild_customised, (plain, a.flags.writeable, reconstruct, arguments, _with(state, place, None), place)


def _place_of_bytes(state: tuple[Any, ...], a: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """
    Return where NumPy's state has the bytes of *a*: their index in *state*, or in a tuple of it, after that of this
    tuple. Empty if they are not there.
    """
    inner = [((at,), part) for at, part in enumerate(state) if type(part) is tuple]
    for before, part in [((), state), *inner]:
        for at in range(4, len(part)):
            if _is_numpys(a, *part[at - 4 : at + 1]):
                return (*before, at)
    return ()


def _is_numpys(a: np.ndarray[Any, Any], version: Any, shape: Any, dtype: Any, is_fortran: Any, data: Any) -> bool:
    """Tell whether these are NumPy's state of *a*; anything else that a class has put there is not compared."""
    types = type(version), type(shape), type(is_fortran), type(data)
    return (
        types in ((int, tuple, bool, bytes), (int, tuple, int, bytes))
        and isinstance(dtype, np.dtype)
        and all(type(length) is int for length in shape)
        and (shape, dtype, len(data)) == (a.shape, a.dtype, a.nbytes)
    )


def _part(state: Any, place: tuple[int, ...]) -> Any:
    for at in place:
        state = state[at]
    return state


def _order(state: tuple[Any, ...], place: tuple[int, ...]) -> Any:
    """Return the order of the bytes at *place*, which is before them in NumPy's state."""
    *outer, at = place
    return "F" if _part(state, (*outer, at - 1)) else "C"


def _with(state: tuple[Any, ...], place: tuple[int, ...], data: bytes | None) -> tuple[Any, ...]:
    at, *rest = place
    part = _with(state[at], tuple(rest), data) if rest else data
    return (*state[:at], part, *state[at + 1 :])


def rebuild_customised(
    plain: np.ndarray[Any, Any],
    writeable: bool,
    reconstruct: Callable[..., Any],
    arguments: tuple[Any, ...],
    state: tuple[Any, ...],
    place: tuple[int, ...],
) -> Any:
    """Rebuild the object as pickle does, over the memory of *plain* if no byte changed."""
    order = _order(state, place)
    a = reconstruct(*arguments)
    a.__setstate__(_with(state, place, plain.tobytes(order)))
    alone = object()
    if (
        is_shared(plain)
        and isinstance(a, np.ndarray)
        and (a.shape, a.dtype) == (plain.shape, plain.dtype)
        and sys.getrefcount(a) == sys.getrefcount(alone)  # no view would stay on the old memory
        # The bytes of `a`, not those passed to __setstate__: NumPy lets it change them in place.
        and np.ndarray.tobytes(a, order) == plain.tobytes(order)
    ):
        plain.flags.writeable = writeable
        swap_memory(a, plain)
    return a
