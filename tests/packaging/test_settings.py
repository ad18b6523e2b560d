"""Each variable of the environment is read in its package's list of settings, and is in the reference."""

from __future__ import annotations

import re
from pathlib import Path

from support.scripts import run_python

ROOT = Path(__file__).parents[2]
NAME = r"MP(?:SHM)?_[A-Z_]+"
PYTHON = ROOT / "packages/mp-core/src/mp_core/system/settings.py"
C = ROOT / "libshm/src/base/settings.c"
#: It runs at the start of every Python, where it imports nothing of ours before it has to.
STARTUP = ROOT / "packages/mp-all/startup/_mp_all_startup.py"
#: Messages of a parent, or of a command, to its children: no program sets them.
FOR_CHILDREN = {"MP_TIMELINE_PRINT", "MP_TIMELINE_RUN"}
#: Messages of the launcher, and one that torch has and that has no effect here.
OF_JOBS = {"MP_SPAWN_INSIDE", "MP_SPAWN_KEY", "MP_SPAWN_PARALLEL_START"}


def test_mp_all_that_cannot_be_imported_when_python_starts_says_that_the_variable_has_no_effect() -> None:
    # Without its site packages, as in a pex, which adds the folders one by one.
    program = f"""
import sys
sys.path.insert(0, {str(STARTUP.parent)!r})
import multiprocessing
import _mp_all_startup
_mp_all_startup.start()
import concurrent.futures.process
print(multiprocessing.Pool.__self__.__class__.__module__, _mp_all_startup._thread.executes)
"""
    done = run_python("-S", "-c", program, MP_ALL="1", PYTHONPATH="")
    assert done.stdout == "multiprocessing.context False\n"
    assert done.stderr.startswith("MP_ALL=1 has no effect: ") and "`python -m mp_all`" in done.stderr


def readers(files: str, read: str) -> dict[str, set[Path]]:
    """Return the variables that are read by what *read* matches, each with the files that do."""
    found: dict[str, set[Path]] = {}
    for file in ROOT.glob(files):
        for variable in re.findall(read, file.read_text()):
            found.setdefault(variable, set()).add(file)
    return found


def test_python_reads_each_variable_in_one_module() -> None:
    read = readers("packages/*/src/**/*.py", rf"environ(?:\.get\(|\[)[\"']({NAME})[\"'](?!\] = )")
    assert read and set().union(*read.values()) == {PYTHON}


def test_libshm_reads_each_variable_in_one_file() -> None:
    assert readers("libshm/src/**/*.c", r"\bgetenv\b").get("getenv") == {C}


def test_the_reference_has_a_line_for_each_variable_and_no_other() -> None:
    page = (ROOT / "docs/reference/environment.rst").read_text()
    documented = set(re.findall(rf"^   \* - ``({NAME})``", page, re.MULTILINE))
    read = {name for file in (PYTHON, C, STARTUP) for name in re.findall(rf"[\"']({NAME})[\"']", file.read_text())}
    assert documented == (read | OF_JOBS) - FOR_CHILDREN - {"MP_NO_SUCH_SETTING"}
