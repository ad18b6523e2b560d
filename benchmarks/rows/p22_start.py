"""P22 to P25: what a program pays before its first message: imports, processes, pools, memory.

Every figure is of a fresh program (`start_program.py`), since a driver has imported everything already. The bound is
the standard library's own start: these packages are imported on top of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours", "stdlib")
PROGRAM = Path(__file__).parent.parent / "start_program.py"
IMPORTS = {"ours": "import mp_all", "stdlib": "import multiprocessing"}
# Programs that import nothing of ours themselves.
UNCHANGED = "import multiprocessing"


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P22 to P25.
    """
    lines = [imported(bench), unchanged(bench, "-m"), unchanged(bench, "MP_ALL=1")]
    for row, scene, limits in (
        ("P23", "process", {"fork": 1.1, "spawn": 1.15, "forkserver": 0.6}),
        ("P24", "pool", {"fork": 0.8, "spawn": 1.0, "forkserver": 0.6}),
        ("P24", "ended", {"fork": 1.0}),
    ):
        what = {
            "process": "an empty function in a process",
            "pool": "Pool(2), a small map, its end",
            "ended": "close and join of an idle Pool(2), terminate and join of another",
        }[scene]
        lines += [compared(bench, row, f"{what}: {method}", scene, method, most) for method, most in limits.items()]
    lines.append(compared(bench, "P25", "a program that logs through a queue", "whole", "spawn", 1.1))
    lines.append(compared(bench, "P25", "its memory", "logged", "spawn", 1.15, unit="B"))
    return lines


def compared(bench: Bench, row: str, what: str, scene: str, argument: str, most: float, unit: str = "s") -> Line:
    """Return a line with the ratio to the standard library's."""
    samples = bench.in_turns(f"{row} {what}", [Task(p, p, run, (scene, argument)) for p in PEERS], 7)
    for sample in samples.values():
        sample.unit = unit
    line = Line(row, what, samples)
    line.claim_ratio("ours / stdlib", "ours", "stdlib", most)
    return line


def imported(bench: Bench) -> Line:
    """Return the line of the import."""
    samples = bench.in_turns("P22 import", [Task(p, p, interpreter, (["-c", IMPORTS[p]],)) for p in PEERS], 21)
    line = Line("P22", "a program that only imports", samples)
    line.claims += added("added by the import, in ms", samples["ours"], samples["stdlib"], 12)
    return line


def unchanged(bench: Bench, how: str) -> Line:
    """Return the line of a program whose import is not changed."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "nothing.py")
        script.write_text(UNCHANGED)
        ours = ["-m", "mp_all", str(script)] if how == "-m" else [str(script)]
        env = {"MP_ALL": "1"} if how != "-m" else {}
        tasks = [
            Task("ours", "ours", interpreter, (ours, env)),
            Task("stdlib", "stdlib", interpreter, ([str(script)],)),
        ]
        samples = bench.in_turns(f"P22 {how}", tasks, 21)
    command = "python -m mp_all nothing.py" if how == "-m" else "MP_ALL=1 python nothing.py"
    line = Line("P22", command, samples)
    line.claims += added("added, in ms", samples["ours"], samples["stdlib"], 37 if how == "-m" else 25)
    return line


def added(text: str, ours: Sample, theirs: Sample, most: float) -> list[Claim]:
    if not (ours.values and theirs.values):
        return []
    return [Claim(text, 1e3 * (ours.median - theirs.median), most)]


def interpreter(stage: Stage, arguments: list[str], env: dict[str, str] | None = None) -> float:
    """Return the seconds that a Python with these arguments takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdin=subprocess.DEVNULL, env=environment(env))
    return time.perf_counter() - begin


def run(stage: Stage, scene: str, argument: str) -> float:
    """Return the result of a scene in a fresh program; of the scene "whole", the seconds of the whole program."""
    whole = scene == "whole"
    command = [sys.executable, str(PROGRAM), stage.peer.module, "logged" if whole else scene, argument]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(None))
    return time.perf_counter() - begin if whole else float(done.stdout)


def environment(more: dict[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MP_")} | (more or {})
