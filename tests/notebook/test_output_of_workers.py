"""What the workers of a notebook print appears under the cell that runs, in whole lines; a timeline shows itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import run_python

pytestmark = pytest.mark.timeout(120)

CELLS = [
    """
import sys, time
import mp_all as mp
def work(number):
    print("out", number, "of the worker")
    print("err", number, "of the worker", file=sys.stderr)
    return number
pool = mp.get_context(METHOD).Pool(2)
""",
    # The thread of the kernel that reads what workers print waits for nobody, and nobody can wait for it. It may write
    # between a text that the cell prints and the end of that line: so the cell prints when it has done.
    "found = pool.map(work, range(3), 1); time.sleep(2); print(found)",
    "print('another cell'); found = pool.map(work, range(3, 5), 1); time.sleep(2); print(found); pool.terminate(); "
    "pool.join()",
]


def run_cells(cells: list[str], tmp_path: Path) -> tuple[str, str]:
    for name in ("ipykernel", "jupyter_client"):
        pytest.importorskip(name, reason=f"needs {name}, which is not installed")
    done = run_python(
        str(Path(__file__).with_name("kernel.py")), stdin=json.dumps(cells), MPSHM_RUNTIME_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_prints_whole_lines_under_the_cell_that_runs(method: str, tmp_path: Path) -> None:
    out, err = run_cells([f"METHOD = {method!r}\n{CELLS[0]}", *CELLS[1:]], tmp_path)
    first, second = (text.splitlines() for text in out.split("another cell"))
    assert {"out 0 of the worker", "out 1 of the worker", "out 2 of the worker", "[0, 1, 2]"} <= set(first)
    assert {"out 3 of the worker", "out 4 of the worker", "[3, 4]"} <= set(second)
    assert {f"err {number} of the worker" for number in range(5)} <= set(err.splitlines())


def test_a_timeline_shows_itself_in_a_frame(tmp_path: Path) -> None:
    out, _ = run_cells(
        [
            "import mp_all as mp",
            f"with mp.timeline({str(tmp_path / 'run.html')!r}) as run:\n    print(run._repr_html_())",
            "print(run._repr_html_()[:21], run._repr_html_().count('&lt;html'))",
        ],
        tmp_path,
    )
    assert out.splitlines()[:2] == ["None", '<iframe srcdoc="&lt;! 1']
