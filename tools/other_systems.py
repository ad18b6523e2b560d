"""Run the tests on another machine or C library: `nox -s "tests-other(aarch64-musl)" [-- arguments of pytest]`.

Debian 13 runs in a chroot: for arm64 each of its programs under qemu-user, for musl its Python on musl. The compiled
packages are wheels as `nox -s build` makes them. This machine's pip installs them: emulated, it takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tools import musl_python, other_wheels
from tools.chroot import Chroot, bootstrap, check_machine, copy_sources, empty_folder
from tools.distributions import COMPILED, GLIBC, PACKAGES, ROOT, build_environment
from tools.emulation import install_emulator, programs_emulated, version

SUITE, PYTHON = "trixie", "3.13"
DEBIAN = "python3"
SITE = Path("usr/local/lib") / f"python{PYTHON}" / "dist-packages"
# zig's name of the target, Debian's name of the machine, and the platforms of the wheels that run there.
SYSTEMS = {
    "aarch64-glibc": (f"aarch64-linux-gnu.{GLIBC}", "arm64", ["manylinux_2_28", "manylinux_2_27", "manylinux2014"]),
    "aarch64-musl": ("aarch64-linux-musl", "arm64", ["musllinux_1_2", "musllinux_1_1"]),
    "x86_64-musl": ("x86_64-linux-musl", "amd64", ["musllinux_1_2", "musllinux_1_1"]),
}
NEEDS = ["numpy", "pytest", "pytest-timeout", "hypothesis", "cloudpickle"]
TESTS = ["tests/core", "tests/reductions", "tests/channel", "tests/contract", "--ignore=tests/contract/programs"]
TIMEOUT = 600  # emulated, a test takes about twenty times as long


def install(root: Path, system: str) -> None:
    """Build the packages' wheels for *system*, and install them, and what the tests need, in the chroot."""
    target, _, platforms = SYSTEMS[system]
    wheels = root / "wheels"
    wheels.mkdir()
    for package in PACKAGES:
        source, name = ROOT / "packages" / package, package.replace("-", "_")
        if name in COMPILED:
            other_wheels.build(target, name, source, wheels)
        else:
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels)]
            subprocess.run([*command, str(source)], check=True, env=build_environment(), stdout=subprocess.DEVNULL)
    machine = system.partition("-")[0]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(root / SITE), "--only-binary=:all:"]
    pip += ["--python-version", PYTHON, "--implementation=cp", *(f"--platform={name}_{machine}" for name in platforms)]
    # Without mp-cuda's bindings: there is no GPU to emulate.
    subprocess.run([*pip, "--find-links", str(wheels), "mp-core", "mp-reductions", "mp-spawn", *NEEDS], check=True)
    rest = [
        str(path)
        for path in wheels.glob("mp_*")
        if path.name.startswith(("mp_pool", "mp_nodes", "mp_cuda", "mp_torch", "mp_all"))
    ]
    subprocess.run([*pip, "--no-deps", *rest], check=True)


def main() -> None:
    work, system, asked = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    debian = SYSTEMS[system][1]
    machine, libc = system.split("-")
    check_machine()
    begun = time.monotonic()
    with ExitStack() as stack:
        root = stack.enter_context(empty_folder(system, work))
        name = f"Debian {SUITE} for {debian}"
        if debian == "arm64":
            qemu = install_emulator(stack.enter_context(empty_folder("emulator", work)), SUITE)
            stack.enter_context(programs_emulated(qemu))
            name += f", {version(qemu)}"
        packages = f"{DEBIAN} {musl_python.DEBIAN}" if libc == "musl" else DEBIAN
        bootstrap(root, SUITE, packages, f"--arch={debian}")
        copy_sources(root / "src")
        install(root, system)
        chroot = Chroot(root)
        if libc == "musl":
            name += f", {musl_python.install(chroot, machine, PYTHON, root / SITE)}"
        chroot.must("python3", "-m", "mp_all")
        pytest = ["python3", "-m", "pytest", "-o", "faulthandler_timeout=0", "--timeout", str(TIMEOUT)]
        code = chroot.run(*pytest, *(asked or TESTS))
    print(f"{name}: {time.monotonic() - begun:.0f} s in all")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
