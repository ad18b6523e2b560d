"""NumPy's allocator interface (NEP 49), taken from NumPy's C API table at its first use.

Every compiled extension uses this table; the place of a function in it never changes, so one build serves every NumPy
since 1.22, without headers.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from mp_core import _native
from mp_reductions.ndarray_fields import begins_as_expected

__all__ = ["DEFAULT_HANDLER", "GET_HANDLER", "SET_HANDLER", "api_table", "born", "handlers"]

born: Any = _native.compiled("mp_reductions._born")

# Indices in the table; NumPy's generated header has them as PyArray_API[304] and so on.
SET_HANDLER, GET_HANDLER, DEFAULT_HANDLER = 304, 305, 306


def api_table() -> Any:
    """Return NumPy's C API table, an array of pointers."""
    core = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
    umath = importlib.import_module(f"{core}._multiarray_umath")
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.cast(address(vars(umath)["_ARRAY_API"], None), ctypes.POINTER(ctypes.c_void_p))


class Handlers:
    """Get the allocation handler, set it for this context, or replace it for the whole process."""

    def __init__(self) -> None:
        table = api_table()
        self._set: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
        self._get: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(table[GET_HANDLER])
        self._own: Any = ctypes.py_object.from_address(table[DEFAULT_HANDLER]).value
        self.shared: Any = born.wrap(self._own)
        if not begins_as_expected(np.empty(1)):
            raise NotImplementedError(
                f"arrays of NumPy {np.__version__} do not begin like those of 1.26 to 2.4; use shared.zeros and its "
                "siblings instead"
            )

    def get(self) -> Any:
        """Return the handler of this context, a capsule."""
        return self._get()

    def set(self, handler: Any) -> None:
        """Let *handler* allocate the arrays that are made in this context from now on."""
        self._set(handler)

    def replace(self, on: bool) -> None:
        """
        Let NumPy's own handler, with which every new context begins, allocate in shared memory; or stop it.

        NumPy's handler is a capsule around a pointer to a table of functions, which NumPy follows each time. One store
        exchanges the table for all threads at once, including those that began before.
        """
        born.replace(self._own, on)


_handlers: Handlers | None = None


def handlers() -> Handlers:
    """Return the only `Handlers`, made at its first use: until then NumPy is left untouched."""
    global _handlers
    if _handlers is None:
        _handlers = Handlers()
    return _handlers
