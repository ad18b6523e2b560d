"""Run the pipeline on `multiprocessing` and on `mp_all`, in turns, and compare speed and results."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from job import add_options, grid_of
from picture import save_pictures

HERE = Path(__file__).parent
LIBRARIES = "multiprocessing", "mp_all"
FILTERS = {"sharpen": "sharpen", "touch": "transport only"}
LIMIT = 120  # seconds for one run, which normally takes a few
GRACE = 10  # seconds for a run to end its processes


class Measured(NamedTuple):
    """MB/s of each library with one filter, and the hash that all results have in common."""

    speeds: dict[str, float]
    sha256: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "output", help="folder for the pictures")
    parser.add_argument("--rounds", type=int, default=2)
    add_options(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        compare(options)
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None


def compare(options: argparse.Namespace) -> None:
    """Do all the runs, save the pictures, and print the comparison."""
    print_setting(options)
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="tiles-", dir=options.out) as scratch:
        mosaics = {library: Path(scratch, f"{library}.npy") for library in LIBRARIES}
        for name in FILTERS:
            found[name] = measure(name, mosaics, options)
            if name == "sharpen":
                sky = np.load(mosaics["mp_all"], mmap_mode="r")
                pictures = save_pictures(sky, grid_of(options), options.out)
    print_table(found, options.rounds)
    print(f"\nall results equal, bit for bit (sharpened sky: sha256 {found['sharpen'].sha256[:16]}…)")
    for picture in pictures:
        print(f"saved {picture}")


def measure(name: str, mosaics: dict[str, Path], options: argparse.Namespace) -> Measured:
    """Run both programs in turns, check that every result is the same, and take the medians."""
    speeds: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    hashes = set()
    for i in range(options.rounds):
        for library in LIBRARIES:
            outcome = run_once(library, name, mosaics[library], options)
            hashes.add(outcome["sha256"])
            speed = outcome["megabytes"] / outcome["seconds"]
            speeds[library].append(speed)
            print(f"round {i + 1}   {FILTERS[name]:15}{library:16}{speed:6.0f} MB/s", flush=True)
    one, other = (np.load(mosaics[library], mmap_mode="r") for library in LIBRARIES)
    if len(hashes) != 1 or not np.array_equal(one, other):
        raise SystemExit(f"error: the results of {name!r} differ: {sorted(hashes)}")
    medians = {library: statistics.median(speeds[library]) for library in LIBRARIES}
    return Measured(medians, hashes.pop())


def run_once(library: str, name: str, mosaic: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one of the two programs in a fresh process and return its report."""
    command = [sys.executable, str(HERE / f"with_{library}.py"), "--filter", name, "--mosaic", str(mosaic)]
    for option in "start", "workers", "rows", "columns", "size":
        command += [f"--{option}", str(getattr(options, option))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            report, _ = child.communicate(timeout=LIMIT)
        except BaseException:
            # Ctrl-C has reached the child too. It needs a moment to end its own processes.
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    if child.returncode:
        raise SystemExit(f"error: with_{library}.py ended with exit code {child.returncode}")
    outcome: dict[str, Any] = json.loads(report)
    return outcome


def print_setting(options: argparse.Namespace) -> None:
    """Print the programs, the job and the machine."""
    plain, shared = (HERE.joinpath(f"with_{library}.py").read_text().splitlines() for library in LIBRARIES)
    print("two programs that differ in one line:")
    for line in difflib.ndiff(plain, shared):
        if line.startswith(("-", "+")):
            print(f"    {line}")
    side = options.size + 2 * grid_of(options).halo
    tiles = options.rows * options.columns
    print(f"{tiles} tiles of {side} x {side} x 3 float32, {side * side * 12 / 1e6:.1f} MB each")
    print(f"reader, {options.workers} workers, collector; start method {options.start}")
    print(f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}\n", flush=True)


def print_table(found: dict[str, Measured], rounds: int) -> None:
    """Print throughput per filter and library, their ratio, and the share of time that is transport."""
    print(f"\n{'':20}" + "".join(f"{library:>18}" for library in LIBRARIES) + f"{'ratio':>10}")
    for name, title in FILTERS.items():
        plain, shared = (found[name].speeds[library] for library in LIBRARIES)
        print(f"{title:20}{plain:13.0f} MB/s{shared:13.0f} MB/s{shared / plain:9.2f}x")
    shares = (found["sharpen"].speeds[library] / found["touch"].speeds[library] for library in LIBRARIES)
    print(f"{'share of transport':20}" + "".join(f"{share:18.0%}" for share in shares))
    print(f"median of {rounds} rounds; MB of finished picture per second, first tile to last")


def processor() -> str:
    """Return the name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
