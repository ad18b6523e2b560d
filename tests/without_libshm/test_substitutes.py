"""Portable sharing has the functions of the compiled modules; a wheel without libshm has nothing compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from mp_core.sharing import portable
from mp_core.system import machine
from mp_core.system.settings import parse_bytes
from mp_reductions import _uncompiled

from .conftest import HERE

ROOT = Path(__file__).parents[2]
needs_libshm = pytest.mark.skipif(
    not machine.has_libshm() or importlib.util.find_spec("mp_core._libshm") is None,
    reason="compares with libshm, which is switched off",
)
CFFI = {"check", "ffi", "lib"}
# Without libshm the locks are those of the standard library.
LOCKS = {"SemLock", "condition_notify", "create_sync", "setup_locks", "sync_handle"}


@needs_libshm
def test_the_substitute_has_the_functions_of_libshm() -> None:
    from mp_core.sharing import compiled, library
    from mp_reductions import _native
    from mp_torch import _native as mp_torch_native
    from mp_torch import _uncompiled as mp_torch_uncompiled

    assert set(portable.__all__) == {*compiled.__all__, *library.__all__} - CFFI - LOCKS
    here = {name for name in vars(_native) if not name.startswith("_")}
    assert here - set(_uncompiled.__all__) == {
        "rebuild_from_block",
        "rebuild_from_pack",
        "rebuild_strided",
        "rebuild_view",
    }  # of its pickles
    assert set(_uncompiled.__all__) - here == {"reduce_small"}
    assert set(mp_torch_uncompiled.__all__) == {name for name in vars(mp_torch_native) if not name.startswith("_")}
    assert portable.counters().keys() == library.counters().keys()
    assert portable.library_name() == compiled.library_name()


SIZES = [
    "",
    "0",
    "12",
    " 7 kB ",
    "1.5G",
    "1.5 GiB",
    ".5k",
    "5.",
    ".",
    "1 b",
    "3 bytes",
    "K",
    "1ki",
    "1kib",
    "1kb",
    "1kbb",
]
SIZES += ["-1", "1e3", "18446744073709551615", "18446744073709551616", "16777216T", "1\n", "\n1", "1.0000001G", "٣"]


def in_python(text: str) -> int | None:
    try:
        return parse_bytes(text)
    except ValueError:
        return None


def in_c(text: str) -> int | None:
    from mp_core.sharing.library import ffi, lib

    nbytes = ffi.new("uint64_t *")
    refused = lib.mpshm_parse_bytes(text.encode("utf-8", "surrogateescape"), nbytes) < 0
    return None if refused else int(nbytes[0])


@needs_libshm
@pytest.mark.parametrize("text", SIZES)
def test_both_read_a_number_of_bytes_alike(text: str) -> None:
    assert in_python(text) == in_c(text)


@needs_libshm
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    strategies.sampled_from(["", " ", "\t", "\n"]),
    strategies.from_type(int),
    strategies.sampled_from(["", ".", ".5", ".25 ", ".1234567", "e1"]),
    strategies.sampled_from(["", " ", "\t"]),
    strategies.text("kKmMgGtTpPiIbB", max_size=3),
)
def test_both_read_any_number_of_bytes_alike(before: str, whole: int, part: str, space: str, unit: str) -> None:
    text = f"{before}{whole}{part}{space}{unit}"
    assert in_python(text) == in_c(text)


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling, in the group build")
@pytest.mark.parametrize("platform", ["linux", "macos"])
@pytest.mark.parametrize("package", ["mp-core", "mp-reductions", "mp-cuda", "mp-torch"])
def test_a_wheel_without_the_compiled_is_built_without_a_compiler(package: str, platform: str, tmp_path: Path) -> None:
    environment = {**os.environ, "CC": "/no/such/compiler", "PATH": "/no/such/folder"}
    if platform == "linux":
        environment["MP_WITHOUT_LIBSHM"] = "1"
    else:
        environment["PYTHONPATH"] = str(HERE / "macos")
        # The names of the standard library's files of settings have the platform in them.
        environment["_PYTHON_SYSCONFIGDATA_NAME"] = sysconfigdata()
    build = "import sys; from hatchling.cli import hatchling; sys.argv[0] = 'hatchling'; sys.exit(hatchling())"
    done = subprocess.run(
        [sys.executable, "-c", build, "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT / "packages" / package,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.endswith((".so", "shm-manager", ".c"))]
    assert f"{package.replace('-', '_')}/__init__.py" in names


def sysconfigdata() -> str:
    import sysconfig

    name: str = sysconfig._get_sysconfigdata_name()  # type: ignore[attr-defined]
    return name
