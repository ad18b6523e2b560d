"""A package of ours shows its public names and no others."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import multiprocessing
import multiprocessing.queues
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.scripts import run_python, run_script, succeeded

import mp_all
import mp_core
from mp_core.sharing import backend

PACKAGES = ["mp_all", "mp_core", "mp_cuda", "mp_reductions", "mp_spawn"]
# Those that have all of multiprocessing.
DROP_INS = ["mp_all", "mp_core"]


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_fresh_interpreter_finds_public_names_and_submodules_only(package: str) -> None:
    if package == "mp_cuda" and not backend.LIBSHM:
        pytest.skip("without libshm there are no device arrays")
    program = f"""
import sys
import {package} as m
[getattr(m, name) for name in m.__all__]
others = {{name for name in vars(m) if not name.startswith("_") and name not in m.__all__}}
print(sorted(name for name in others if sys.modules.get(f"{package}.{{name}}") is not vars(m)[name]))
"""
    assert succeeded(run_python("-c", program)) == "[]\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_public_names_and_submodules_only(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    others = public(dir(module)) - set(module.__all__)
    if package in DROP_INS:
        others -= public(dir(multiprocessing))
    assert [name for name in sorted(others) if importlib.util.find_spec(f"{package}.{name}") is None] == []


def test_the_modules_of_mp_core_are_no_names_of_mp_all() -> None:
    modules = {name for name in vars(mp_core) if f"mp_core.{name}" in sys.modules}
    # `timeline` is a function of mp_all.
    assert modules & public(dir(mp_all)) <= public(dir(multiprocessing)) | set(mp_all.__all__)
    assert not hasattr(mp_all, "lease")


@pytest.mark.parametrize("module", [mp_all, mp_core], ids=DROP_INS)
def test_cpythons_check_of_public_names_passes(module: ModuleType) -> None:
    # CPython takes these for public: objects that a module defines, and objects without a module, such as numbers.
    found = set()
    for name in public(dir(module)) - {"SUBDEBUG", "SUBWARNING"}:
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        if home == module.__name__ or (home is None and not isinstance(value, ModuleType)):
            found.add(name)
    assert found <= set(module.__all__)


def test_every_module_beside_the_package_can_be_imported_with_a_star() -> None:
    # CPython's test of this name, on a package under another name.
    program = """
import importlib, pathlib, mp_all
for path in sorted(pathlib.Path(mp_all.__file__).parent.glob("*.py*")):
    module = importlib.import_module("mp_all" if path.stem == "__init__" else f"mp_all.{path.stem}")
    assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == [], module
"""
    assert succeeded(run_python("-c", program)) == ""


def test_the_launcher_has_the_functions_of_the_module_spawn() -> None:
    theirs = importlib.import_module("multiprocessing.spawn")
    # The first process that was started has extended one of them.
    own, standard = (
        [inspect.unwrap(getattr(module, name)) for name in theirs.__all__] for module in (mp_all.spawn, theirs)
    )
    assert own == standard
    assert mp_all.spawn.is_forking(["program", "--multiprocessing-fork"])
    mp_all.spawn.freeze_support()


def test_an_executable_set_through_the_launcher_starts_the_children(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nSTARTED_BY_WRAPPER=1 exec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    program = """
    import os, sys
    import mp_all as multiprocessing
    from mp_all import spawn

    def child():
        print(os.environ.get("STARTED_BY_WRAPPER"), flush=True)

    if __name__ == "__main__":
        spawn.set_executable(sys.argv[1])
        assert multiprocessing.spawn.get_executable() == os.fsencode(sys.argv[1])
        process = multiprocessing.get_context("spawn").Process(target=child)
        process.start()
        process.join()
    """
    assert succeeded(run_script(tmp_path, program, str(wrapper))) == "1\n"


@pytest.mark.parametrize("name", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_a_queue_s_name_with_its_items_is_an_annotation_that_works_at_run_time(name: str) -> None:
    function = getattr(mp_all, name)
    assert function[int].__origin__ is getattr(multiprocessing.queues, name)
    assert (function[int] | None).__args__[1] is type(None)
    assert list(inspect.signature(function).parameters) == list(
        inspect.signature(getattr(multiprocessing, name)).parameters
    )
    queue = pickle.loads(pickle.dumps(function))()
    queue.put(1)
    assert queue.get() == 1
