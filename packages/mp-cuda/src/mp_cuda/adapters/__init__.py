"""Libraries whose arrays are known by type: a module for each, which is imported when its library is there."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol, cast

from mp_cuda.array import DeviceArray

__all__ = ["KINDS", "OWN", "Adapter", "by_kind", "of"]

OWN = "mp_cuda"
"""The kind of a `DeviceArray`, and of anybody's array that has no adapter."""

KINDS = {"cupy": "cupy", "numba": "numba.cuda.cudadrv.devicearray", "torch": "torch", "cuda.core": "cuda.core"}
"""Kind to the module that must have been imported for its arrays to exist."""


class Adapter(Protocol):
    """What each module here has."""

    def types(self) -> tuple[type, ...]:
        """The types that it knows; their library has been imported."""

    def view(self, obj: Any) -> DeviceArray:
        """*obj* as a `DeviceArray` that keeps it."""

    def rebuild(self, array: DeviceArray) -> Any:
        """An array of the library on the memory of *array*, which it keeps."""


def by_kind(kind: str) -> Adapter:
    """The adapter of *kind*. `ValueError` when there is none."""
    if kind not in KINDS:
        raise ValueError(f"no library is called {kind!r}; known are {', '.join(KINDS)}")
    return cast(Adapter, importlib.import_module(f"mp_cuda.adapters.{kind.replace('cuda.core', 'cuda_core')}"))


def kind_of(obj: Any) -> str | None:
    """The kind of *obj* when one of the libraries that have been imported made it."""
    for kind, module in KINDS.items():
        if module in sys.modules and type(obj) in by_kind(kind).types():
            return kind
    return None


def of(obj: Any) -> Adapter | None:
    """The adapter for *obj*; None when its type is not known."""
    kind = kind_of(obj)
    return None if kind is None else by_kind(kind)
