"""List the symbols that a shared library exports, with binutils: `python -m tools.exports FILE`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported(path: Path) -> set[str]:
    """
    Return the names that *path* exports.

    >>> from mp_core import _libshm
    >>> "PyInit__libshm" in exported(Path(_libshm.__file__))
    True
    """
    return {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", str(path)).splitlines()}


def imported(path: Path) -> set[str]:
    """
    Return the names that *path* needs from elsewhere.

    >>> from mp_core import _libshm
    >>> "PyModule_Create2" in imported(Path(_libshm.__file__))
    True
    """
    lines = output_of("nm", "-D", "--undefined-only", str(path)).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def search_paths(path: Path) -> list[str]:
    """
    Return the search paths for libraries in *path*: folders of the machine that built it.
    """
    return re.findall(r"^\s+(?:RPATH|RUNPATH)\s+(.*)$", output_of("objdump", "-p", str(path)), re.MULTILINE)


def is_init_function(name: str) -> bool:
    """
    Return whether the interpreter calls *name* to make a module.
    """
    return re.fullmatch(r"PyInit_\w+", name) is not None


if __name__ == "__main__":
    print("\n".join(sorted(exported(Path(sys.argv[1])))))
