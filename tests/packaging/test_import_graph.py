"""The modules of each package import one another without a cycle, late imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = {path.name: path for path in (Path(__file__).parents[2] / "packages").glob("*/src/mp_*")}

Graph = dict[str, set[str]]


def graph_of(folder: Path) -> Graph:
    """
    Return the modules of the package in *folder*, each with the modules of the package that it imports.

    `if TYPE_CHECKING` is left out. `importlib.import_module` and `imports.load` count; with an f-string, they may
    import every module whose name begins like it. Importing a subpackage's module runs its `__init__`, which therefore
    counts too.
    """
    files = {module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    stubs = {module_name(path, folder) for path in folder.rglob("*.pyi")}
    modules = files.keys() | stubs
    graph: Graph = {name: set() for name in modules}
    for name, path in files.items():
        for imported in imports_of(ast.parse(path.read_text()), name, path.stem == "__init__"):
            for module in resolve(imported, modules) - {name}:
                # The packages that contain the importing module have been imported, or wait for it, already.
                around = {each for each in packages_of(module) if not f"{name}.".startswith(f"{each}.")}
                graph[name] |= {module, *around}
    return graph


def module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def packages_of(module: str) -> Iterator[str]:
    """
    Yield the packages that contain *module*, except the outermost.
    """
    while module.count(".") > 1:
        module = module.rpartition(".")[0]
        yield module


def resolve(imported: str, modules: set[str]) -> set[str]:
    """
    Return the modules that importing a name imports: itself, the module that defines it, or all that match `prefix*`.
    """
    if imported.endswith("*"):
        return {module for module in modules if module.startswith(imported[:-1])}
    if imported in modules:
        return {imported}
    parent = imported.rpartition(".")[0]
    return {parent} if parent in modules else set()


def imports_of(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """
    Yield the absolute names that a module imports at runtime.
    """
    if isinstance(node, ast.If) and (checked := type_checking(node.test)) is not None:
        for child in node.orelse if checked else node.body:
            yield from imports_of(child, module, is_package)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
            base = ".".join([*package, *filter(None, [base])])
        yield from (base if alias.name == "*" else f"{base}.{alias.name}" for alias in node.names)
    elif (
        isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("import_module", "imports.load"))
    ):
        argument = node.args[0]
        if isinstance(argument, ast.Constant):
            yield str(argument.value)
        elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
            yield f"{argument.values[0].value}*"
    for child in ast.iter_child_nodes(node):
        yield from imports_of(child, module, is_package)


def type_checking(test: ast.expr) -> bool | None:
    """
    Return True for a test of TYPE_CHECKING, False for `not TYPE_CHECKING`, and None for any other.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return None if type_checking(test.operand) is None else False
    return True if ast.unparse(test).split(".")[-1] == "TYPE_CHECKING" else None


def cycles(graph: Graph) -> list[str]:
    """
    Return a shortest cycle through each module that is in a cycle, without duplicates.
    """
    found = {}
    for start in sorted(graph):
        paths = [[start]]
        seen: set[str] = set()
        for path in paths:  # grows while it is read: breadth first
            for imported in sorted(graph[path[-1]] - seen):
                if imported == start:
                    found.setdefault(frozenset(path), " -> ".join([*path, start]))
                    paths.clear()
                    break
                seen.add(imported)
                paths.append([*path, imported])
    return sorted(found.values())


def test_every_package_is_checked() -> None:
    assert {
        "mp_core",
        "mp_reductions",
        "mp_spawn",
        "mp_pool",
        "mp_nodes",
        "mp_cuda",
        "mp_torch",
        "mp_all",
    } <= PACKAGES.keys()
    assert graph_of(PACKAGES["mp_cuda"])["mp_cuda.arrays.array"] >= {
        "mp_cuda.arrays.memory",
        "mp_cuda.driver.cuda_driver",
    }


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_modules_of_a_package_import_one_another_without_a_cycle(package: str) -> None:
    assert cycles(graph_of(PACKAGES[package])) == []


def package_of(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = folder / "mp_x" / f"{name.replace('__dot__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mp_x"


@pytest.mark.parametrize(
    "late",
    [
        "from mp_x import a",
        "from mp_x.a import name",
        "import mp_x.a",
        "def f():\n    from . import a",
        "def f():\n    from .a import name",
        "import importlib\nimportlib.import_module('mp_x.a')",
        "import importlib\nimportlib.import_module(f'mp_x.a{name}')",
        "from mp_x import name_of_the_package",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from mp_x import a",
        "if not typing.TYPE_CHECKING:\n    from mp_x import a",
    ],
)
def test_a_cycle_is_found_and_named(tmp_path: Path, late: str) -> None:
    folder = package_of(tmp_path, __init__="from mp_x import a", a="from mp_x import b", b="from mp_x import c", c=late)
    (found,) = cycles(graph_of(folder))
    assert found in ("mp_x.a -> mp_x.b -> mp_x.c -> mp_x.a", "mp_x -> mp_x.a -> mp_x.b -> mp_x.c -> mp_x")


def test_a_cycle_through_the_init_of_a_subpackage_is_found(tmp_path: Path) -> None:
    folder = package_of(tmp_path, __init__="", a="from mp_x.sub import b", sub__dot____init__="import mp_x.a")
    package_of(tmp_path, sub__dot__b="")
    assert cycles(graph_of(folder)) == ["mp_x.a -> mp_x.sub -> mp_x.a"]


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    late = "if TYPE_CHECKING:\n    from mp_x import a\nif typing.TYPE_CHECKING:\n    import mp_x.a"
    folder = package_of(tmp_path, __init__="", a="import mp_x.b", b=late)
    assert cycles(graph_of(folder)) == []
