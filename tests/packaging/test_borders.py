"""The borders of the packages: each uses what a sister package offers, and nothing that begins with an underscore."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.name: path for path in (ROOT / "packages").glob("*/src/mp_*")}


def is_private(name: str) -> bool:
    """
    Return whether a part of the dotted *name* begins with an underscore, dunder names apart.

    >>> is_private("mp_core._library"), is_private("mp_core.__version__")
    (True, False)
    """
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def crossings(path: Path, package: str) -> list[str]:
    """Return the private names of sister packages that the file imports, or takes from what it imports."""
    tree = ast.parse(path.read_text())
    sisters = set(PACKAGES) - {package}
    found: list[str] = []
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in sisters:
            for alias in node.names:
                found.append(f"{node.module}.{alias.name}")
                imported[alias.asname or alias.name] = found[-1]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in sisters]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            found.append(f"{imported[node.value.id]}.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split(".")[0] in sisters:
            found.append(node.value if all(part.isidentifier() for part in node.value.split(".")) else "")
    return [name for name in found if is_private(name)]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_private_name_crosses_a_package(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files
    found = {f"{path.relative_to(ROOT)}: {name}" for path in files for name in crossings(path, package)}
    assert sorted(found) == []


def test_the_modules_that_sister_packages_use_are_described_with_the_bindings() -> None:
    text = (ROOT / "docs" / "bindings.md").read_text()
    used = {
        ".".join(name.split(".")[:2])
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in {"mp_core", "mp_pool"}
        if package != node.module.split(".")[0]
        for name in [f"{node.module}.{alias.name}" for alias in node.names]
        if (PACKAGES[name.split(".")[0]] / f"{name.split('.')[1]}.py").exists()
        or (PACKAGES[name.split(".")[0]] / name.split(".")[1]).is_dir()
    }
    assert used
    assert sorted(name for name in used if f"`{name}`" not in text) == []
