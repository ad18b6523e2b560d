"""P8: the shared allocator, beside NumPy's own.

The bound: NumPy's own. It also makes the small arrays; a larger block that this thread freed and that no other
process has received is handed out again without an atomic operation. A lazy array costs its touched pages.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from benchmarks.bench import Bench
from benchmarks.samples import Claim, Line, Sample

PEERS = ("ours",)
ROUNDS, TIMES = 41, 5_000
SIZES = {"np.empty(16)": 16 * 8, "np.empty(1 MiB)": 1 << 20}
LIMITS = {"np.empty(16)": 1.5, "np.empty(1 MiB)": 1.1}


def measure(bench: Bench) -> list[Line]:
    if not bench.has("ours"):
        return []
    rounds = max(3, int(ROUNDS * bench.scale))
    try:
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.rows.p8_allocator", str(rounds)],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        found: dict[str, Any] = json.loads(run.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        bench.failed["P8"] = getattr(error, "stderr", "") or str(error)
        return []
    lines = []
    for what in SIZES:
        limits = {
            "inside the scope": ("never", LIMITS[what]),
            "outside": ("never", 1.05),
            "installed": ("never, meanwhile", LIMITS[what]),
            "uninstalled again": ("never, meanwhile", None),
        }
        for where, (floor, most) in limits.items():
            samples = {"ours": Sample(found[what][where]), "floor": Sample(found[what][floor])}
            lines.append(Line("P8", f"{what}, {where}", samples, note="floor: NumPy's own allocator"))
            if most is not None:
                lines[-1].claim_ratio("ours / floor", "ours", "floor", most)
    lazy = Line("P8", "shared.zeros(1 GiB), first byte of each 64 MiB touched", {}, note="floor: np.zeros")
    lazy.samples.update(ours=Sample(found["lazy"]["shared"]), floor=Sample(found["lazy"]["private"]))
    lazy.claims.append(Claim("memory that it takes, in MiB", found["lazy"]["resident"] / 2**20, 1))
    copied = Line("P8", "bytes copied by sending 64 shared-allocated arrays", {"ours": Sample([found["copied"]], "B")})
    copied.claims.append(Claim("bytes", found["copied"], 0))
    return [*lines, lazy, copied]


def main(rounds: int) -> None:
    # "Never" is a process without mp-all, so it starts before the import here. It works in turns with this one.
    assert "mp_core" not in sys.modules
    with never() as floor:
        found: dict[str, Any] = in_turns(floor, rounds)
    found["lazy"] = lazy_zeros(rounds)
    found["copied"] = copied_by_sending()
    print(json.dumps(found))


def in_turns(never: Callable[[int], float], rounds: int) -> dict[str, dict[str, list[float]]]:
    import mp_all as mp

    def inside(nbytes: int) -> float:
        with mp.shared_allocator():
            return once(nbytes)

    def installed(nbytes: int) -> float:
        mp.install_shared_allocator()
        try:
            return once(nbytes)
        finally:
            mp.uninstall_shared_allocator()

    found: dict[str, dict[str, list[float]]] = {what: {} for what in SIZES}
    phases: list[dict[str, Callable[[int], float]]] = [
        {"never": never, "inside the scope": inside, "outside": once},
        {"never, meanwhile": never, "installed": installed, "uninstalled again": once},
    ]
    for places in phases:
        for what, nbytes in SIZES.items():
            for turn in range(rounds + 1):
                for name, place in places.items():
                    taken = place(nbytes)
                    if turn > 0:
                        found[what].setdefault(name, []).append(taken)
    return found


def lazy_zeros(rounds: int) -> dict[str, Any]:
    import numpy as np

    import mp_all as mp

    found: dict[str, Any] = {"shared": [], "private": []}
    for turn in range(rounds + 1):
        for name, zeros in (("shared", mp.shared.zeros), ("private", np.zeros)):
            before, start = resident(), time.perf_counter()
            a = zeros(1 << 30, np.uint8)
            a[:: 1 << 26] = 1
            taken = time.perf_counter() - start
            if name == "shared":
                found["resident"] = resident() - before
            if turn > 0:
                found[name].append(taken)
            del a
    return found


def copied_by_sending() -> int:
    from multiprocessing.reduction import ForkingPickler

    import numpy as np

    import mp_all as mp

    before = mp.memory_stats()["copied_bytes"]
    with mp.shared_allocator():
        arrays = [np.ones(1 << 20, np.uint8) for _ in range(64)]
    back = [ForkingPickler.loads(ForkingPickler.dumps(a)) for a in arrays]
    assert all(np.shares_memory(a, b) for a, b in zip(arrays, back, strict=True))
    return mp.memory_stats()["copied_bytes"] - before


def once(nbytes: int) -> float:
    """Return the seconds for `np.empty`."""
    from numpy import empty

    start = time.perf_counter()
    for _ in range(TIMES):
        empty(nbytes, "B")
    return (time.perf_counter() - start) / TIMES


@contextmanager
def never() -> Iterator[Callable[[int], float]]:
    """
    Yield `once`, run in another process that has not imported mp-all.

    NumPy's own allocator takes 95 ns in one process and 190 ns in the next, by the addresses at which its library and
    the interpreter were loaded. A forked process has the addresses of this one, so only the allocator differs.
    """
    import numpy  # noqa: F401, for the child too

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(there,), daemon=True)
    child.start()

    def ask(nbytes: int) -> float:
        here.send(nbytes)
        assert here.poll(60), "no answer within 60 s"
        taken: float = here.recv()
        return taken

    yield ask
    here.send(0)
    child.join(30)


def answer(connection: Any) -> None:
    # A thread in which any context variable was ever set (np.errstate does it) looks NumPy's allocator up a little
    # more slowly, 5 ns of 90, than one in which none was.
    ContextVar[int]("any").set(1)
    while nbytes := connection.recv():
        connection.send(once(nbytes))


def resident() -> int:
    with open("/proc/self/status") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


if __name__ == "__main__":
    main(int(sys.argv[1]))
