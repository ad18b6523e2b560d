"""The example notebook runs as a reader would run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import run_python

NOTEBOOK = Path(__file__).parents[2] / "examples" / "14_notebook.ipynb"


def test_the_cells_of_the_example_run_in_a_real_kernel(tmp_path: Path) -> None:
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"needs {name}, which is not installed")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    folder = {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    done = run_python(str(Path(__file__).with_name("kernel.py")), stdin=json.dumps(sources), **folder)
    assert (done.returncode, done.stdout) == (0, "all checks passed\n"), done.stderr
