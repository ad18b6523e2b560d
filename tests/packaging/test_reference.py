"""The reference has every public name of every package, and no other name."""

from __future__ import annotations

import importlib
import multiprocessing
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mp_all as mp
from mp_core.installation import contexts

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PACKAGES = ["mp_all", "mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_nodes", "mp_cuda", "mp_torch"]
PAGES = sorted(REFERENCE.glob("*.rst"))
# Users of torch know functions by these names; the page mentions them in a sentence.
TORCH_NAMES = {"_get_thread_name", "_prctl_pr_set_pdeathsig", "_set_thread_name"}


def documented() -> Iterator[str]:
    """
    Yield the full name of each object that a page of the reference describes.
    """
    for page in PAGES:
        module = ""
        for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+|data):: (\S+)$", page.read_text(), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            elif kind != "autosummary":
                yield name if name.startswith(f"{module}.") else f"{module}.{name}"


def public(package: str) -> set[str]:
    """
    Return the public names of a package that multiprocessing does not have, as names of mp_all or of itself.
    """
    module = importlib.import_module(package)
    home = package if package in ("mp_cuda", "mp_nodes", "mp_torch") else "mp_all"
    own = {name for name in module.__all__ if getattr(module, name) != getattr(multiprocessing, name, None)}
    names = own - {"__version__"} - TORCH_NAMES - {*contexts.NAMES}  # these have the interface of multiprocessing
    modules = {name for name in names if isinstance(getattr(module, name), ModuleType)}
    inside = {f"{name}.{each}" for name in modules for each in getattr(module, name).__all__}
    return {f"{home}.{name}" for name in (names - modules) | inside}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_of_a_package_is_in_the_reference(package: str) -> None:
    assert public(package) - set(documented()) == set()


def test_the_reference_has_no_private_names() -> None:
    assert set(documented()) - {name for each in PACKAGES for name in public(each)} == set()


def test_nothing_is_described_twice() -> None:
    names = list(documented())
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted({*multiprocessing.__all__, *TORCH_NAMES}))
def test_each_name_of_multiprocessing_and_torch_is_mentioned(name: str) -> None:
    assert hasattr(mp, name)
    assert any(f"``{name}``" in page.read_text() for page in PAGES)


def test_each_submodule_of_multiprocessing_is_mentioned() -> None:
    text = (REFERENCE / "multiprocessing.rst").read_text()
    modules = {module.name for module in pkgutil.iter_modules(multiprocessing.__path__)}
    # The implementation of a start method is not public.
    modules = {name for name in modules if not name.startswith("popen_")}
    assert {name for name in modules if f"mp_all.{name}``" not in text} == set()
