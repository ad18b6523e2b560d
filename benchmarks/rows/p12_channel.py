"""P12: a round trip of a small message: each process on its own core, both on one, and beside four busy processes.

mp-all carries it through a ring in shared memory; with `MP_CHANNEL=0` it goes through a pipe. The bound on two cores is
pickle and the interpreter; on one core it is the switch from one process to the other. Beside busy processes a spin
would take the time that the other process needs. The raw pipe has no pickle and is the floor of what sleeps.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.samples import Line

PEERS = ("ours", "stdlib", "faster-fifo", "iceoryx2", "raw pipe")
NOTE = "with ordinary pipes (MP_CHANNEL=0)" if os.environ.get("MP_CHANNEL") == "0" else ""
BUSY = 4
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"


def measure(bench: Bench) -> list[Line]:
    cores = os.sched_getaffinity(0)
    lines = []
    for what, kind, size, limit in (("an int", "int", 0, 0.2), ("an array of 200 B", "fresh", 200, 0.25)):
        lines.append(measured(bench, what, work.round_trips, (kind, size, 200), limit))
    what, pickling = "a dict with an array of 64 KiB", PEERS[:3]
    lines.append(measured(bench, what, work.round_trips, ("record", 64 << 10, 50), 0.25, pickling))
    lines.append(measured(bench, "an int, on one core", work.round_trips_on, ({min(cores)}, {min(cores)}, 500), 1.1))
    with busy_processes(BUSY):
        what = "an int, beside four busy processes"
        lines.append(measured(bench, what, work.round_trips_on, (cores, cores, 100), 1.1))
    return lines


def measured(
    bench: Bench, what: str, function: object, args: tuple[object, ...], limit: float, peers: tuple[str, ...] = PEERS
) -> Line:
    tasks = [Task(peer, peer, function, args) for peer in peers]  # type: ignore[arg-type]
    line = Line("P12", f"round trip, {what}", bench.in_turns(f"P12 {what}", tasks, 15), note=NOTE)
    line.claim_ratio("ours / stdlib", "ours", "stdlib", limit)
    return line


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep *count* processes busy; they end with the block or with this process."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
