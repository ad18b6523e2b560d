"""A million shared arrays live at once with 64 descriptors: few segments, not one kernel object per array."""

from __future__ import annotations

import json
import os
import subprocess

from scene import python, runtime_folder

MILLION = """
import json, os, re, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
import mp_all as mp

def used():
    status = open("/proc/self/status").read()
    return sum(int(n) for n in re.findall(r"Rss(?:Anon|Shmem):\\s+(\\d+) kB", status)) * 1024

def look(reader, writer):
    a = reader.recv()
    a += 1
    writer.send(len(os.listdir("/proc/self/fd")))

if __name__ == "__main__":
    mp.set_start_method("fork")
    N, ITEMS = 1_000_000, 8
    # What an ndarray that owns nothing costs, its dimensions included.
    room, plain = np.empty(ITEMS), [None] * 100_000
    before = used()
    for i in range(len(plain)):
        plain[i] = np.ndarray(ITEMS, float, room)
    ndarray = (used() - before) / len(plain)
    arrays = [mp.shared.empty(ITEMS)]
    arrays.extend([None] * (N - 1))
    before, maps = used(), len(open("/proc/self/maps").readlines())
    fds = len(os.listdir("/proc/self/fd"))
    for i in range(1, N):
        arrays[i] = a = mp.shared.empty(ITEMS)
        a[0] = i
    there, back = mp.Pipe(), mp.Pipe()
    each = (used() - before) / (N - 1) - ITEMS * 8 - ndarray
    child = mp.Process(target=look, args=(there[0], back[1]))
    child.start()
    there[1].send(arrays[-1])
    theirs = back[0].recv()
    child.join()
    print(json.dumps({
        "descriptors": len(os.listdir("/proc/self/fd")),
        "more descriptors": len(os.listdir("/proc/self/fd")) - fds,
        "theirs": theirs,
        "more mappings": len(open("/proc/self/maps").readlines()) - maps,
        "bytes each": each,
        "intact": arrays[-1][0] == N and all(arrays[i][0] == i for i in range(1, N - 1)),
    }, default=bool))
"""


def test_a_million_arrays_under_a_limit_of_64_descriptors(strategy: str) -> None:
    with runtime_folder() as folder:
        environment = os.environ | {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
        done = subprocess.run(python("-c", MILLION), env=environment, capture_output=True, text=True, timeout=110)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        seen = json.loads(done.stdout)
        assert seen["intact"], seen
        assert seen["descriptors"] <= 16 + 6, seen  # six belong to the pipes: four ends and two rings
        assert seen["theirs"] <= 16 + 6, seen
        # The interpreter and NumPy alone have some 230; glibc's heaps grow in pieces.
        assert seen["more mappings"] <= 100, seen
        assert seen["bytes each"] <= 150, seen
