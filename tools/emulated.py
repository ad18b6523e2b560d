"""Run the tests on an emulated aarch64: `nox -s tests-emulated [-- arguments of pytest]`. Needs root and qemu-user.

Debian 13 for arm64 runs in a chroot, each of its programs under qemu-user: the kernel is this machine's. So the tests
show that the packages work on aarch64's instructions, sizes and system call numbers, not on its memory order. The
compiled packages are the wheels of `nox -s other-wheels`. This machine's pip installs them: emulated, it takes minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import other_wheels
from tools.chroot import Chroot, bootstrap, check_machine, copy_sources, empty_folder
from tools.distributions import COMPILED, GLIBC, PACKAGES, ROOT, build_environment

SUITE, PYTHON = "trixie", "3.13"
DEBIAN = "python3 gcc make ca-certificates"
SITE = Path("usr/local/lib") / f"python{PYTHON}" / "dist-packages"
TARGET = f"aarch64-linux-gnu.{GLIBC}"
PLATFORMS = ["manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"]
NEEDS = ["numpy", "pytest", "pytest-timeout", "hypothesis", "cloudpickle"]
# Emulated, a test takes about twenty times as long.
TESTS = ["tests/core", "tests/reductions", "tests/contract", "--ignore=tests/contract/programs"]
TIMEOUT = 600
BINFMT = Path("/proc/sys/fs/binfmt_misc")
HANDLER = "mp-tests-aarch64"
# The first 20 bytes of an aarch64 program: ELF of 64 bits, little-endian, of any system, a program or a shared library,
# for machine 183.
MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"


def emulator() -> str:
    """Return the path of qemu-user for aarch64."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        raise SystemExit("qemu-aarch64-static is missing (on Debian or Ubuntu: apt-get install qemu-user-static)")
    return found


def rule(qemu: str) -> bytes:
    r"""
    Return the line that makes the kernel run aarch64 programs by *qemu*, which it opens now (F).

    >>> rule("/q")[:30]
    b':mp-tests-aarch64:M::\\x7f\\x45'
    """
    magic, mask = ("".join(f"\\x{byte:02x}" for byte in text) for text in (MAGIC, MASK))
    return f":{HANDLER}:M::{magic}:{mask}:{qemu}:F".encode()


@contextmanager
def programs_emulated(qemu: str) -> Iterator[None]:
    """Let the kernel run aarch64 programs, for as long as the context lasts, unless it does already."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    ours = BINFMT / HANDLER
    if ours.exists():  # of a run that was killed
        ours.write_bytes(b"-1")
    (BINFMT / "register").write_bytes(rule(qemu))
    try:
        yield
    finally:
        ours.write_bytes(b"-1")


def install(root: Path, wheels: Path) -> None:
    """Build the packages' wheels for aarch64, and install them, and what the tests need, in the chroot."""
    wheels.mkdir()
    compiled = [package.replace("_", "-") for package in COMPILED]
    for package in compiled:
        other_wheels.build(TARGET, package, wheels)
    for package in PACKAGES:
        if package not in compiled:
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels)]
            path = str(ROOT / "packages" / package)
            subprocess.run([*command, path], check=True, env=build_environment(), stdout=subprocess.DEVNULL)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(root / SITE), "--only-binary=:all:"]
    pip += ["--python-version", PYTHON, "--implementation=cp", *(f"--platform={name}" for name in PLATFORMS)]
    # Without mp-cuda's bindings: there is no GPU to emulate.
    subprocess.run([*pip, "--find-links", str(wheels), "mp-core", "mp-reductions", "mp-spawn", *NEEDS], check=True)
    rest = [str(path) for path in wheels.glob("mp_*") if path.name.startswith(("mp_pool", "mp_cuda", "mp_all"))]
    subprocess.run([*pip, "--no-deps", *rest], check=True)


def main() -> None:
    work, asked = Path(sys.argv[1]).resolve(), sys.argv[2:]
    check_machine()
    qemu = emulator()
    begun = time.monotonic()
    with empty_folder("arm64", work) as root, programs_emulated(qemu):
        bootstrap(root, SUITE, DEBIAN, "--arch=arm64")
        copy_sources(root / "src")
        install(root, root / "wheels")
        chroot = Chroot(root)
        chroot.must("python3", "-m", "mp_all")
        pytest = ["python3", "-m", "pytest", "-o", "faulthandler_timeout=0", "--timeout", str(TIMEOUT)]
        code = chroot.run(*pytest, *(asked or TESTS))
    version = subprocess.run([qemu, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]
    print(f"Debian {SUITE} for arm64, {version}: {time.monotonic() - begun:.0f} s in all")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
