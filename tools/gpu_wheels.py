"""Fill a folder with all wheels that `tools.gpu` needs on a machine without a network: `nox -s gpu-wheels`.

The folder has the packages of this repository, and what they and the tests need, for one Python or several. Packages
that the machine has can be left out by name, which makes the folder small: `nox -s gpu-wheels -- --without numpy`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tools.distributions import PACKAGES, ROOT, build_environment

NEEDS = ["mp-all[cuda]", "numpy", "pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "joblib>=1.4"]
# pip takes each of these literally: a wheel for an older glibc has another name.
GLIBCS = ["2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34"]
MIB = 2**20


def build(to: Path) -> None:
    """Build the wheels of this repository against an old glibc, for every Python that they support."""
    for name in PACKAGES:
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(to)]
        subprocess.run(
            [*command, str(ROOT / "packages" / name)], check=True, env=build_environment(), stdout=subprocess.DEVNULL
        )


def download(to: Path, python: str, more: list[str]) -> None:
    """Download what the packages and the tests need on that Python."""
    platforms = [f"manylinux_{glibc}_x86_64" for glibc in GLIBCS] + ["manylinux2014_x86_64", "linux_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(to), "--find-links", str(to)]
    command += ["--only-binary=:all:", "--implementation=cp", "--python-version", python]
    command += [f"--platform={platform}" for platform in platforms]
    subprocess.run([*command, *NEEDS, *more], check=True)


def name_of(wheel: Path) -> str:
    """
    Return the name of the package in a wheel's file name.

    >>> name_of(Path("cuda_bindings-13.0.3-cp312-cp312-manylinux_2_24_x86_64.whl"))
    'cuda-bindings'
    """
    return wheel.name.partition("-")[0].replace("_", "-").lower()


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s gpu-wheels --", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", help="X.Y of the other machine; this one's if it is left out")
    parser.add_argument("--with", action="append", default=[], dest="more", help="one more package, such as numba-cuda")
    parser.add_argument("--without", action="append", default=[], help="a package that the other machine has")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build(folder)
    for python in asked.python or [f"{sys.version_info.major}.{sys.version_info.minor}"]:
        download(folder, python, asked.more)
    for wheel in folder.glob("*.whl"):
        if name_of(wheel) in asked.without:
            wheel.unlink()
    wheels = sorted(folder.glob("*.whl"), key=lambda wheel: wheel.stat().st_size)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / MIB:8.2f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / MIB:8.2f} MiB  in all, in {folder}")


if __name__ == "__main__":
    main()
