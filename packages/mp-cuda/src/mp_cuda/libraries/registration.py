"""Libraries: register reducers for the arrays of CUDA libraries, when these are imported.

`init_reductions()` imports neither the bindings nor a library. It registers the types of libraries already imported,
and waits for the import of the others (`mp_core/system/imports.py`).
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

from mp_core.sharing import backend
from mp_core.system import imports, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Module to kind. torch.multiprocessing sends torch's tensors, so torch is registered only on request. numba's is the
# module of its arrays: nothing else has to be imported then, which would fail in the middle of numba's own import.
WATCHED = {"cupy": "cupy", "numba.cuda.cudadrv.devicearray": "numba", "cuda.core": "cuda.core"}


def init_reductions() -> None:
    """
    Send the device arrays of CuPy, numba and cuda.core by handle from now on, in this process and in children.

    It imports none of them. Calling it again does nothing. ``import mp_all`` calls it.

    Examples
    --------
    >>> mp_cuda.init_reductions()
    """
    if not backend.LIBSHM:  # libraries pickle their arrays as before
        return
    for module in WATCHED:
        imports.when_imported(module, _registration(module))
    packages.register("mp_cuda", *(f"import {module}" for module in WATCHED))


@functools.cache
def _registration(module: str) -> Callable[[], None]:
    def register_imported() -> None:
        try:
            register(WATCHED[module])
        except Exception as error:  # a successful import must not fail because of mp_cuda
            import logging

            logging.getLogger("mp_cuda").warning("cannot send arrays of %s by handle: %r", WATCHED[module], error)

    return register_imported


def register(*kinds: str) -> tuple[str, ...]:
    """
    Send the arrays of these libraries by handle. Where a library has a reducer of its own, ours takes its place there.

    Parameters
    ----------
    *kinds : {"cupy", "numba", "cuda.core", "torch"}
        The libraries to import and register; if none is given, all already imported except torch.

    Returns
    -------
    tuple of str
        The registered libraries.

    Raises
    ------
    ImportError
        A given library is not installed.
    ValueError
        An unknown name.

    Examples
    --------
    >>> mp_cuda.register()
    ()
    """
    from mp_cuda.driver.functions import use_codec
    from mp_cuda.libraries import adapters
    from mp_cuda.libraries.reduce import reduce_array
    from mp_cuda.sharing.exports import in_use

    if not kinds:
        kinds = tuple(kind for module, kind in WATCHED.items() if module in sys.modules)
    for kind in kinds:
        if kind not in adapters.KINDS:
            adapters.by_kind(kind)  # raises, and names the known ones
        if adapters.KINDS[kind] not in sys.modules:  # or a part of it is under way
            importlib.import_module({"numba": "numba.cuda"}.get(kind, kind))
            importlib.import_module(adapters.KINDS[kind])
        adapter: Any = adapters.by_kind(kind)
        handles = getattr(adapter, "handles", None)
        if handles is not None:
            _replace_default(kind, adapter, handles)
        if hasattr(adapter, "in_use"):
            in_use[adapter.owner_type()] = adapter.in_use
        for type_ in adapter.types():
            adapters.registered[type_] = kind, adapter, handles
            before = _reducers().get(type_)
            # A reducer of another package may find ours where its library has its own.
            if type_ not in _before and not (handles is not None and getattr(before, "finds_default", False)):
                _before[type_] = kind, before
                ForkingPickler.register(type_, reduce_array if handles is None else _either(handles, before))
            use_codec(type_, _reducers()[type_])
    return kinds


def _replace_default(kind: str, adapter: Any, handles: Callable[[Any], bool]) -> None:
    """Put our reducer in the place of the library's own in its module."""
    if kind not in _defaults:
        module, name = adapter.default_reducer()
        _defaults[kind] = module, name, getattr(module, name)
        setattr(module, name, _either(handles, getattr(module, name)))


def unregister(*kinds: str) -> None:
    """
    Send the arrays of these libraries again as before `register`.

    Parameters
    ----------
    *kinds : {"cupy", "numba", "cuda.core", "torch"}
        All if none is given.

    Examples
    --------
    >>> mp_cuda.unregister("torch")
    """
    for type_, (kind, before) in list(_before.items()):
        if not kinds or kind in kinds:
            del _before[type_]
            if before is None:
                _reducers().pop(type_, None)
            else:
                ForkingPickler.register(type_, before)
    for kind, (module, name, theirs) in list(_defaults.items()):
        if not kinds or kind in kinds:
            del _defaults[kind]
            setattr(module, name, theirs)


_before: dict[type, tuple[str, Any]] = {}
_defaults: dict[str, tuple[Any, str, Any]] = {}
"""The reducers of libraries that `register` has replaced in their modules too: module, name, reducer."""


def _reducers() -> dict[type, Any]:
    registered: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    return registered


def _either(handles: Callable[[Any], bool], before: Any) -> Callable[[Any], Any]:
    """Return a reducer: ours for arrays on a device; else the one registered before, or the object's own."""
    from mp_cuda.libraries.reduce import reduce_array

    def reduce(obj: Any) -> Any:
        if handles(obj):
            return reduce_array(obj)
        return before(obj) if before is not None else obj.__reduce_ex__(2)

    return reduce
