"""A program that imports a compiled package while mp-core has another version of the table of C functions."""

from __future__ import annotations

from textwrap import dedent

__all__ = ["importing_with_another_table"]

PROGRAM = """
    import ctypes
    from mp_core.sharing import backend

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    real = pointer(backend.c_api, b"mp_core.sharing.backend.c_api")
    other = (ctypes.c_int * 64)(ctypes.c_int.from_address(real).value + 1)
    name = ctypes.create_string_buffer(b"mp_core.sharing.backend.c_api")
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    backend.c_api = make(ctypes.addressof(other), ctypes.addressof(name), None)
    try:
        import MODULE
    except ImportError as error:
        print(error)
"""


def importing_with_another_table(module: str) -> str:
    """Return the program, which prints the ImportError of *module*."""
    return dedent(PROGRAM).replace("MODULE", module)
