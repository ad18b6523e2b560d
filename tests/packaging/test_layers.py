"""
The layers of the code, as its includes and imports show them.

`libshm/src` and `mp_core` have a folder for each subject. A subject may include headers, or import modules, of the
subjects below it and of no other, so the subjects have no circle.
"""

from __future__ import annotations

import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from test_import_graph import graph_of

from tools.tracked import ROOT, tracked

SRC = ROOT / "libshm" / "src"
INCLUDE = ROOT / "libshm" / "include"

# From the bottom to the top; libshm/DESIGN.md draws the same.
FLOORS = [
    "platform",
    "base",
    "layout",
    "segment",
    "channel",
    "session",
    "allocator",
    "reference",
    "sync",
    "heap",
    "diagnostics",
    "manager",
]

MP_CORE = ROOT / "packages" / "mp-core" / "src" / "mp_core"
NATIVE = ROOT / "packages" / "mp-core" / "native"
# The folders of mp_core, from the bottom to the top; docs/design.md has the same.
ROOMS = ["system", "sharing", "memory", "children", "messages", "locks", "channels", "timeline", "installation"]
# Beside them: the public names, the compiled module, and what both need.
BESIDE_THE_ROOMS = {"__init__.py", "_block.py", "_libshm.pyi", "_version.py"}
# The same of mp_pool; beside them are its public classes, which may import all, and the errors, which all may import.
MP_POOL = ROOT / "packages" / "mp-pool" / "src" / "mp_pool"
POOL_ROOMS = ["tasks", "workers", "scheduling"]
# Those of mp_spawn; beside them are the names that programs and all rooms import.
MP_SPAWN = ROOT / "packages" / "mp-spawn" / "src" / "mp_spawn"
SPAWN_ROOMS = ["calls", "output", "ranks", "jobs", "command"]
BESIDE_THE_SPAWN_ROOMS = {"__init__.py", "__main__.py", "errors.py", "log_records.py", "without_posix.py"}
# And those of mp_cuda; beside them are the names of the package and its errors.
MP_CUDA = ROOT / "packages" / "mp-cuda" / "src" / "mp_cuda"
CUDA_ROOMS = ["driver", "sharing", "arrays", "libraries"]


def included(path: Path) -> set[str]:
    """Return the headers of libshm/src that a C file includes, relative to it."""
    return {name for name in re.findall(r'(?m)^#include "(.+)"', path.read_text()) if (SRC / name).is_file()}


def sources() -> list[Path]:
    """Return every C file below libshm/src."""
    return sorted(SRC.rglob("*.[ch]"))


def test_each_subject_of_libshm_is_a_folder_on_the_list_of_floors() -> None:
    assert {path.name for path in SRC.iterdir()} == set(FLOORS)


def test_each_file_of_libshm_includes_only_its_own_floor_and_those_below() -> None:
    wrong = [
        f"{source.relative_to(SRC)} includes {name}"
        for source in sources()
        for name in included(source)
        if FLOORS.index(name.split("/")[0]) > FLOORS.index(source.relative_to(SRC).parts[0])
    ]
    assert wrong == []


def test_the_headers_of_libshm_include_each_other_without_a_circle() -> None:
    graph = {str(path.relative_to(SRC)): included(path) for path in sources() if path.suffix == ".h"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"include circle: {' -> '.join(error.args[1])}") from None


def test_each_file_of_libshm_includes_every_header_by_its_folder() -> None:
    plain = [
        f"{path.relative_to(SRC)}: {name}"
        for path in sources()
        for name in re.findall(r'(?m)^#include "(.+)"', path.read_text())
        if name != "mpshm.h" and not (SRC / name).is_file()
    ]
    assert plain == []


def test_the_headers_of_the_interface_stand_in_the_order_of_their_includes() -> None:
    order = re.findall(r'(?m)^#include "(.+)"', (INCLUDE / "mpshm.h").read_text())
    assert sorted(order) == sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.glob("*/*.h"))
    for at, name in enumerate(order):
        assert set(re.findall(r'(?m)^#include "(.+)"', (INCLUDE / name).read_text())) <= set(order[:at])


def test_each_module_is_in_a_room_and_no_room_is_crowded() -> None:
    assert {path.name for path in MP_CORE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)
    assert {path.name for kind in ("py", "pyi") for path in MP_CORE.glob(f"*.{kind}")} == BESIDE_THE_ROOMS
    assert {path.name for path in MP_SPAWN.glob("*.py")} == BESIDE_THE_SPAWN_ROOMS
    files = [*MP_CORE.rglob("*.py"), *NATIVE.rglob("*.c"), *MP_POOL.rglob("*.py"), *MP_SPAWN.rglob("*.py")]
    assert {path.name for path in MP_CUDA.glob("*.py")} == {"__init__.py", "errors.py"}
    files += [*MP_CUDA.rglob("*.py"), *(ROOT / "packages" / "mp-cuda" / "native").glob("*.c")]
    assert [str(path) for path in files if path.suffix == ".py" and path.stem == path.parent.name] == []
    sizes = Counter(path.parent for path in files)
    assert {str(folder): size for folder, size in sizes.items() if size > 20} == {}


@pytest.mark.parametrize(
    ("folder", "rooms", "least"),
    [(MP_CORE, ROOMS, 80), (MP_POOL, POOL_ROOMS, 27), (MP_SPAWN, SPAWN_ROOMS, 35), (MP_CUDA, CUDA_ROOMS, 25)],
    ids=str,
)
def test_each_module_imports_only_its_own_room_and_those_below(folder: Path, rooms: list[str], least: int) -> None:
    graph = {module: imported for module, imported in graph_of(folder).items() if room_of(module, rooms) >= 0}
    assert len(graph) > least
    wrong = [
        f"{module} imports {each}"
        for module, imported in graph.items()
        for each in sorted(imported)
        if room_of(each, rooms) > room_of(module, rooms)
        or each in {"mp_pool.pool", "mp_pool.executor", "mp_pool.contexts"}
    ]
    assert wrong == []


def room_of(module: str, rooms: list[str]) -> int:
    """Return the floor of a module, -1 for one beside the rooms."""
    name = module.split(".")[1] if "." in module else ""
    return rooms.index(name) if name in rooms else -1


# The folders of mp-core's C code, from the bottom to the top. Beside them: the module and the table, which name all.
NATIVE_ROOMS = ["timeline", "system", "memory", "messages", "locks", "channels"]


def test_each_c_file_of_mp_core_includes_only_its_own_room_and_those_below() -> None:
    assert {path.name for path in NATIVE.iterdir() if path.is_dir()} == set(NATIVE_ROOMS)
    assert {path.name for path in NATIVE.iterdir() if path.is_file()} == {"api.c", "mp_core.h", "module.c"}
    included = {
        (path.relative_to(NATIVE).parts, name)
        for path in NATIVE.glob("*/*.[ch]")
        for name in re.findall(r'(?m)^#include "(.+)"', path.read_text())
    }
    assert len(included) > 50
    wrong = [
        f"{folder}/{file} includes {name}"
        for (folder, file), name in included
        if name != "mp_core.h" and NATIVE_ROOMS.index(name.split("/")[0]) > NATIVE_ROOMS.index(folder)
    ]
    assert wrong == []
    headers = {path.name: path.read_text().count("\n") for path in NATIVE.glob("*/*.h")}
    assert {name: lines for name, lines in headers.items() if lines > 150} == {}


def functions(text: str) -> set[str]:
    """Return the functions and variables that a C file defines for other files."""
    function = r"(?m)^(?!static\b|extern\b|typedef\b|#)[A-Za-z_][^\n;{}()=]*?\b([A-Za-z_]\w*)\s*\([^;{}]*\)\s*\{"
    variable = (
        r"(?m)^(?!static\b|extern\b|typedef\b|#|enum\b)[A-Za-z_][\w \*]*?[ \*]([A-Za-z_]\w*)(?:\[[^\]]*\])*(?: =|;)"
    )
    return {*re.findall(function, text), *re.findall(variable, text)}


def test_mp_core_and_mp_reductions_do_not_name_torch() -> None:
    sources = [
        path
        for package in ("mp-core", "mp-reductions")
        for path in tracked([f"packages/{package}"])
        if path.suffix in (".c", ".h", ".py", ".pyi", ".toml")
    ]
    assert len(sources) > 150  # otherwise they were not found
    named = [
        f"{path}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if re.search("torch|tensor", f"{path} {line}", re.IGNORECASE)
    ]
    assert not named, "only mp-torch and mp-all know torch:\n" + "\n".join(named)


COMPILED = [f"packages/{package}/native" for package in ("mp-core", "mp-reductions", "mp-cuda", "mp-torch")]


@pytest.mark.parametrize("folder", ["libshm/src", *COMPILED])
def test_no_c_file_needs_another_one_that_needs_it(folder: str) -> None:
    texts = {}
    for path in sorted((ROOT / folder).rglob("*.c")):
        name = path.relative_to(ROOT / folder)
        if name.parts[:1] != ("platform",) or name.parts[1] == "linux":  # others define the same functions
            without_comments = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
            texts[str(name)] = re.sub(r'"(?:\\.|[^"\\])*"', '""', without_comments)
    home = {function: name for name, text in texts.items() for function in functions(text)}
    assert len(home) > 2 * len(texts)  # otherwise they were not found
    graph = {
        name: {home[word] for word in re.findall(r"[A-Za-z_]\w*", text) if home.get(word, name) != name}
        for name, text in texts.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"circle: {' -> '.join(reversed(error.args[1]))}") from None
