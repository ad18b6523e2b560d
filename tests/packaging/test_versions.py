"""One version: in eight projects, in their pins of each other, in the C library, in each package."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import mp_core

ROOT = Path(__file__).parents[2]
FOLDERS = sorted((ROOT / "packages").iterdir())
PROJECTS = {folder.name: tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in FOLDERS}
VERSION = mp_core.__version__
# The siblings that each package may need: arrows point at mp-core, and only mp-nodes and mp-all depend on several.
ARROWS = {
    "mp-core": set(),
    "mp-reductions": {"mp-core"},
    "mp-spawn": {"mp-core"},
    "mp-pool": {"mp-core"},
    "mp-nodes": {"mp-core", "mp-spawn", "mp-pool"},
    "mp-cuda": {"mp-core"},
    "mp-torch": {"mp-core"},
    "mp-all": {"mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-cuda"},
}


def siblings(project: dict) -> dict[str, str]:
    """
    Return the requirements of a project on its siblings, from name to version.
    """
    pattern = re.compile(r"(mp-\w+)\s*([^;\s]*)")
    found = (pattern.fullmatch(line.split(";")[0].strip()) for line in project["dependencies"])
    return {match[1]: match[2] for match in found if match}


def test_there_are_eight_packages() -> None:
    assert set(PROJECTS) == set(ARROWS)
    assert {name: project["name"] for name, project in PROJECTS.items()} == {name: name for name in ARROWS}


@pytest.mark.parametrize("name", ARROWS)
def test_each_project_has_the_one_version(name: str) -> None:
    assert PROJECTS[name]["version"] == VERSION


@pytest.mark.parametrize("name", ARROWS)
def test_each_project_pins_its_siblings_to_the_one_version(name: str) -> None:
    assert siblings(PROJECTS[name]) == dict.fromkeys(ARROWS[name], f"=={VERSION}")


@pytest.mark.parametrize("name", ARROWS)
def test_each_package_has_the_one_version_at_run_time(name: str) -> None:
    try:
        package = importlib.import_module(name.replace("-", "_"))
    except ModuleNotFoundError as error:
        # Only foreign packages may be missing; an import error of our own is a failure.
        if name == "mp-cuda" and error.name and not error.name.startswith("mp_"):
            pytest.skip(f"{error.name} is not installed")
        raise
    assert package.__version__ == VERSION


@pytest.mark.parametrize("name", ARROWS)
def test_each_installed_package_has_the_one_version(name: str) -> None:
    try:
        assert metadata.version(name) == VERSION
    except metadata.PackageNotFoundError:
        if name != "mp-cuda":
            raise
        pytest.skip("mp-cuda is not installed")


def test_the_compiled_library_is_of_the_one_version() -> None:
    backend = importlib.import_module("mp_core.sharing.backend")
    assert backend.ffi.string(backend.lib.mpshm_version()).decode() == VERSION


def test_the_c_source_is_of_the_one_version() -> None:
    stated = {
        match[1]
        for path in (ROOT / "libshm").rglob("*.[ch]")
        for match in re.finditer(r'MPSHM_VERSION\s+"([^"]+)"', path.read_text())
    }
    assert stated == {VERSION}


def test_the_version_to_bump_is_the_one_version() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tool["bumpversion"]["current_version"] == VERSION


def test_the_version_is_three_numbers() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


@pytest.mark.parametrize("name", ARROWS)
def test_each_project_supports_the_same_pythons_and_is_typed(name: str) -> None:
    package = name.replace("-", "_")
    assert PROJECTS[name]["requires-python"] == ">=3.11"
    assert "Typing :: Typed" in PROJECTS[name]["classifiers"]
    assert (ROOT / "packages" / name / "src" / package / "py.typed").exists()
    assert (ROOT / "packages" / name / PROJECTS[name]["readme"]).exists()


def test_an_old_python_is_refused_in_one_line_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    path = ROOT / "packages" / "mp-core" / "extension_build.py"
    spec = importlib.util.spec_from_file_location("extension_build", path)
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    hook.refuse_without_tools("mp-core")
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"mp-core needs Python 3\.11 or later, and this is Python"):
        hook.refuse_without_tools("mp-core")
