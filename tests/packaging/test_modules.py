"""The stubs of the submodules have the names of the modules, and no others."""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import runpy
from pathlib import Path

import pytest

import mp_all

FOLDER = Path(mp_all.__file__).parent
# How a start method starts is nobody's interface; `spawn` is the launcher.
COMMANDS = (
    "_bug_report",
    "_demo",
    "_limits",
    "_prometheus",
    "_report",
    "_run",
    "_runner",
    "_sessions",
    "_stat",
    "_timeline",
    "_top",
)
LIBRARIES = ("_dask", "_inputs", "_joblib_install", "_tensors", "_torch")
OWN = {Path(f"{name}.py") for name in ("__init__", "__main__", *COMMANDS, *LIBRARIES)}
UNTYPED = {"spawn", "popen_fork", "popen_forkserver", "popen_spawn_posix", "popen_spawn_win32"}
MODULES = sorted(
    module.name.removeprefix("multiprocessing.")
    for module in pkgutil.walk_packages(multiprocessing.__path__, "multiprocessing.")
    if module.name.removeprefix("multiprocessing.") not in UNTYPED
)


def file_of(name: str) -> Path:
    path = FOLDER / name.replace(".", "/")
    return path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")


def test_the_walk_finds_the_main_modules() -> None:
    assert {"pool", "connection", "managers", "dummy.connection"} <= set(MODULES)


@pytest.mark.parametrize("name", [*MODULES, "shared"])
def test_a_stub_has_the_names_of_its_module_and_no_others(name: str) -> None:
    module = importlib.import_module(f"mp_all.{name}")
    read = {each: thing for each, thing in runpy.run_path(str(file_of(name))).items() if not each.startswith("__")}
    assert read
    assert {each for each, thing in read.items() if thing is not getattr(module, each)} == set()
    assert set(getattr(module, "__all__", ())) <= set(read)


def test_there_are_no_files_but_these() -> None:
    folders = {path.parent.name for path in FOLDER.rglob("*.py")} - {FOLDER.name}
    assert folders == {"_integrations"}  # parts that few programs need, each with a library of its own
    assert {path.relative_to(FOLDER) for path in FOLDER.glob("*.py")} == OWN
    stubs = {path.relative_to(FOLDER) for path in FOLDER.rglob("*.pyi")}
    assert stubs == {file_of(name).relative_to(FOLDER) for name in [*MODULES, "shared"]}


def test_shared_is_a_module_to_import_from() -> None:
    assert importlib.import_module("mp_all.shared") is mp_all.shared
