"""Measure what ``mp_all.pth`` costs at the start of a Python without ``MP_ALL=1``: python -m benchmarks.startup

Python reads the file and runs its line. This program does the same with `site.addpackage`, as Python does it.
"""

from __future__ import annotations

import os
import site
import statistics
import sysconfig
import time
from pathlib import Path

ROUNDS = 20_000


def main() -> None:
    folder, name = sysconfig.get_path("purelib"), "mp_all.pth"
    os.environ.pop("MP_ALL", None)
    line = Path(folder, name).read_text().splitlines()[1]
    costs: dict[str, list[float]] = {"the file and its line": [], "the line alone": []}
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        site.addpackage(folder, name, set())
        middle = time.perf_counter()
        exec(line)
        costs["the file and its line"].append(middle - begin)
        costs["the line alone"].append(time.perf_counter() - middle)
    for what, seconds in costs.items():
        print(f"{what}: {1e6 * statistics.median(seconds):.1f} µs (first: {1e6 * seconds[0]:.1f} µs)")


if __name__ == "__main__":
    main()
