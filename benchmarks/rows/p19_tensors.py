"""P19: torch's tensors after `torch_install()`, beside our arrays of the same bytes and torch's own way.

The bound: the round trip of an array of the same bytes, and the time that torch's own functions take. Beside a tensor
stands the time to read its first and last element by torch, as the receiver does (`torch's reads`; of an array it is
0.1 µs), and beside a large one that of one memcpy; beside a list, the calls in Python that make a thousand tensors over
memory and move a thousand storages (`torch's calls`).
"""

from __future__ import annotations

import time

from benchmarks import work
from benchmarks.bench import Bench, Task
from benchmarks.driver import Stage
from benchmarks.samples import Claim, Line

PEERS = ("ours", "torch ours", "torch fd", "torch fs")
COUNT = 1000
# name: bytes, times in a turn, turns, least ratio to torch's descriptors
SIZES = {"4 KiB": (4 << 10, 20, 15, 0), "64 KiB": (64 << 10, 20, 15, 8), "16 MiB": (16 << 20, 2, 12, 20)}


def measure(bench: Bench) -> list[Line]:
    """
    Return the lines of P19.
    """
    if not bench.has("torch ours"):
        return []
    lines = []
    for name, (size, times, rounds, least) in SIZES.items():
        tasks = [
            Task(peer, peer, work.round_trips, ("fresh", size, times if "ours" in peer else max(1, times // 5), 1))
            for peer in PEERS
        ]
        tasks.append(Task("torch's reads", "torch ours", reads, (size, times)))
        if size > 1 << 20:
            tasks.append(Task("memcpy", "ours", work.copies, (size, times, 1)))
        line = Line("P19", f"round trip, fresh tensor of {name}", bench.in_turns(f"P19 {name}", tasks, rounds))
        line.claim_ratio("tensor / our array", "torch ours", "ours", 1.2)
        if least:
            line.claim_ratio("torch fd / tensor", "torch fd", "torch ours", least, at_least=True)
        lines.append(line)
    for what in ("fresh", "shared"):
        kind = f"{what} list of 1024"
        tasks = [
            Task("ours", "ours", work.round_trips, (kind, COUNT, 5)),
            Task("torch ours", "torch ours", work.round_trips, (kind, COUNT, 5, 1)),
            Task("torch fd", "torch fd", work.round_trips, (kind, COUNT, 1), 3),
            Task("torch fs", "torch fs", work.round_trips, (kind, COUNT, 1), 3),
            Task("torch's calls", "torch ours", constructors, (COUNT, 5, what == "fresh")),
        ]
        samples = bench.in_turns(f"P19 list, {what}", tasks, 15)
        note = "torch's calls: those that make and move as many tensors from Python"
        line = Line("P19", f"round trip, {COUNT} {what} tensors of 1 KiB", samples, note=note)
        if samples["torch ours"].values:
            line.claims.append(Claim("tensors, in ms", samples["torch ours"].median * 1e3, 3))
        lines.append(line)
    return lines


def reads(stage: Stage, size: int, times: int) -> list[float]:
    """Measure what the receiver does with a tensor: to read its first and its last element."""
    tensor, courier = stage.peer.fresh(size), stage.peer.courier()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        courier.touch(tensor)
        taken.append(time.perf_counter() - start)
    return taken


def constructors(stage: Stage, count: int, times: int, moves: bool) -> list[float]:
    """Measure only the calls of torch that a list needs: one that makes a tensor over memory, and one that moves it."""
    torch = stage.peer.torch  # type: ignore[attr-defined]
    memory = bytearray(1024 * count)
    taken = []
    for _ in range(times):
        tensors = [torch.ones(1024, dtype=torch.uint8) for _ in range(count)]
        start = time.perf_counter()
        if moves:
            for k, tensor in enumerate(tensors):
                there = torch.frombuffer(memory, dtype=torch.uint8, count=1024, offset=1024 * k)
                tensor.untyped_storage()._swap_data_ptr_(there.untyped_storage())
        received = [
            torch.frombuffer(memory, dtype=torch.uint8, count=1024, offset=1024 * k).untyped_storage()
            for k in range(count)
        ]
        taken.append(time.perf_counter() - start)
        del received, tensors
    return taken
