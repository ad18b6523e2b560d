"""The examples of the docstrings and of the README run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import time
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

import mp_spawn

MODULES = sorted(f"mp_spawn.{module.name}" for module in pkgutil.iter_modules(mp_spawn.__path__))
README = Path(__file__).parents[2] / "packages" / "mp-spawn" / "README.md"


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"mp": mp_spawn, "time": time}).failed == 0


def test_the_readme_runs(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert programs
    for program in programs:
        succeeded(run_script(tmp_path, program))


def test_all_public_names_exist() -> None:
    assert set(mp_spawn.__all__) <= set(dir(mp_spawn))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mp_spawn.nonsense  # noqa: B018
