"""Build the compiled wheels for other Linux systems with zig, from the sdists in dist/: a part of `nox -s build`.

mp-core, mp-reductions, mp-cuda and mp-torch are compiled for aarch64 with glibc, and for x86-64 and aarch64 with musl
(Alpine). zig brings the C library of each target. CPython's and NumPy's headers are those of this machine: both systems
have the same sizes of types, and the stable ABI does not depend on more. The wheels are checked as those of the upload
are, and for the machine and the C library that they are made for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.distributions import COMPILED, GLIBC, build_environment, check_native, check_upload
from tools.exports import output_of

# zig's name of a target, the platform in the name of its wheel, the machine of ELF, and the C library.
TARGETS = {
    f"aarch64-linux-gnu.{GLIBC}": ("manylinux_2_28_aarch64", 183, "libc.so.6"),
    "x86_64-linux-musl": ("musllinux_1_2_x86_64", 62, "libc.so"),
    "aarch64-linux-musl": ("musllinux_1_2_aarch64", 183, "libc.so"),
}
# Functions that zig's musl has and 1.2.0 had not: a wheel for musllinux_1_2 does not load where one is missing.
NEWER_IN_MUSL = {"_Fork", "gettid", "preadv2", "pwritev2", "qsort_r", "reallocarray", "statx"}


def build(target: str, package: str, source: Path, to: Path) -> Path:
    """Build the wheel of *package* for *target* from the sources in the folder *source*."""
    platform, _, _ = TARGETS[target]
    cc = f"{sys.executable} -m ziglang cc -target {target}"
    # musl is linked statically by default, and a Python extension cannot be.
    shared = " -dynamic" if "musl" in target else ""
    environment = {
        **build_environment(),
        "CC": cc + shared,
        "LDSHARED": f"{cc}{shared} -shared",
        "_PYTHON_HOST_PLATFORM": platform.replace("_", "-"),  # the build hooks name the wheel after it
    }
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(to)]
    subprocess.run([*command, str(source)], check=True, env=environment, stdout=subprocess.DEVNULL)
    return next(to.glob(f"{package}-*-cp311-abi3-{platform}.whl"))


def machine(program: bytes) -> int:
    """
    Return the machine in the header of an ELF file.

    >>> machine(b"\\x7fELF" + bytes(14) + b"\\x3e\\x00")
    62
    """
    return int.from_bytes(program[18:20], "little")


def faults(wheel: Path, target: str, package: str) -> list[str]:
    """Return the faults of a wheel, those of `check_native` and a wrong machine, C library or version of it."""
    _, wanted, library = TARGETS[target]
    wrong = check_native(wheel, COMPILED[package])
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in COMPILED[package]:
            found = machine(archive.read(name))
            if found != wanted:
                wrong.append(f"{name} is for machine {found} instead of {wanted}")
            dynamic = output_of("readelf", "--dynamic", "--dyn-syms", "--wide", archive.extract(name, folder))
            if f"[{library}]" not in dynamic:
                wrong.append(f"{name} does not need {library}:\n{dynamic}")
            newer = NEWER_IN_MUSL.intersection(re.findall(r" UND (\w+)$", dynamic, flags=re.MULTILINE))
            if "musl" in target and newer:
                wrong.append(f"{name} calls {sorted(newer)}, which musl 1.2.0 does not have")
    return wrong


def main() -> None:
    dist = Path(sys.argv[1]).resolve()
    wheels = []
    with tempfile.TemporaryDirectory() as folder:
        for package in COMPILED:
            (sdist,) = dist.glob(f"{package}-*.tar.gz")
            shutil.unpack_archive(sdist, folder, filter="data")
            source = Path(folder, sdist.name.removesuffix(".tar.gz"))
            for target in TARGETS:
                wheels.append(build(target, package, source, dist))
                if wrong := faults(wheels[-1], target, package):
                    raise SystemExit(f"{wheels[-1].name}: {'; '.join(wrong)}")
    check_upload(wheels, wheels)


if __name__ == "__main__":
    main()
