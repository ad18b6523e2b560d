"""P21: the memory of a million dicts that eight forked workers read, in `shared.frozen` and in a plain list.

The bound: one copy. Each measurement is a program of its own; the memory is that of all its processes (Pss), less that
of the same program with a thousand dicts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.bench import Bench
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours",)
COUNT, FEW, WORKERS = 1_000_000, 1_000, 8


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P21.
    """
    if not bench.has("ours"):
        return []
    count = max(20_000, int(COUNT * min(1.0, bench.scale)))
    try:
        (frozen, few), (plain, few_plain) = [[program(kind, n) for n in (count, FEW)] for kind in ("frozen", "plain")]
    except (subprocess.SubprocessError, ValueError) as error:
        bench.failed["P21"] = getattr(error, "stderr", "") or str(error)
        return []
    name = f"{count:,} dicts, {WORKERS} workers that read all"
    used, used_plain = frozen["memory"] - few["memory"], plain["memory"] - few_plain["memory"]
    line = Line("P21", f"{name}: memory", {"ours": Sample([used], "B"), "stdlib": Sample([used_plain], "B")})
    line.claims.append(Claim("memory / one frozen copy", used / frozen["copy"], 1.1))
    line.note = f"one frozen copy: {frozen['copy'] / 1e6:.0f} MB; stdlib: a plain list"
    access = Line("P21", f"{count:,} dicts: one random item", {"ours": Sample(frozen["access"])})
    access.claims.append(Claim("an access, in µs", access.samples["ours"].median * 1e6, 5))
    return [line, access]


def program(kind: str, count: int) -> dict[str, Any]:
    """Run this module as a program."""
    command = [sys.executable, "-m", "benchmarks.rows.p21_frozen", kind, str(count)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def annotation(k: int) -> dict[str, object]:
    """
    Return one item, as of a data set of images.
    """
    return {"image": f"train/{k:09}.jpg", "id": k, "box": [k % 640, k % 480, 32.5, 48.25], "label": k % 80}


def main(kind: str, count: int) -> None:
    """
    Print the memory of the program and its workers, of one copy, and the time of an access.
    """
    import random

    import mp_all as mp

    context = mp.get_context("fork")
    data = [annotation(k) for k in range(count)]
    copy = 0
    if kind == "frozen":
        before = mp.memory_stats()["live_bytes"]
        data = mp.shared.frozen(data)
        copy = mp.memory_stats()["live_bytes"] - before
    here, there = context.Pipe()
    leave = context.Event()
    workers = [context.Process(target=read, args=(data, there, leave)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert here.recv() == count
    memory = sum(pss(pid) for pid in [os.getpid(), *(worker.pid for worker in workers if worker.pid)])
    leave.set()
    for worker in workers:
        worker.join()
    chance = random.Random(21)
    access = []
    for _ in range(500):
        rows = [chance.randrange(count) for _ in range(100)]
        start = time.perf_counter()
        for row in rows:
            data[row]
        access.append((time.perf_counter() - start) / len(rows))
    print(json.dumps({"memory": memory, "copy": copy, "access": access}))


def read(data: object, answers: object, leave: object) -> None:
    """Read all items, answer with their number, and stay until told to leave."""
    seen = sum(1 for item in data if item["id"] >= 0)  # type: ignore[attr-defined]
    answers.send(seen)  # type: ignore[attr-defined]
    leave.wait()  # type: ignore[attr-defined]


def pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
