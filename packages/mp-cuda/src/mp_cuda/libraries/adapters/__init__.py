"""Adapters: libraries whose arrays are known by type, a module each, imported when its library has been imported."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

from mp_cuda.arrays.array import DeviceArray

KINDS = {"cupy": "cupy", "numba": "numba.cuda.cudadrv.devicearray", "torch": "torch", "cuda.core": "cuda.core"}
"""The kinds, with the module that must have been imported for such arrays to exist."""


class Adapter(Protocol):
    """The functions of each module here."""

    def types(self) -> tuple[type, ...]:
        """Return the array types. Their library has been imported."""

    def view(self, obj: Any) -> DeviceArray:
        """View *obj* as a `DeviceArray` that keeps it alive."""

    def rebuild(self, array: DeviceArray, extra: bytes) -> Any:
        """Make an array of the library on the memory of *array*, and keep *array* alive."""


def taken_apart(adapter: Adapter, obj: Any) -> tuple[DeviceArray, bytes]:
    """Return the memory to send, which need not be all or only that of *obj*, and what else `rebuild` needs."""
    own: Any = getattr(adapter, "taken_apart", None)
    return (adapter.view(obj), b"") if own is None else own(obj)


registered: dict[type, tuple[str, Adapter, Callable[[Any], bool] | None]] = {}
"""The types whose arrays messages have by their adapters, with what tells which arrays, or None for all."""


@functools.cache
def by_kind(kind: str) -> Adapter:
    """Return the adapter of *kind*. `ValueError` if there is none."""
    if kind not in KINDS:
        raise ValueError(f"there is no adapter for {kind!r}; known are {', '.join(KINDS)}")
    return cast(
        Adapter, importlib.import_module(f"mp_cuda.libraries.adapters.{kind.replace('cuda.core', 'cuda_core')}")
    )


def kind_of(obj: Any) -> str | None:
    """Return the kind of *obj*, or None if no imported library of `KINDS` made it."""
    for kind, module in KINDS.items():
        if module in sys.modules and type(obj) in by_kind(kind).types():
            return kind
    return None
