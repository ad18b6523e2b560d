"""Portable sharing on the system that runs this: macOS and Windows in the workflow, Linux with MP_WITHOUT_LIBSHM=1.

The other tests look into /proc, so these have no part in their conftest.py (`nox -s tests-without-libshm`).
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.sharing_programs import MOVED, OUTLIVES, REFUSED, SHARED

METHODS = pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())


def output(folder: Path, program: str, *arguments: str) -> str:
    """
    Return what the program prints; it must end well.
    """
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    environment = {**os.environ, "MP_WITHOUT_LIBSHM": "1", "MP_SHARING_STRATEGY": "file_system"}
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@METHODS
def test_a_shared_array_is_one_memory_on_both_sides(tmp_path: Path, method: str) -> None:
    assert output(tmp_path, SHARED, method) == "0\n"


@METHODS
def test_a_private_array_is_copied_once_and_bytes_travel_likewise(tmp_path: Path, method: str) -> None:
    assert output(tmp_path, MOVED, method) == "0\n"


@METHODS
def test_a_message_outlives_its_sender(tmp_path: Path, method: str) -> None:
    when = "before its sender ends" if sys.platform == "win32" else "after its sender"
    assert output(tmp_path, OUTLIVES, method, when) == "True 0\n"


def test_a_handle_that_is_replayed_damaged_or_stale_is_an_error(tmp_path: Path) -> None:
    assert output(tmp_path, REFUSED) == "ReceiveError {'ValueError'} ReceiveError\n"
