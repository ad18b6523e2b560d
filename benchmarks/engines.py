"""P18: measure ranks and pools on a Ray cluster beside Ray itself: python -m benchmarks.engines [--gib SIZE]

A cluster of three nodes with 4 CPUs each is simulated on this machine, so that a transfer is one over the loopback
interface, whose counter tells how many bytes crossed. For the pools the nodes have 8 CPUs, since both are there at
once. Each row runs all ways in turns and prints medians. It needs ray and about 7 times SIZE of memory:
nox -s bench-engines.

Each rank imports this module, as the main module of a spawned process, and needs no ray: only functions import it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mp_all as mp

NODES, EACH = 3, 4
RANKS = NODES * EACH
TASKS = 10_000


def nothing(rank: int = 0) -> int:
    return rank


def slow(task: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def ends_of(array: np.ndarray) -> float:
    return float(array[0] + array[-1])


def read(rank: int, array: np.ndarray) -> tuple[float, int, int]:
    """Return the ends of the array, the bytes that this rank has copied, and the file that its memory belongs to."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            return ends_of(array), mp.memory_stats()["copied_bytes"], int(inode)
    raise AssertionError("the array is nowhere")


def read_some(array: np.ndarray, task: int) -> float:
    return ends_of(array)


class Reader:
    """An actor that reads an array."""

    def read(self, array: np.ndarray) -> float:
        return ends_of(array)


def crossed() -> int:
    """Return the number of bytes that have crossed the loopback interface."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


Way = Callable[[], object]


def in_turns(rounds: int, ways: dict[str, Way]) -> dict[str, tuple[float, float]]:
    """Return the median of the seconds of each way, and of the bytes that crossed."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before, started = crossed(), time.perf_counter()
            way()
            found[name].append((time.perf_counter() - started, crossed() - before))
    return {
        name: (statistics.median(seconds for seconds, _ in runs), statistics.median(each for _, each in runs))
        for name, runs in found.items()
    }


def show(title: str, found: dict[str, tuple[float, float]], size: float = 0.0) -> None:
    first = next(iter(found.values()))[0]
    for name, (seconds, nbytes) in found.items():
        transfers = f"{nbytes / size:8.2f} transfers" if size else ""
        print(f"{title:<40}{name:<28}{seconds * 1e3:>10.1f} ms{seconds / first:>8.1f} x{transfers}", flush=True)


def pools(rounds: int) -> None:
    from ray.util.multiprocessing import Pool as RayPool

    with mp.Pool(RANKS, engine=mp.engines.Ray(nodes=NODES)) as ours:
        theirs = RayPool(RANKS)
        try:
            by_default: dict[str, Way] = {
                "mp_all.Pool": lambda: ours.map(nothing, range(TASKS)),
                "ray Pool": lambda: theirs.map(nothing, range(TASKS)),
            }
            for pool in ours, theirs:
                while len({*pool.map(slow, range(4 * RANKS), chunksize=1)}) < RANKS:
                    pass  # a worker has not started yet
            in_turns(2, by_default)
            show(f"map of {TASKS} tasks, default", in_turns(rounds, by_default))
            one_by_one: dict[str, Way] = {
                "mp_all.Pool": lambda: ours.map(nothing, range(TASKS), chunksize=1),
                "ray Pool": lambda: theirs.map(nothing, range(TASKS), chunksize=1),
            }
            show(f"map of {TASKS} tasks, chunksize=1", in_turns(1, one_by_one))
        finally:
            theirs.terminate()
            theirs.join()


def ranks(rounds: int) -> None:
    import ray

    task = ray.remote(nothing)
    actor = ray.remote(Reader)

    def fresh_actors() -> None:
        actors = [actor.remote() for _ in range(RANKS)]
        ray.get([each.read.remote(np.zeros(1)) for each in actors])
        for each in actors:
            ray.kill(each)

    show(
        f"{RANKS} calls of nothing",
        in_turns(
            rounds,
            {
                "run(engine=)": lambda: mp.run(nothing, nprocs=RANKS, engine=mp.engines.Ray(nodes=NODES)),
                "ray tasks, warm": lambda: ray.get([task.remote() for _ in range(RANKS)]),
                "ray actors, new": fresh_actors,
            },
        ),
    )


def arguments(rounds: int, gib: float) -> None:
    import ray
    from ray.util.multiprocessing import Pool as RayPool

    array = np.ones(int(gib * (1 << 30)) // 8)
    actor = ray.remote(Reader)
    seen: list[Any] = []

    def ours() -> None:
        seen[:] = mp.run(read, (array,), nprocs=RANKS, engine=mp.engines.Ray(nodes=NODES))

    def actors() -> None:
        reference = ray.put(array)
        readers = [actor.options(scheduling_strategy="SPREAD", num_cpus=1).remote() for _ in range(RANKS)]
        assert ray.get([each.read.remote(reference) for each in readers]) == [2.0] * RANKS
        for each in readers:
            ray.kill(each)

    def pool() -> None:
        theirs = RayPool(RANKS)
        assert theirs.map(functools.partial(read_some, array), range(RANKS), chunksize=1) == [2.0] * RANKS
        theirs.terminate()
        theirs.join()

    ways: dict[str, Way] = {"run(engine=)": ours, "ray.put + actors": actors}
    if os.environ.get("WITH_RAY_POOL", "1") == "1":
        ways["ray Pool, partial"] = pool
    show(f"{gib:g} GiB to {NODES} nodes x {EACH} ranks", in_turns(rounds, ways), array.nbytes)
    copies = [copied for _, copied, _ in seen]
    files = [len({inode for _, _, inode in seen[node * EACH : (node + 1) * EACH]}) for node in range(NODES)]
    print(f"copied by each rank: {max(copies)} bytes; copies on each node: {files}; on all: {sum(files)}")


@contextlib.contextmanager
def cluster(cpus: int, store: int) -> Iterator[None]:
    """Connect to a new cluster, whose nodes have so many CPUs, a store of so many bytes, and a runtime folder each."""
    import ray
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    nodes = Cluster()
    try:
        for index in range(NODES):
            runtime = folder / str(index)
            runtime.mkdir()
            nodes.add_node(
                num_cpus=cpus,
                object_store_memory=store,
                env_vars={"MPSHM_RUNTIME_DIR": str(runtime)},
                **({"include_dashboard": False} if index == 0 else {}),
            )
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", default=["pools", "ranks", "arguments"])
    options = parser.parse_args()
    if "pools" in options.only:
        with cluster(2 * EACH, 200 << 20):
            pools(options.rounds)
    if {"ranks", "arguments"} & {*options.only}:
        with cluster(EACH, int((options.gib * 1.2 + 0.1) * (1 << 30))):
            if "ranks" in options.only:
                ranks(options.rounds)
            if "arguments" in options.only:
                arguments(max(1, options.rounds // 2), options.gib)


if __name__ == "__main__":
    main()
