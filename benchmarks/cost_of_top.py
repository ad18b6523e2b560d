"""Measure what `python -m mp_all top` costs four busy processes: `python -m benchmarks.cost_of_top [--rounds N]`.

Two pairs of processes exchange new arrays of 1 MiB. Windows of a second take turns: in one `top` looks 20 times as
often as by default, in the next it is stopped. Each window gives the processor time of the four processes and their
manager for each message: on a machine that others use too it says more than a rate. A twentieth of the difference is
the cost.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mp_all as mp
from mp_all._report import report_of_others

OFTEN = 20
INTERVAL = 2.0  # the default of top


def exchange(there: Any, back: Any, count: Any) -> None:
    """Receive arrays and send new ones, for ever."""
    while True:
        array = there.get()
        back.put(array + 1)
        with count.get_lock():
            count.value += 1


def processor_time(*pids: int) -> float:
    """Return the seconds of processor time that the processes have used, to the nanosecond."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def start_pairs(count: Any) -> tuple[list[Any], list[Any]]:
    """Start two pairs of processes that exchange arrays; returns them and their queues."""
    ctx = mp.get_context("spawn")
    children: list[Any] = []
    queues: list[Any] = []
    for _ in range(2):
        a, b = ctx.SimpleQueue(), ctx.SimpleQueue()
        queues += [a, b]
        children += [ctx.Process(target=exchange, args=ends, daemon=True) for ends in ((a, b, count), (b, a, count))]
        for _ in range(4):
            a.put(np.zeros(1 << 17))
    for child in children:
        child.start()
    return children, queues


def manager_of(pid: int) -> int:
    """Return the pid of the manager that serves the process *pid*."""
    report = report_of_others()
    (session,) = {process["session"] for process in report["processes"] if process["pid"] == pid}
    return next(int(each["manager"]) for each in report["sessions"] if each["id"] == session)


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    count = mp.get_context("spawn").Value("q", 0)
    children, _queues = start_pairs(count)
    while count.value < 1000:
        time.sleep(0.1)
    pids = [child.pid for child in children]
    pids.append(manager_of(pids[0]))
    command = [sys.executable, "-m", "mp_all", "top", "--plain", "--interval", str(INTERVAL / OFTEN)]
    view = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(3)  # its start is not its cost
    per_message: dict[bool, list[float]] = {True: [], False: []}
    of_manager: dict[bool, float] = {True: 0, False: 0}
    own = 0.0
    for number in range(2 * options.rounds):
        watched = number % 4 in (1, 2)  # in turns, and each as often first as second
        os.kill(view.pid, signal.SIGCONT if watched else signal.SIGSTOP)
        time.sleep(0.05)
        before, messages = processor_time(*pids), count.value
        manager, seen = processor_time(pids[-1]), processor_time(view.pid)
        time.sleep(1)
        per_message[watched].append((processor_time(*pids) - before) / (count.value - messages))
        of_manager[watched] += processor_time(pids[-1]) - manager
        own += processor_time(view.pid) - seen if watched else 0
    view.kill()
    view.wait()
    pairs = [1 - b / a for a, b in zip(per_message[True], per_message[False], strict=True)]
    alone = statistics.median(per_message[False])
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 / OFTEN
    print(f"{1e6 * alone:.1f} µs of processor time a message, {options.rounds} pairs of windows")
    print(f"of it for top: {100 * statistics.median(pairs) / OFTEN:+.3f} % (standard error {100 * error:.3f} %)")
    extra = (of_manager[True] - of_manager[False]) / options.rounds / OFTEN
    print(f"the manager works for top {1e3 * extra:.3f} ms a second")
    print(f"top itself uses {100 * own / options.rounds / OFTEN:.2f} % of a processor")
    for child in children:
        child.kill()
        child.join()


if __name__ == "__main__":
    main()
