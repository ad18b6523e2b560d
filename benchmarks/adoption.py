"""Measure the programs of examples/adoption beside the usual way: python -m benchmarks.adoption [--rounds N]

Each program runs both ways in turns. It prints the medians of the time that the program measures, and of the most
memory that its processes had at one time (PSS: shared pages count once). With --processor-time the program measures
the processor time of all its processes, which depends less on what else the machine runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path

from tqdm import tqdm

FOLDER = Path(__file__).parents[1] / "examples" / "adoption"
CLOCK = Path(__file__).parent / "processor_clock"
PROGRAMS = {
    "gymnasium: 60 steps of two cameras, 6 MB": (["vector_env.py"], ["-m", "mp_all", "vector_env.py"]),
    "stable-baselines3: the same": (["stable_baselines.py"], ["-m", "mp_all", "stable_baselines.py"]),
    "tianshou: the same": (["tianshou_env.py"], ["-m", "mp_all", "tianshou_env.py"]),
    "PettingZoo: 30 steps, 4 players, 6 MB": (["petting_zoo.py"], ["-m", "mp_all", "petting_zoo.py"]),
    "joblib: 40 results of 13 MB": (["joblib_tiles.py"], ["joblib_tiles.py", "mp_all"]),
    "scikit-learn: cross_val_predict of 32 MB": (["sklearn_predict.py"], ["sklearn_predict.py", "mp_all"]),
    "dask: 10 blocks of 32 MB": (["dask_blocks.py"], ["dask_blocks.py", "mp_all"]),
}


def tree(pid: int) -> list[int]:
    """Return *pid* and its descendants."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return [pid, *(each for child in children for each in tree(child))]


def memory(pid: int) -> float:
    """Return the bytes of a process and its descendants."""
    total = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, ProcessLookupError):
            pass  # it has ended
    return total


def measured(arguments: list[str], clock: dict[str, str]) -> tuple[float, float]:
    """Run a program; return the seconds that it prints, and the most bytes that its processes had."""
    command, environment = [sys.executable, *arguments], os.environ | clock
    process = subprocess.Popen(command, cwd=FOLDER, env=environment, stdout=subprocess.PIPE, text=True)
    ended, most = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.2):
            try:
                most[0] = max(most[0], memory(process.pid))
            except OSError:
                pass  # it ended meanwhile

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = process.communicate(timeout=300)[0]
    ended.set()
    watcher.join()
    assert process.returncode == 0, arguments
    return float(out.split()[-2]), most[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--processor-time", action="store_true", help="the processor time of all processes")
    options = parser.parse_args()
    clock = {"PYTHONPATH": str(CLOCK)} if options.processor_time else {}
    programs = {name: ways for name, ways in PROGRAMS.items() if options.only in name}
    print(f"{'':<43}{'usual':>9}{'mp_all':>9}{'times faster':>14}{'memory':>10}{'mp_all':>9}")
    for name, ways in tqdm(programs.items(), disable=None, leave=False):
        runs = [[measured(way, clock) for way in ways] for _ in range(options.rounds)]
        usual, ours = (statistics.median(run[way][0] for run in runs) for way in (0, 1))
        before, after = (statistics.median(run[way][1] for run in runs) for way in (0, 1))
        times = f"{usual:>7.2f} s{ours:>7.2f} s{usual / ours:>14.1f}"
        print(f"{name:<43}{times}{before / 1e6:>7.0f} MB{after / 1e6:>6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
