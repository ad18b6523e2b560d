"""Each example runs as a reader would run it."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest
from support.scripts import run_python, run_script, succeeded

EXAMPLES = Path(__file__).parents[2] / "examples"
TILES = EXAMPLES / "tiles"
SMALL = ["--rows", "2", "--columns", "3", "--size", "100", "--workers", "2"]

WHOLE = """
    # Filter the picture in one piece, and compare it with the mosaic of the pipeline.
    import sys
    import numpy as np
    from filters import RADIUS, sharpen
    from grid import Grid
    from picture import padded_sky

    sky = padded_sky(Grid(2, 3, 100, RADIUS))[RADIUS:-RADIUS, RADIUS:-RADIUS]
    whole = sharpen(np.divide(sky, 255, dtype=np.float32))
    print(np.array_equal(whole, np.load(sys.argv[1])))
"""

DYING_WORKER = """
    import os
    import filters
    import mp_all as mp

    filters.FILTERS["sharpen"] = lambda pixels: os._exit(3)

    if __name__ == "__main__":
        from job import main
        main(mp)
"""


@pytest.fixture(scope="module")
def needs_pictures() -> None:
    for module in "skimage", "tqdm":
        pytest.importorskip(module, reason=f"the tiles need {module}: pip install scikit-image tqdm")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_an_example_runs_and_its_assertions_hold(example: Path, strategy: str) -> None:
    if "import pandas" in example.read_text():
        pytest.importorskip("pandas", reason="pandas is not installed: nox -s containers")
    for module in "torch", "sklearn":
        if re.search(rf"(?m)^(import|from) {module}\b", example.read_text()):
            pytest.importorskip(module, reason=f"{module} is not installed: nox -s torch")
    done = run_python(str(example), timeout=110.0, MP_SHARING_STRATEGY=strategy)
    # On a busy machine the launcher ends, and logs, a rank that has not failed by itself within the grace period.
    done.stderr = re.sub(r"(?m)^Terminating process \d+ via signal SIG\w+\n", "", done.stderr)
    if "--max-restarts" in example.read_text():
        done.stderr = re.sub(r"(?m)^rank \d+ .* all ranks are started again \(1 of 1\)\n", "", done.stderr)
        done.stderr = re.sub(r"(?m)^rank \d+ \(pid \d+\): \w*Error: .*\n", "", done.stderr)  # since its peer is gone
        # torch's hook writes what the other rank has raised because its peer is gone.
        done.stderr = re.sub(r"(?m)^\[rank 0\] \[rank0\]: .*\n", "", done.stderr)
    assert succeeded(done)


def test_the_two_programs_differ_in_one_line() -> None:
    plain, shared = (TILES.joinpath(f"with_{m}.py").read_text().splitlines() for m in ("multiprocessing", "mp_all"))
    different = [line for line in difflib.ndiff(plain, shared) if line.startswith(("-", "+"))]
    assert different == ["- import multiprocessing as mp", "+ import mp_all as mp"]


def picture(module: str, start_method: str, mosaic: Path) -> tuple[str, bytes]:
    """Make the picture with *module*, save it as *mosaic*, and return its checksum and the file."""
    program = str(TILES / f"with_{module}.py")
    done = run_python(program, *SMALL, "--start", start_method, "--mosaic", str(mosaic))
    return json.loads(succeeded(done))["sha256"], mosaic.read_bytes()


@pytest.fixture(scope="module")
def plain_picture(tmp_path_factory: pytest.TempPathFactory, needs_pictures: None) -> tuple[str, bytes]:
    """Return multiprocessing's picture, which is that of one process."""
    folder = tmp_path_factory.mktemp("picture")
    mosaic = folder / "mosaic.npy"
    found = picture("multiprocessing", "fork", mosaic)
    assert succeeded(run_script(folder, WHOLE, str(mosaic), PYTHONPATH=str(TILES))) == "True\n"
    return found


def test_both_programs_make_the_same_picture_as_one_process(
    tmp_path: Path,
    strategy: str,
    start_method: str,
    plain_picture: tuple[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MP_SHARING_STRATEGY", strategy)
    assert picture("mp_all", start_method, tmp_path / "mosaic.npy") == plain_picture


def test_a_worker_that_dies_ends_the_run_and_is_named(tmp_path: Path, strategy: str, needs_pictures: None) -> None:
    done = run_script(tmp_path, DYING_WORKER, *SMALL, PYTHONPATH=str(TILES), MP_SHARING_STRATEGY=strategy)
    assert done.returncode == 1
    assert done.stderr.startswith("error: worker ")
    assert done.stderr.endswith("ended with exit code 3\n")


def test_the_comparison_runs_and_saves_its_pictures(tmp_path: Path, needs_pictures: None) -> None:
    done = run_python(str(TILES / "demo.py"), *SMALL, "--rounds", "1", "--out", str(tmp_path))
    assert "all results equal, bit for bit" in succeeded(done)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before_after.png", "sky.jpg"]
