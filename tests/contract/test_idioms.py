"""What programs with processes do, by every start method: the same lines with the import changed as without."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from support.scripts import run_python

PROGRAM = Path(__file__).parent / "idioms.py"


def lines(program: Path, method: str) -> list[str]:
    """Return what the program prints; some of its processes have tracebacks."""
    done = run_python(str(program), method)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@cache
def lines_of_the_standard_library() -> list[str]:
    return lines(PROGRAM, "fork")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_idiom_does_the_same_with_the_import_changed(method: str, tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    for before, after in (
        ("import multiprocessing as mp", "import mp_all as mp"),
        (r"from multiprocessing(\S*) import", r"from mp_all\1 import"),
        (
            "from concurrent.futures import ProcessPoolExecutor, as_completed",
            "from concurrent.futures import as_completed\nfrom mp_all import ProcessPoolExecutor",
        ),
    ):
        text, count = re.subn(rf"^{before}", after, text, flags=re.M)
        assert count
    program = tmp_path / "program.py"
    program.write_text(text)
    found = lines(program, method)
    assert len(found) == 25
    assert found == lines_of_the_standard_library()
