"""NumPy's allocator interface (its NEP 49), taken from NumPy's C API table when it is first wanted.

The table is the one that every compiled extension uses; a function's place in it never changes, so one build of ours
serves every NumPy since 1.22, and no headers are needed.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from mp_core import _native

__all__ = ["DATA_OFFSET", "DEFAULT_HANDLER", "GET_HANDLER", "SET_HANDLER", "api_table", "born", "handlers"]

born: Any = _native.compiled("mp_reductions._born")

# Places in the table; in NumPy's generated header they are PyArray_API[304] and so on.
SET_HANDLER, GET_HANDLER, DEFAULT_HANDLER = 304, 305, 306

# Where an array object keeps the address of its first element: the first field of `PyArrayObject_fields`.
DATA_OFFSET: int = object.__basicsize__


def api_table() -> Any:
    """NumPy's C API: an array of pointers."""
    core = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
    umath = importlib.import_module(f"{core}._multiarray_umath")
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.cast(address(vars(umath)["_ARRAY_API"], None), ctypes.POINTER(ctypes.c_void_p))


class Handlers:
    """What can be done about the handler: ask, set for this context, replace for the whole process."""

    def __init__(self) -> None:
        table = api_table()
        self._set: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
        self._get: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(table[GET_HANDLER])
        self._own: Any = ctypes.py_object.from_address(table[DEFAULT_HANDLER]).value
        self.born: Any = born.wrap(self._own)
        probe = np.empty(1)
        if ctypes.c_void_p.from_address(id(probe) + DATA_OFFSET).value != probe.__array_interface__["data"][0]:
            raise NotImplementedError(
                f"arrays of NumPy {np.__version__} do not begin as those of 1.26 to 2.4 do; use shared.zeros and its "
                "family instead"
            )

    def get(self) -> Any:
        """The handler of this context, a capsule."""
        return self._get()

    def set(self, handler: Any) -> None:
        """Let the arrays that are made in this context from now on come from *handler*."""
        self._set(handler)

    def replace(self, on: bool) -> None:
        """
        Let NumPy's own handler, which every new context begins with, stand for ours; or no longer.

        NumPy's handler is a capsule around a pointer to a table of functions, and it follows the pointer each time. One
        store exchanges the table, for all threads at once, those included that began before.
        """
        born.replace(self._own, on)


_handlers: Handlers | None = None


def handlers() -> Handlers:
    """The one `Handlers`, made when it is first wanted: until then nothing of NumPy is touched."""
    global _handlers
    if _handlers is None:
        _handlers = Handlers()
    return _handlers
