"""The programs of docs/adoption.md run the usual way and on mp_all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.scripts import run_python, succeeded

FOLDER = Path(__file__).parents[2] / "examples" / "adoption"
NEEDS = {
    "vector_env": "gymnasium",
    "stable_baselines": "stable_baselines3",
    "tianshou_env": "tianshou",
    "petting_zoo": "supersuit",
    "joblib_tiles": "joblib",
    "sklearn_predict": "sklearn",
    "dask_blocks": "dask.array",
}
UNCHANGED = {"vector_env", "stable_baselines", "tianshou_env", "petting_zoo"}  # on mp_all by its command


def test_each_program_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_program_runs_both_ways_and_its_assertions_hold(name: str, strategy: str) -> None:
    if importlib.util.find_spec(NEEDS[name].partition(".")[0]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed: nox -s adoption, or vector-envs")
    ours = ["-m", "mp_all", f"{name}.py"] if name in UNCHANGED else [f"{name}.py", "mp_all"]
    for arguments in ([f"{name}.py"], ours):
        done = run_python(*arguments, cwd=FOLDER, timeout=110, MP_SHARING_STRATEGY=strategy)
        assert succeeded(done).endswith(" s\n")
