"""The compiled files export only init functions, and a build without a compiler says what is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.scripts import run_python

import mp_reductions._native
import mp_torch._native
from mp_core import _libshm
from tools.distributions import COMPILED, OF_LATER_PYTHONS, check_native
from tools.exports import exported, search_paths

ROOT = Path(__file__).parents[2]
LIBRARY = Path(_libshm.__file__)

needs_binutils = pytest.mark.skipif(shutil.which("nm") is None, reason="nm is missing (binutils)")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing")


@needs_binutils
def test_each_extension_exports_its_init_functions_and_nothing_else() -> None:
    assert exported(LIBRARY) == {"PyInit__libshm", "PyInit__block"}
    for module in (mp_reductions._native, mp_torch._native):
        assert exported(Path(module.__file__)) == {"PyInit__native"}


@needs_binutils
def test_mp_core_knows_nothing_of_numpy_and_the_others_have_no_libshm_of_their_own() -> None:
    assert b"numpy" not in LIBRARY.read_bytes().lower()
    for module in (mp_reductions._native, mp_torch._native):
        assert b"shm_open" not in Path(module.__file__).read_bytes()


def test_libshm_is_inside_the_extension_and_no_library_of_its_own() -> None:
    assert list(LIBRARY.parent.glob("libshm*")) == []
    assert os.access(LIBRARY.parent / "shm-manager", os.X_OK)


def test_a_program_in_an_archive_says_that_no_compiled_module_can_be_imported_from_it(tmp_path: Path) -> None:
    folder = LIBRARY.parent
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        for file in folder.rglob("*"):
            if "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(folder.parent))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'packages.zip')!r}); import mp_core; mp_core.memory_stats()"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert "is in an archive, from which no compiled module can be imported: unpack it" in done.stderr


def a_wheel(path: Path, members: dict[str, bytes], mode: int = 0o755) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def compiled(folder: Path, source: str, *args: str) -> bytes:
    (folder / "a.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "a.so"), str(folder / "a.c"), *args], check=True)
    return (folder / "a.so").read_bytes()


@needs_binutils
@needs_compiler
def test_a_wheel_that_exports_too_much_is_refused(tmp_path: Path) -> None:
    open_library = compiled(tmp_path, "int PyInit__libshm, mpshm_leak;", "-Wl,-rpath,/home/of/a/machine")
    clean = compiled(tmp_path, "int PyInit__libshm;")
    good = {"mp_core/_libshm.abi3.so": clean, "mp_core/shm-manager": clean}

    def faults(name: str, members: dict[str, bytes], mode: int = 0o755) -> list[str]:
        return check_native(a_wheel(tmp_path / name, members, mode), COMPILED["mp_core"])

    assert faults("good.whl", good) == []
    assert faults("open.whl", {**good, "mp_core/_libshm.abi3.so": open_library}) == [
        "mp_core/_libshm.abi3.so looks for libraries in /home/of/a/machine",
        "mp_core/_libshm.abi3.so exports ['mpshm_leak']",
    ]
    assert faults("mode.whl", good, mode=0o644) == ["shm-manager is not executable"]
    assert "it ships mp_core/libshm.so" in faults("ships.whl", {**good, "mp_core/libshm.so": clean})
    assert faults("bare.whl", {"mp_core/_libshm.abi3.so": clean}) == ["shm-manager is missing"]
    empty = a_wheel(tmp_path / "empty.whl", {"mp_reductions/__init__.py": b""})
    assert check_native(empty, COMPILED["mp_reductions"]) == ["its shared libraries are []"]


@needs_binutils
@needs_compiler
def test_search_paths_are_found(tmp_path: Path) -> None:
    compiled(tmp_path, "int x;", "-Wl,-rpath,/a/folder", "-Wl,--enable-new-dtags")
    assert search_paths(tmp_path / "a.so") == ["/a/folder"]


@needs_binutils
@needs_compiler
def test_a_module_that_only_later_pythons_can_run_is_refused(tmp_path: Path) -> None:
    late = compiled(tmp_path, "void *Py_BuildValue(); void *PyInit__native(void) { return Py_BuildValue(); }")
    wheel = a_wheel(tmp_path / "late.whl", {"mp_reductions/_native.abi3.so": late})
    assert check_native(wheel, COMPILED["mp_reductions"]) == [
        "mp_reductions/_native.abi3.so calls ['Py_BuildValue'], which refuse '#' before CPython 3.13"
    ]


@needs_compiler
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_what_the_headers_of_each_python_compile_runs_under_the_oldest(tmp_path: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    where = "import sysconfig; print(sysconfig.get_path('include'))"
    found = python and subprocess.run([python, "-c", where], capture_output=True, text=True).stdout.strip()
    if not found or not Path(found, "Python.h").is_file():
        pytest.skip(f"CPython {version} is not installed here, or its headers are not")
    lines = [f"int {name};\n" for name in OF_LATER_PYTHONS] + [
        f"Py_RETURN_{name}\n" for name in ("NONE", "TRUE", "FALSE")
    ]
    (tmp_path / "a.c").write_text('#include "mp_core.h"\n' + "".join(lines))
    folders = [f"-I{folder}" for folder in (found, ROOT / "libshm/include", ROOT / "packages/mp-core/native")]
    command = ["cc", "-E", "-DPy_LIMITED_API=0x030B0000", *folders, str(tmp_path / "a.c")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert set(text.splitlines()) >= {f"int _{name}_SizeT;" for name in OF_LATER_PYTHONS}
    assert len(re.findall(r"^return _?Py_NewRef\(", text, re.MULTILINE)) == 3


BUILDS = [name for name in ("hatchling", "cffi", "numpy") if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(BUILDS != [], reason=f"{', '.join(BUILDS)} are not installed: nothing can be built here")
@pytest.mark.parametrize(
    ("package", "tools", "compiler", "lacks", "remedy"),
    [
        ("mp-core", ["make"], "/nonexistent/cc", "a C compiler ('/nonexistent/cc'; CC names another)", "gcc libc6-dev"),
        ("mp-core", ["make"], None, "a C compiler ('cc'; CC names another)", "gcc libc6-dev"),
        ("mp-core", ["make"], "", "a C compiler ('cc'; CC names another)", "gcc libc6-dev"),
        ("mp-core", ["cc"], None, "make", "make"),
        ("mp-core", [], None, "make, a C compiler ('cc'; CC names another)", "make gcc libc6-dev"),
        ("mp-reductions", ["make"], None, "a C compiler ('cc'; CC names another)", "gcc libc6-dev"),
        ("mp-cuda", ["make"], None, "a C compiler ('cc'; CC names another)", "gcc libc6-dev"),
        ("mp-torch", ["make"], None, "a C compiler ('cc'; CC names another)", "gcc libc6-dev"),
    ],
)
def test_a_build_without_tools_ends_in_one_message(
    tmp_path: Path, package: str, tools: list[str], compiler: str | None, lacks: str, remedy: str
) -> None:
    for tool in tools:
        (tmp_path / tool).symlink_to("/bin/true")
    env = {"PATH": str(tmp_path), **({} if compiler is None else {"CC": compiler})}
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT / "packages" / package,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"{package} is compiled from source here, and this is missing: {lacks}. "
        f"On Debian or Ubuntu: apt-get install {remedy}\n"
    )
    assert list(tmp_path.glob("*.whl")) == []


@pytest.mark.skipif(BUILDS != [] or shutil.which("make") is None, reason="there is no make, or nothing to build with")
@pytest.mark.parametrize("package", ["mp-core", "mp-reductions", "mp-cuda", "mp-torch"])
def test_a_build_runs_in_an_environment_whose_folder_has_a_space_in_its_name(tmp_path: Path, package: str) -> None:
    folder = tmp_path / "My Project"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    # All headers are in that folder.
    (folder / "sitecustomize.py").write_text(
        f"import sysconfig, numpy\nsysconfig.get_path = numpy.get_include = lambda *_: '{folder}/include'\n"
    )
    command = ["make", "-n", "-B", f"PYTHON={python}", f"BUILD={tmp_path}/build"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT / "packages" / package, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    compiles = [line for line in done.stdout.splitlines() if "native/" in line and " -c " in line]
    assert compiles
    for line in compiles:
        assert f"-I{folder}/include" in shlex.split(line), line
        assert all(word.startswith("-") or "My" not in word for word in shlex.split(line)), line


@pytest.mark.skipif(BUILDS != [], reason=f"{', '.join(BUILDS)} are not installed: nothing can be built here")
def test_the_sdist_has_no_compiled_file_of_an_editable_installation(tmp_path: Path) -> None:
    for name in (".gitignore", "libshm", "packages/mp-core"):
        source, copy = ROOT / name, tmp_path / name
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    (tmp_path / ".git").mkdir()
    for name in ("shm-manager", "_libshm.abi3.so"):
        (tmp_path / "packages/mp-core/src/mp_core" / name).write_bytes(b"compiled")
    program = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=tmp_path / "packages/mp-core",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as sdist:
        names = [Path(name).name for name in sdist.getnames()]
    assert "shm-manager.c" in names
    assert not {"shm-manager", "_libshm.abi3.so"} & {*names}
