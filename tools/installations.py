"""Install the packages in dist/ into empty environments, without an index, and test them there.

A cell is an interpreter, a package and a NumPy: a fresh environment gets the package by
`pip install --no-index --find-links dist`, and tests/packaging/alone.py runs in it. Dependencies (NumPy,
cffi) are downloaded once for each interpreter.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tools.distributions import COMPILED, PACKAGES

ROOT = Path(__file__).parents[1]
PYTHONS = ["3.11", "3.12", "3.13"]
ALONE = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-nodes", "mp-cuda", "mp-torch", "mp-all"]
NUMPY = ["mp-reductions", "mp-all"]  # packages that are also tested with the lowest NumPy
LOWEST = "numpy==1.26.*"
HAVE_LOWEST = ["3.11", "3.12"]  # interpreters with wheels of this NumPy


class Cell(NamedTuple):
    """One installation that must work."""

    python: str
    package: str
    numpy: str | None = None  # a requirement beside the package; otherwise the newest is installed

    def __str__(self) -> str:
        return f"{self.package} on Python {self.python}" + (f" with {self.numpy}" if self.numpy else "")


def cells(pythons: list[str], short: bool) -> list[Cell]:
    """
    Return the cells to test; the short form is mp-all, and mp-spawn without NumPy, on the first interpreter.
    """
    if short:
        return [Cell(pythons[0], "mp-spawn"), Cell(pythons[0], "mp-all")]
    return [
        *(Cell(python, package) for python, package in itertools.product(pythons, ALONE)),
        *(Cell(*cell, LOWEST) for cell in itertools.product(pythons, NUMPY) if cell[0] in HAVE_LOWEST),
    ]


def quietly(*command: str) -> str:
    """
    Run a command and return its output; if it fails, end the program with the output.
    """
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=900
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def environment(python: str, folder: Path) -> str:
    """
    Make an empty environment of that Python in *folder*, and return its interpreter.
    """
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        raise SystemExit(f"python{python} is not installed: name installed ones with --python")
    shutil.rmtree(folder, ignore_errors=True)
    quietly(interpreter, "-m", "venv", "--without-pip", str(folder))
    return str(folder / "bin" / "python")


def pip(python: str, *args: str) -> None:
    quietly(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", *args)


def download(python: str, work: Path, dist: Path, wanted: list[Cell]) -> None:
    """
    Download the wheels of all dependencies, for that Python, into a folder of *work*.
    """
    interpreter, house = environment(python, work / "venv"), work / f"wheels-{python}"
    for numpy in sorted({cell.numpy for cell in wanted if cell.python == python}, key=str):
        names = sorted({cell.package for cell in wanted if (cell.python, cell.numpy) == (python, numpy)})
        extra = [numpy] if numpy else []
        pip(
            interpreter,
            "download",
            "-q",
            "--only-binary=:all:",
            "-d",
            str(house),
            "--find-links",
            str(dist),
            *names,
            *extra,
        )
    for ours in house.glob("mp_*"):
        ours.unlink()  # always from dist itself


def try_cell(cell: Cell, dist: Path, house: Path, folder: Path) -> str:
    python = environment(cell.python, folder)
    asked = [cell.package, *([cell.numpy] if cell.numpy else [])]
    pip(python, "install", "-q", "--no-index", "--find-links", str(dist), "--find-links", str(house), *asked)
    said = quietly(python, str(ROOT / "tests" / "packaging" / "alone.py"), cell.package)
    shutil.rmtree(folder)
    return "; ".join(said.splitlines())


def from_sdists(package: str, dist: Path, folder: Path) -> None:
    """
    Install *package* from the sdists in *dist*, with an index for the rest, and test it on this interpreter.
    """
    python = environment(f"{sys.version_info.major}.{sys.version_info.minor}", folder)
    # pip's cache knows a wheel by the path of its sdist, also when that is another one by now.
    ours = ("--no-cache-dir", "--find-links", str(dist), "--no-binary", ",".join(PACKAGES))
    pip(python, "install", "-q", *ours, package)
    subprocess.run([python, str(ROOT / "tests" / "packaging" / "alone.py"), package], check=True)
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--python", action="append", help=f"an interpreter, X.Y; by default {', '.join(PYTHONS)}")
    parser.add_argument("--short", action="store_true", help="mp-all and mp-spawn on one interpreter")
    parser.add_argument(
        "--sdist", metavar="PACKAGE", help="that package alone, from sdists, with an index for the rest"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "installations", help="folder for downloads")
    args = parser.parse_args()
    dist, work = args.dist.resolve(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if args.sdist:
        from_sdists(args.sdist, dist, work / "venv")
        return
    wanted = cells(args.python or PYTHONS, args.short)
    ours = f"*manylinux*_{platform.machine()}.whl"
    compiled = sorted(path.name for package in COMPILED for path in dist.glob(f"{package}-{ours}"))
    for python in sorted({cell.python for cell in wanted}):
        download(python, work, dist, wanted)
    for cell in wanted:
        begun = time.monotonic()
        said = try_cell(cell, dist, work / f"wheels-{cell.python}", work / "venv")
        print(f"ok  {cell} ({time.monotonic() - begun:.0f} s): {said}", flush=True)
    print(f"{len(wanted)} installations, all with {' and '.join(compiled)}")


if __name__ == "__main__":
    main()
