"""P20: a DataLoader's batches, after `torch_install()` and torch's own way, over the size of a batch and the workers.

The bound: the samples that two workers can make. The transforms are cheap (a conversion to float32), so transport is
the bound of large batches.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage, WorkFailed, descendants
from benchmarks.rows.p11_steady import TOLERANCE, look
from benchmarks.samples import Claim, Line, Sample

PEERS = ("torch ours", "torch fd")
# name: samples in a batch, side of an image of three colours in float32, batches in a turn
BATCHES = {"0.1 MB": (8, 64, 300), "1.2 MB": (8, 112, 200), "4.8 MB": (8, 224, 60), "19 MB": (32, 224, 60)}
WORKERS = (1, 2, 4)
MANY = 10_000
# Some pools of Python's allocator more or less, among 1400 mappings.
POOLS = 0.01


class Images:
    """A Dataset of random images; each sample is converted when it is read."""

    def __init__(self, side: int, count: int) -> None:
        torch = importlib.import_module("torch")
        self.count, self.images = count, torch.randint(0, 256, (32, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        return self.images[k % 32].float(), k


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P20.
    """
    if not bench.has("torch ours"):
        return []
    lines = []
    for name, (size, side, batches) in BATCHES.items():
        for workers in WORKERS:
            tasks = [Task(peer, peer, rate, (size, side, batches, workers), warm=False) for peer in PEERS]
            samples = bench.in_turns(f"P20 {name}, {workers}", tasks, 5)
            line = Line("P20", f"batches of {name}, workers: {workers}", samples)
            for sample in samples.values():
                sample.unit = " /s"
            least = 2.0 if (name, workers) == ("19 MB", 2) else 1.0
            line.claim_ratio("torch ours / torch fd", "torch ours", "torch fd", least, at_least=True)
            lines.append(line)
    return lines + flat(bench)


def rate(stage: Stage, size: int, side: int, batches: int, workers: int) -> float:
    """
    Return the batches a second, from the moment when each worker has delivered two until the last has come.

    The start and the end of the workers are left out: under spawn they import torch and clean up after it, which takes
    1.4 and 0.4 s with either peer, as long as a hundred large batches.
    """
    loader = importlib.import_module("torch.utils.data").DataLoader
    ahead = 2 * workers
    made = loader(Images(side, size * (batches + ahead)), size, num_workers=workers)
    for seen, (images, numbers) in enumerate(made, 1):
        assert int(numbers[0]) == size * (seen - 1) and images.shape[0] == size
        end = time.perf_counter()
        if seen == ahead:
            start = end
    return batches / (end - start)


def flat(bench: Bench) -> list[Line]:
    """
    Return the lines about what a long run uses.
    """
    count = max(500, int(MANY * min(1.0, bench.scale)))
    try:
        looks = bench.do("torch ours", many, count, timeout=600)
    except WorkFailed as error:
        bench.failed["P20, flat"] = str(error)
        return []
    lines = []
    kinds = (("memory", "B", TOLERANCE), ("descriptors", "", 1.0), ("mappings", "", 1.0 + POOLS))
    for k, (what, unit, most) in enumerate(kinds):
        column = [float(each[k]) for each in looks]
        third = len(column) // 3
        growth = max(column[2 * third :]) / max(column[third : 2 * third])
        claim = Claim(f"{what}, last third / middle third", growth, most)
        lines.append(
            Line("P20", f"{count:,} batches, 2 workers: {what}", {"torch ours": Sample(column, unit)}, [claim])
        )
    lines[0].note = "the loader's process and its workers together"
    return lines


def many(stage: Stage, count: int) -> list[tuple[int, int, int]]:
    """Return samples of memory, descriptors and mappings of this process and its workers during a long pass."""
    import os

    loader = importlib.import_module("torch.utils.data").DataLoader
    looks, before = [], set(descendants(os.getpid()))
    for seen, _batch in enumerate(loader(Images(64, 8 * count), 8, num_workers=2)):
        if seen == 10:
            pids = [os.getpid(), *sorted(set(descendants(os.getpid())) - before)]
        if seen > 10 and seen % (count // 100) == 0:
            looks.append(look(pids))
    return looks
