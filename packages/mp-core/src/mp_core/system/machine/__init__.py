"""The platform that this process runs on: its name, whether libshm runs here, and a module of functions for it.

    linux.py     libshm runs here. The functions of this file are used if it is switched off
    darwin.py    macOS
    win32.py     Windows
    posix.py     the functions that linux.py, darwin.py and systems without a file of their own have in common

Each file has `NAME`, `set_thread_name`, `get_thread_name` and `peer`, and the system's rules for portable sharing
(`portable/`), one function each. Nothing else in these packages asks for `sys.platform`: the functions here can be
replaced by a test.
"""

from __future__ import annotations

import importlib
import sys

from mp_core.system import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def system() -> str:
    """Return the system's name as Python has it: ``"linux"``, ``"darwin"``, ``"win32"``."""
    return sys.platform


def python_version() -> tuple[int, ...]:
    """Return the version of this Python, three numbers."""
    return sys.version_info[:3]


def has_libshm() -> bool:
    """
    Return whether memory is shared by libshm: on Linux, unless ``MP_WITHOUT_LIBSHM=1`` asks for portable sharing.

    Raises
    ------
    ValueError
        The variable has another value than 0 and 1.
    """
    return not settings.without_libshm() and system() == "linux"


def functions() -> Any:
    """Return the module of this platform."""
    known = system() if system() in ("linux", "darwin", "win32") else "posix"
    return importlib.import_module(f"mp_core.system.machine.{known}")


def name() -> str:
    """Return the name of the platform for people."""
    known: str = functions().NAME
    return f"{known} with MP_WITHOUT_LIBSHM=1" if system() == "linux" else known
