"""The hooks for PyInstaller: many modules are imported by name, and a library and a program lie beside them.

PyInstaller finds the hooks of this folder by the entry point ``pyinstaller40``.
"""

from __future__ import annotations

import os


def hook_folders() -> list[str]:
    """Return the folder of the hooks."""
    return [os.path.dirname(__file__)]
