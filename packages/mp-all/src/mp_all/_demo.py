"""The command `mp-all demo`: one small program on multiprocessing and on mp_all, and how much faster that is here.

The program maps a function over arrays with a pool, several times: a script makes one such call, a service many.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT, MIB, WORKERS, CALLS = 8, 16, 2, 3
PROGRAM = f"""\
import {{module}} as multiprocessing
import numpy as np, time

def brighten(picture):
    return picture + np.uint8(1)

if __name__ == "__main__":
    pictures = [np.ones(({MIB}, 1024, 1024), "u1") for _ in range({COUNT})]
    with multiprocessing.Pool({WORKERS}) as pool:
        for _ in range({CALLS}):
            start = time.perf_counter()
            results = pool.map(brighten, pictures)
            print(time.perf_counter() - start)
            assert all(result.min() == result.max() == 2 for result in results)
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="mp-all demo", description="Run one small program on multiprocessing and on mp_all, and compare the times."
    )
    parser.add_argument("--timeline", metavar="PATH", help="write where the time of the run on mp_all went")
    chosen = parser.parse_args(arguments)
    print(PROGRAM.format(module="mp_all"))
    found = {}
    for module in ("multiprocessing", "mp_all"):
        timeline = chosen.timeline if module == "mp_all" else ""
        first, *others = seconds(module, os.path.abspath(timeline) if timeline else "")
        found[module] = first, min(others)
        print(f"{module:>15}: {1000 * first:5.0f} ms for the first call, {1000 * min(others):5.0f} ms for a later one")
    cold, warm = (before / after for before, after in zip(*found.values(), strict=True))
    print(
        f"\nOn this machine mp_all is {cold:.1f} times as fast in the first call and {warm:.0f} times in a later one."
    )
    if chosen.timeline:
        print(f"Where the time went: {chosen.timeline}")
    return 0


def seconds(module: str, timeline: str = "") -> list[float]:
    """Return the seconds of each call of the program on *module*, which runs as if nothing were set for it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MP_ALL", "MP_TIMELINE")}
    if timeline:
        environment["MP_TIMELINE"] = timeline
    with tempfile.TemporaryDirectory(prefix="mp-all-demo-") as folder:
        file = Path(folder, f"on_{module}.py")
        file.write_text(PROGRAM.format(module=module), encoding="utf-8")
        command = [sys.executable, str(file)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return [float(line) for line in done.stdout.splitlines() if line.replace(".", "").isdigit()]
