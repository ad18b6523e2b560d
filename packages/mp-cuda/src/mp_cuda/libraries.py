"""Libraries: register reducers for the arrays of CUDA libraries, when these are imported.

Note [Registration on import]
-----------------------------
`init_reductions()` imports neither the bindings nor a library. It registers the types of libraries already imported.
For the others it puts a finder into `sys.meta_path`, which sees the name of each module at its first import, and
registers the types after one of the watched modules has been executed.

wrapt's `register_post_import_hook` would replace 37 lines of this. `import wrapt` (2.5) imports asyncio: 40 to 60 ms of
CPU time more in each process that imports mp_all, where all of mp_all takes 215.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

from mp_core import _install

__all__ = ["init_reductions", "register", "unregister"]

# Module to kind. torch.multiprocessing sends torch's tensors, so torch is registered only on request.
WATCHED = {"cupy": "cupy", "numba.cuda": "numba", "cuda.core": "cuda.core"}


def init_reductions() -> None:
    """
    Send the device arrays of CuPy, numba and cuda.core by handle from now on, in this process and in children.

    It imports none of them. Calling it again does nothing. ``import mp_all`` calls it.

    Examples
    --------
    >>> mp_cuda.init_reductions()
    """
    for module, kind in WATCHED.items():
        if module in sys.modules:
            register(kind)
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())
    _install.register("mp_cuda")


def register(*kinds: str) -> tuple[str, ...]:
    """
    Send the arrays of these libraries by handle.

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
    from mp_cuda import adapters
    from mp_cuda.reduce import reduce_array

    if not kinds:
        kinds = tuple(kind for module, kind in WATCHED.items() if module in sys.modules)
    for kind in kinds:
        if kind not in adapters.KINDS:
            adapters.by_kind(kind)  # raises, and names the known ones
        importlib.import_module(_top(kind))
        importlib.import_module(adapters.KINDS[kind])
        adapter: Any = adapters.by_kind(kind)
        handles = getattr(adapter, "handles", None)
        for type_ in adapter.types():
            before = _reducers().get(type_)
            if type_ in _before:
                continue
            _before[type_] = kind, before
            ForkingPickler.register(type_, reduce_array if handles is None else _either(handles, before))
    return kinds


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


_before: dict[type, tuple[str, Any]] = {}


def _reducers() -> dict[type, Any]:
    registered: dict[type, Any] = vars(ForkingPickler)["_extra_reducers"]
    return registered


def _top(kind: str) -> str:
    return {"numba": "numba.cuda"}.get(kind, kind)


def _either(handles: Callable[[Any], bool], before: Any) -> Callable[[Any], Any]:
    """Return a reducer: ours for arrays on a device; else the one registered before, or the object's own."""
    from mp_cuda.reduce import reduce_array

    def reduce(obj: Any) -> Any:
        if handles(obj):
            return reduce_array(obj)
        return before(obj) if before is not None else obj.__reduce_ex__(2)

    return reduce


class _Watch(importlib.abc.MetaPathFinder):
    """Find watched modules with the other finders, and wrap their loaders to learn when a module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in WATCHED:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if find is None or isinstance(finder, _Watch):
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, WATCHED[fullname])
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Wrap a loader until it executes its module; the module sees only the original loader."""

    def __init__(self, loader: Any, kind: str) -> None:
        self._loader, self._kind = loader, kind

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        module: ModuleType | None = self._loader.create_module(spec)
        spec.loader = self
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            register(self._kind)
        except Exception as error:  # a successful import must not fail because of mp_cuda
            logging.getLogger("mp_cuda").warning("cannot send arrays of %s by handle: %r", self._kind, error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
