"""The modules of each package import each other without a circle, late imports included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"


def modules_of(package: str) -> dict[str, Path]:
    """Return the modules of *package* by name, the package itself included."""
    folder = next(PACKAGES.glob(f"*/src/{package}"))
    # A compiled module has a stub.
    paths = sorted(folder.rglob("*.pyi")) + sorted(folder.rglob("*.py"))
    names = {".".join((package, *path.relative_to(folder).with_suffix("").parts)): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imports_of(source: str, modules: set[str]) -> Iterator[str]:
    """Yield those of *modules* that *source* imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else node.module


# mp_cuda has circles.
@pytest.mark.parametrize("package", ["mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_all"])
def test_the_modules_of_a_package_have_no_circle(package: str) -> None:
    modules = modules_of(package)
    graph = {name: set(imports_of(path.read_text(), set(modules))) for name, path in modules.items()}
    assert any(graph.values()), "a module imports another"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_circle_by_a_late_import_is_found() -> None:
    source = "def late():\n    from p.other import thing\n\nimport p.own\nfrom p import again\nfrom p import name\n"
    modules = {"p", "p.other", "p.own", "p.again"}
    assert set(imports_of(source, modules)) == {"p.other", "p.own", "p.again", "p"}
    with pytest.raises(CycleError):
        TopologicalSorter({"p.other": {"p.own"}, "p.own": {"p.other"}}).prepare()


@pytest.mark.parametrize(
    "path", sorted(PACKAGES.glob("*/src/**/*.py")), ids=lambda path: f"{path.parent.name}.{path.stem}"
)
def test_no_module_has_more_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
