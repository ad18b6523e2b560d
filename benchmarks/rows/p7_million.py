"""P7: a million live shared arrays in a process that may open 64 descriptors.

The bound: the 64 bytes of a cache line that other processes need in order to find and free a block, and the
Python object that holds it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours",)
COUNT, NBYTES, DESCRIPTORS = 1_000_000, 64, 64


def measure(bench: Bench) -> list[Line]:
    if not bench.has("ours"):
        return []
    count = max(10_000, int(COUNT * min(1.0, bench.scale)))
    try:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.rows.p7_million", str(count)],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        found = json.loads(run.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        bench.failed["P7"] = getattr(error, "stderr", "") or str(error)
        return []
    lines = []
    for what, unit, limit in (("descriptors", "", 16), ("mappings", "", 200), ("bookkeeping", " B", 150)):
        lines.append(
            Line(
                "P7",
                f"{count:,} shared arrays, ulimit -n {DESCRIPTORS}: {what}",
                {"ours": Sample([found[what]], unit)},
                [Claim(what + (" each, in bytes" if unit else ""), found[what], limit)],
            )
        )
    lines[-1].note = f"made at {count / found['seconds'] / 1e3:,.0f} thousand a second"
    return lines


def main(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    import time

    import numpy as np

    import mp_all as mp

    # "Beyond the ndarray" counts from an ndarray object that owns nothing. Both lists have their full length
    # before the first reading: a list that grows is copied, and malloc may or may not give the old one back.
    room = bytearray(NBYTES)
    plain = np.full(count, None)
    plain[0] = np.ndarray(NBYTES, np.uint8, room)
    before = resident()
    for i in range(count):
        plain[i] = np.ndarray(NBYTES, np.uint8, room)
    object_itself = (resident() - before) / count

    shared = np.full(count, None)
    shared[0] = mp.shared.zeros(NBYTES, np.uint8)
    descriptors, mappings, before = open_descriptors(), mapped(), resident()
    start = time.perf_counter()
    for i in range(count):
        shared[i] = mp.shared.zeros(NBYTES, np.uint8)
    seconds = time.perf_counter() - start
    each = (resident() - before) / count
    for x in shared:  # the pages exist, and are not only promised
        x[0] = 1
    each = max(each, (resident() - before) / count)
    print(
        json.dumps(
            {
                "descriptors": mp.memory_stats()["descriptors"] + open_descriptors() - descriptors,
                "mappings": mp.memory_stats()["mappings"] + max(0, mapped() - mappings),
                "bookkeeping": each - object_itself - NBYTES,
                "seconds": seconds,
            }
        )
    )


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped() -> int:
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


def resident() -> int:
    with open("/proc/self/status") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


if __name__ == "__main__":
    main(int(sys.argv[1]))
