"""Find the size at which inline and shared memory cross: round trips either way, from 64 bytes to 1 MiB.

`python -m benchmarks.bench_inline` prints both curves, for one array and for a list of a hundred, and the smallest
size from which shared memory is never slower again: a default for `mp_all.set_inline_limit`.
"""

from __future__ import annotations

import argparse

from benchmarks import work
from benchmarks.bench import Task, opened
from benchmarks.driver import Stage
from benchmarks.samples import Sample

SIZES = [1 << k for k in range(6, 21)]
IN_A_LIST = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_inline", description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer repetitions (1.0)")
    options = parser.parse_args()
    with opened(["ours", "stdlib"], scale=options.scale) as bench:
        bench.on_stage(bench.asked)
        for count in (1, IN_A_LIST):
            print(f"\n{'one array' if count == 1 else f'a list of {count} arrays'}: round trip")
            print(f"{'bytes each':>12} {'inline':>16} {'shared':>16} {'stdlib':>16}   shared / inline")
            ratios = []
            for size in SIZES:
                if size * count > 32 << 20:
                    break
                times = 50 if size * count < 1 << 18 else 10
                samples = bench.in_turns(
                    f"{size} bytes x {count}",
                    [
                        Task("inline", "ours", sent, (1 << 62, size, count, times)),
                        Task("shared", "ours", sent, (0, size, count, times)),
                        Task("stdlib", "stdlib", sent, (None, size, count, times)),
                    ],
                    15,
                )
                ratios.append((size, ratio(samples)))
                cells = " ".join(f"{samples[way]!s:>16}" for way in ("inline", "shared", "stdlib"))
                print(f"{size:>12,} {cells}   {ratios[-1][1]:.2f}", flush=True)
            print(f"shared memory is never slower from {crossing(ratios)} on")


def sent(stage: Stage, limit: int | None, size: int, count: int, times: int) -> list[float]:
    """Measure round trips with an inline limit that sends all arrays one way."""
    if limit is not None:
        stage.peer.mp.set_inline_limit(limit)
    if count == 1:
        return work.round_trips(stage, "fresh", size, times)
    return work.round_trips(stage, f"fresh list of {size}", count, times)


def ratio(samples: dict[str, Sample]) -> float:
    return samples["shared"].median / samples["inline"].median


def crossing(ratios: list[tuple[int, float]]) -> str:
    """Return the smallest size from which on no ratio is above 1."""
    slower = [size for size, shared_to_inline in ratios if shared_to_inline > 1]
    larger = [size for size, _ in ratios if not slower or size > max(slower)]
    return f"{larger[0]:,} bytes" if larger else "no measured size"


if __name__ == "__main__":
    main()
