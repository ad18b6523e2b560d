"""The main module of this process, and whether the processes that it starts can import it.

python program.py                          a child imports program.py again, under another name
a notebook, a prompt, standard input, -c   there is no file to import: a child has an empty main module
python -i program.py, at the prompt        likewise, since the prompt may have defined anything again
python -m package                          multiprocessing does not import a package's __main__.py again
"""

from __future__ import annotations

import os
import pickle
import sys

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "UNPICKLABLE",
    "has_name",
    "leave_out",
    "main_can_be_imported",
]


#: What pickling raises for a function or class that has no name.
UNPICKLABLE = (pickle.PicklingError, AttributeError)


# The main module that was looked at last, its attributes, and what they say.
_main: Any = None
_file: Any = None
_spec: Any = None
_importable = False
_modules, _of_sys = sys.modules, vars(sys)


def main_can_be_imported() -> bool:
    """Tell whether a new process can have the contents of this process's `__main__` by importing it again."""
    main = _modules["__main__"]
    names = main.__dict__
    if main is not _main or names.get("__file__") is not _file or names.get("__spec__") is not _spec:
        _look(main, names)
    return _importable and "ps1" not in _of_sys


def _look(main: Any, names: dict[str, Any]) -> None:
    global _main, _file, _spec, _importable
    file, spec = names.get("__file__"), names.get("__spec__")
    if main is _main and spec is _spec and file is None and _importable:
        return  # at the end of a program, before the handlers of the exit, Python removes `__file__`
    _importable = _can_be_imported(file, spec)
    _main, _file, _spec = main, file, spec


def _can_be_imported(file: Any, spec: Any) -> bool:
    if getattr(sys, "frozen", False):
        return True  # a new process executes the whole program again, which has its main module inside
    if spec is not None:
        return not spec.name.endswith("__main__")
    return file is not None and os.path.exists(file)


def has_name(function: Any) -> bool:
    """Return False for a function that a new process certainly cannot find by its name."""
    return "<" not in function.__qualname__ and (function.__module__ != "__main__" or main_can_be_imported())


def leave_out() -> None:
    """
    Have multiprocessing start children without the main module if they cannot import it.

    By itself it tries to import any main module with a ``__file__``, as ``python - <program`` has.
    """
    from multiprocessing import spawn  # the start of a child imports it

    standard = spawn.get_preparation_data
    if getattr(standard, "_leaves_out", False):
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = standard(name)
        if main_can_be_imported():
            return data
        return {key: value for key, value in data.items() if not key.startswith("init_main")}

    get_preparation_data._leaves_out = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
