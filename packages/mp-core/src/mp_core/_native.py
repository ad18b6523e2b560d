"""Load the compiled library: the only module of mp_core that imports it.

`ffi` and `lib` are cffi's view of libshm. The other functions come from the module `_block`, which is written by hand
(`native/`) and compiled into the same file, so both use one copy of libshm. `c_api` is a capsule with the C functions
that other compiled packages use (`native/mp_core.h`). `check` raises the `OSError` of a `-errno`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader
from typing import Any

from mp_core import _libshm
from mp_core._libshm import ffi, lib
from mp_core._version import __version__

__all__ = [
    "Buffer",
    "SemLock",
    "allocate",
    "by_value",
    "c_api",
    "check",
    "copied_bytes",
    "create_sync",
    "discard",
    "ffi",
    "find",
    "lib",
    "loads",
    "message_begin",
    "message_begin_by_value",
    "message_end",
    "peer",
    "rebuild_block",
    "rebuild_copy",
    "reduce_block",
    "reduce_copy",
    "setup",
    "setup_locks",
    "setup_receiving",
    "share",
    "strategy",
    "sync_handle",
]


def check(rc: int, what: str | None = None) -> int:
    """
    Return *rc*, or raise an `OSError` if it is a negative errno.

    Python chooses the subclass by the number: `FileNotFoundError`, `PermissionError` and so on.
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


def _load_block() -> Any:
    """Load the second module in the file of `_libshm`; the import system finds only the one that the file names."""
    name = "mp_core._block"
    loader = ExtensionFileLoader(name, _libshm.__file__)
    spec = importlib.util.spec_from_file_location(name, _libshm.__file__, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module  # its functions are pickled by that name
    return module


_same_version()
_manager = os.path.join(os.path.dirname(_libshm.__file__), "shm-manager")
check(lib.mpshm_set_manager(os.fsencode(_manager)), "the path of shm-manager")

_block = _load_block()
c_api = _block.c_api  # PyCapsule_Import finds it under "mp_core._native.c_api"
Buffer: type = _block.Buffer
allocate = _block.allocate
find = _block.find
setup = _block.setup
setup_receiving = _block.setup_receiving
strategy = _block.strategy
rebuild_block = _block.rebuild_block
rebuild_copy = _block.rebuild_copy
reduce_block = _block.reduce_block
reduce_copy = _block.reduce_copy
discard = _block.discard
loads = _block.loads
message_begin = _block.message_begin
message_begin_by_value = _block.message_begin_by_value
message_end = _block.message_end
by_value = _block.by_value
share = _block.share
peer = _block.peer
copied_bytes = _block.copied_bytes
SemLock: type = _block.SemLock
create_sync = _block.create_sync
setup_locks = _block.setup_locks
sync_handle = _block.sync_handle
