"""The borders of the packages: each uses what a sister package offers, and nothing that begins with an underscore."""

from __future__ import annotations

import _socket
import ast
import functools
import multiprocessing
import re
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.name: path for path in (ROOT / "packages").glob("*/src/mp_*")}


def is_private(name: str) -> bool:
    """
    Return whether a part of the dotted *name* begins with an underscore, dunder names apart.

    >>> is_private("mp_core.sharing.library"), is_private("mp_core.__version__")
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


#: What `typing.NamedTuple` and `collections.namedtuple` offer to everybody.
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OWN = ("self", "cls", "super()")


def names_in(node: ast.AST, texts: bool = False) -> set[str]:
    """
    Return the private names that a module or class gives to functions, classes, variables and attributes of objects;
    with *texts* also those in texts: a slot, or a name for getattr.
    """
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            found.add(each.name)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) in OWN:
            found.add(each.attr)
        elif texts and isinstance(each, ast.Constant) and isinstance(each.value, str):
            found.add(each.value)
    return {name for name in found if name.isidentifier() and is_private(name)}


def trees(folder: Path) -> list[ast.Module]:
    """Return the modules of a package, and its stubs."""
    return [ast.parse(path.read_text()) for kind in ("py", "pyi") for path in sorted(folder.rglob(f"*.{kind}"))]


@functools.cache
def names_of(package: str, texts: bool) -> set[str]:
    """Return the private names that a package defines, those in its C included."""
    native = PACKAGES[package].parents[1] / "native"
    in_c = {name for path in native.rglob("*.c") for name in re.findall(r'\{"(_[a-z]\w*)",', path.read_text())}
    return in_c.union(*(names_in(tree, texts) for tree in trees(PACKAGES[package])))


@functools.cache
def names_of_the_standard_library() -> set[str]:
    """Return the private names of the modules of the standard library that we extend."""
    folder = Path(multiprocessing.__file__).parent
    files = [*folder.rglob("*.py"), *(folder.parent / "concurrent").rglob("*.py")]
    files += [folder.parent / f"{name}.py" for name in ("pickle", "shelve", "socket", "subprocess", "threading")]
    found = {name for kind in (_socket.socket, memoryview, threading.Thread) for name in dir(kind)}
    return found.union(*(names_in(ast.parse(path.read_text())) for path in files))


@functools.cache
def classes_of(package: str) -> dict[str, tuple[list[str], set[str]]]:
    """Return the classes of a package by name: their bases, and the private names that their methods define and use."""
    return {
        node.name: ([ast.unparse(base) for base in node.bases], names_in(node))
        for tree in trees(PACKAGES[package])
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def inherited(package: str, name: str) -> set[str]:
    """Return the private names of a class and of its bases in the same package."""
    bases, found = classes_of(package).get(name, ([], set()))
    return found.union(*(inherited(package, base) for base in bases if base != name))


def imported_from_sisters(tree: ast.Module, package: str) -> dict[str, str]:
    """Return the names that a module has from sister packages, and from which."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update({each.asname or each.name: node.module for each in node.names})
        elif isinstance(node, ast.Import):
            found.update({each.asname or each.name.split(".")[0]: each.name for each in node.names})
    homes = {name: module.split(".")[0] for name, module in found.items()}
    return {name: home for name, home in homes.items() if home in PACKAGES and home != package}


def is_from(node: ast.expr, names: set[str]) -> bool:
    """Tell whether an expression is one of these names, or an attribute, an item or a result of one."""
    if ast.unparse(node) in names:
        return True
    if isinstance(node, ast.Call):
        return is_from(node.func, names)
    if isinstance(node, ast.BinOp):  # the type of one or the other
        return is_from(node.left, names) or is_from(node.right, names)
    return isinstance(node, (ast.Attribute, ast.Subscript)) and is_from(node.value, names)


def objects_of_sisters(tree: ast.Module, imported: set[str]) -> set[str]:
    """
    Return the names and attributes of a module that stand for something of a sister package.

    They are imported, are assigned from what is imported, or are declared to be of a class that is imported.

    >>> sorted(objects_of_sisters(ast.parse("pool = Pool(2)\\nself.own = pool.scheduler"), {"Pool"}))
    ['Pool', 'pool', 'self.own']
    """
    found, before = set(imported), -1
    while len(found) > before:
        before = len(found)
        for node in ast.walk(tree):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign) and is_from(node.value, found):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign) and (
                is_from(node.annotation, found) or (node.value is not None and is_from(node.value, found))
            ):
                targets = [node.target]
            elif isinstance(node, ast.withitem) and node.optional_vars and is_from(node.context_expr, found):
                targets = [node.optional_vars]
            elif isinstance(node, (ast.For, ast.comprehension)) and is_from(node.iter, found):
                targets = [node.target]
            elif isinstance(node, ast.arg) and node.annotation is not None and is_from(node.annotation, found):
                found.add(node.arg)
            found |= {ast.unparse(target) for target in targets if isinstance(target, (ast.Name, ast.Attribute))}
    return found


def attributes(path: Path, package: str) -> list[str]:
    """
    Return where a file reads a private attribute of an object of a sister package, or overrides one.

    The types of objects are not known here. An attribute is a sister's if

    - its object comes from a sister (`objects_of_sisters`), and this module defines no attribute of that name;
    - a sister defines it, and neither this package nor the standard library does;
    - its object is `self`, or a method overrides it, in a class whose base in a sister defines it.
    """
    tree = ast.parse(path.read_text())
    imported = imported_from_sisters(tree, package)
    objects, here = objects_of_sisters(tree, set(imported)), names_in(tree, texts=True)
    others = set[str]().union(*(names_of(each, False) for each in PACKAGES if each != package))
    theirs = others - names_of(package, True) - here - names_of_the_standard_library()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in NAMED_TUPLE:
            if (is_from(node.value, objects) and node.attr not in here) or node.attr in theirs:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            theirs_too = set[str]().union(*(inherited(imported[base], base) for base in bases if base in imported))
            for each in ast.walk(node):
                if isinstance(each, FUNCTIONS) and each.name in theirs_too:
                    found.append(f"{each.lineno}: def {each.name}")
                elif (
                    isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Load)
                    and ast.unparse(each.value) in OWN
                    and each.attr in theirs_too
                ):
                    found.append(f"{each.lineno}: {ast.unparse(each)}")
    return sorted(set(found))


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_private_name_crosses_a_package(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files
    found = {f"{path.relative_to(ROOT)}: {name}" for path in files for name in crossings(path, package)}
    assert sorted(found) == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_private_attribute_crosses_a_package(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}:{where}" for path in files for where in attributes(path, package)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pool = Pool(2)\npool._scheduler",
        "class A:\n    def f(self):\n        self._pool = Pool(2)\n        return self._pool._lock",
        "pool = Pool(2)\nscheduler = pool.scheduler\nscheduler._lock.wait()",
        "def f(pool: Pool):\n    pool._scheduler",
        "def f(pool: int | Pool):\n    pool._scheduler",
        "with Pool(2) as pool:\n    pool._scheduler",
        "def f(anything):\n    anything._function_numbers",
        "class A(Scheduler):\n    def f(self):\n        self._end_once()",
        "class A(Scheduler):\n    def _end_once(self): ...",
        "from mp_pool.scheduling import scheduler\nscheduler._drain(3)",
    ],
)
def test_a_private_attribute_of_a_sister_package_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"from mp_pool import Pool\nfrom mp_pool.scheduling.scheduler import Scheduler\n{text}\n")
    assert len(attributes(path, "mp_nodes")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "class A(Scheduler):\n    def f(self):\n        self._own = 1\n        return self._own",
        "place = Pool(2).place\nplace._replace(rank=1)",
        "def f(process):\n    process._popen",
        "class A:\n    def _leave(self): ...\nfor each in Pool(2):\n    each._leave()",
    ],
)
def test_an_own_attribute_and_one_of_the_standard_library_are_not_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"from mp_pool import Pool\nfrom mp_pool.scheduling.scheduler import Scheduler\n{text}\n")
    assert attributes(path, "mp_nodes") == []


#: The packages of which others use modules, and not only the public names.
OFFERING = {"mp_core", "mp_pool", "mp_spawn"}


def test_the_modules_that_sister_packages_use_are_described_with_the_bindings() -> None:
    text = (ROOT / "docs" / "bindings.md").read_text()
    described = set(re.findall(r"`((?:mp_\w+)(?:\.\w+)+)`", "".join(re.findall(r"(?m)^\| `mp_.+$", text))))
    used = {
        module
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OFFERING
        if package != node.module.split(".")[0]
        for alias in node.names
        if (module := module_of(f"{node.module}.{alias.name}"))
    }
    assert used
    # A row for a folder describes its modules, if they are of one kind.
    assert sorted(name for name in used if not {name, name.rpartition(".")[0]} & described) == []


def module_of(name: str) -> str:
    """
    Return the module of a package that *name* is, or is in; "" for a name of the package itself.

    >>> module_of("mp_core.memory.block.Block"), module_of("mp_core.memory.block"), module_of("mp_core.Block")
    ('mp_core.memory.block', 'mp_core.memory.block', '')
    """
    package, *parts = name.split(".")
    while parts and not (PACKAGES[package].joinpath(*parts)).is_dir():
        if any(PACKAGES[package].joinpath(*parts).with_suffix(kind).exists() for kind in (".py", ".pyi")):
            break
        parts.pop()
    return ".".join([package, *parts]) if parts else ""
