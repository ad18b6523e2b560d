"""Functions and classes that no file has: of a notebook's cells, a prompt, standard input, ``python -c``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cells import CELLS
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")


def session(method: str) -> list[str]:
    return [f"METHOD = {method!r}\n{CELLS[0]}", *CELLS[1:]]


@pytest.mark.parametrize("method", METHODS)
def test_functions_and_classes_of_cells_run_in_a_real_kernel(method: str, tmp_path: Path) -> None:
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"needs {name}, which is not installed")
    # At its end a kernel kills its process group, and in it the manager that would remove the session's folder.
    folder = {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    done = run_python(str(Path(__file__).with_name("kernel.py")), stdin=json.dumps(session(method)), **folder)
    assert done.returncode == 0, done.stderr  # the kernel warns of this and that
    assert "all cells ran\n" in done.stdout


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["standard input", "-c", "a prompt"])
def test_functions_and_classes_of_a_program_without_a_file_run_in_other_processes(way: str, method: str) -> None:
    program = "\n".join(session(method))
    if way == "-c":
        done = run_python("-c", program)
    elif way == "standard input":
        done = run_python("-", stdin=program)
    else:
        # Each cell is one statement to the prompt, which ends a compound statement at an empty line.
        lines = "".join(f"exec(compile({cell!r}, '<stdin>', 'exec'))\n" for cell in session(method))
        done = run_python("-i", stdin=lines)
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr  # it also has the prompts
        done.stderr = ""
    assert "all cells ran\n" in succeeded(done)
