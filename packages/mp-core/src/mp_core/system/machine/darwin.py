"""macOS. Its C library is called through ctypes, so that no compiler is needed to install."""

# mypy: disable-error-code="no-redef"

from __future__ import annotations

import ctypes
import os
from typing import Any

from mp_core.system.machine.posix import *  # noqa: F403 - its functions, unless they are defined below

NAME = "macOS"
_SIZE = 64  # MAXTHREADNAMESIZE


def _library() -> Any:
    return ctypes.CDLL(None)


def set_thread_name(name: bytes) -> None:
    """Name the calling thread; on macOS a thread can name only itself."""
    error = _library().pthread_setname_np(name)
    if error:
        raise OSError(error, f"set_thread_name: {os.strerror(error)}")


def get_thread_name() -> bytes:
    library = _library()
    library.pthread_self.restype = ctypes.c_void_p
    name = ctypes.create_string_buffer(_SIZE)
    error = library.pthread_getname_np(ctypes.c_void_p(library.pthread_self()), name, ctypes.c_size_t(_SIZE))
    if error:
        raise OSError(error, f"get_thread_name: {os.strerror(error)}")
    return name.value


def whole_pages(nbytes: int) -> int:
    """
    Return the size of a segment that has room for *nbytes*.

    Apple silicon has pages of 16 KiB (``getconf PAGESIZE``; Apple, "Porting your macOS apps to Apple silicon"). And
    ftruncate(2) sets the size of an object of shared memory once, so it has its last size from the beginning.
    """
    return nbytes + -nbytes % (1 << 14)
