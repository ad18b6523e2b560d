"""The seam: the only module that touches the compiled library.

`ffi` and `lib` are cffi's view of libshm. `Buffer`, `allocate` and `claim` are the hand-written part (`native/block.c`
says why). `check` turns a `-errno` into the `OSError` that it stands for.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from mp_core import _libshm
from mp_core._libshm import ffi, lib
from mp_core._version import __version__

__all__ = [
    "Buffer",
    "allocate",
    "check",
    "claim",
    "ffi",
    "lib",
]


def check(rc: int, what: str | None = None) -> int:
    """
    Return *rc*, or raise the `OSError` that it stands for.

    The subclass follows from the number, so `FileNotFoundError`, `PermissionError` and the others come by themselves.
    """
    if rc >= 0:
        return rc
    message = os.strerror(-rc) if what is None else f"{what}: {os.strerror(-rc)}"
    raise OSError(-rc, message)


def _same_version() -> None:
    compiled = ffi.string(lib.mpshm_version()).decode()
    if compiled != __version__:
        raise ImportError(
            f"mp_core {__version__} found a compiled library of version {compiled} at {_libshm.__file__}: "
            "two installations are mixed; reinstall mp-core"
        )


def _second_module() -> Any:
    """Load the `_block` module that lives in the same shared library, so that both use one copy of libshm."""
    loader = ExtensionFileLoader("mp_core._block", _libshm.__file__)
    spec = importlib.util.spec_from_file_location("mp_core._block", _libshm.__file__, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


_same_version()
check(lib.mpshm_set_manager(os.fsencode(Path(_libshm.__file__).with_name("shm-manager"))), "the path of shm-manager")

_block = _second_module()
Buffer: type = _block.Buffer
allocate = _block.allocate
claim = _block.claim
