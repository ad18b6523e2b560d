"""The platform that this process runs on: its name, whether the engine runs here, and a module of functions for it.

    linux.py     the engine runs here. Its functions below are used if the engine is switched off
    darwin.py    macOS, without shared memory
    win32.py     Windows, without shared memory
    posix.py     the functions that linux.py, darwin.py and systems without a file of their own have in common

Each file has `NAME`, `set_thread_name`, `get_thread_name` and `peer`. Nothing else in these packages asks for
`sys.platform`: the functions here can be replaced by a test.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = ["functions", "has_engine", "name", "python_version", "system"]


def system() -> str:
    """Return the system's name as Python has it: ``"linux"``, ``"darwin"``, ``"win32"``."""
    return sys.platform


def python_version() -> tuple[int, ...]:
    """Return the version of this Python, three numbers."""
    return sys.version_info[:3]


def has_engine() -> bool:
    """
    Return whether these packages have shared memory here: on Linux, unless ``MP_WITHOUT_ENGINE=1`` switches it off.

    Raises
    ------
    ValueError
        The variable has another value than 0 and 1.
    """
    text = os.environ.get("MP_WITHOUT_ENGINE", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"MP_WITHOUT_ENGINE must be 1 to work without shared memory, or 0, not {text!r}")
    return system() == "linux" and text != "1"


def functions() -> Any:
    """Return the module of this platform."""
    known = system() if system() in ("linux", "darwin", "win32") else "posix"
    return importlib.import_module(f"mp_core.machine.{known}")


def name() -> str:
    """Return the name of the platform for people."""
    known: str = functions().NAME
    return f"{known} with MP_WITHOUT_ENGINE=1" if system() == "linux" else known
