"""In a rank of the command: run a script or a module, as `python` itself would."""

from __future__ import annotations

import os
import runpy
import sys

__all__ = ["run_module", "run_script"]


def run_script(rank: int, path: str, arguments: list[str]) -> None:
    """``python path arguments``"""
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(rank: int, name: str, arguments: list[str]) -> None:
    """``python -m name arguments``"""
    sys.argv[:] = [name, *arguments]
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)
