"""A task grows beyond 500 MB, and is to be ended before the kernel ends something else."""

from __future__ import annotations

import time

from benchmarks.comparison.event import after, main, what_became_of
from benchmarks.comparison.libraries import Library


def grow() -> None:
    held = []
    for _ in range(20):
        held.append(b"1" * (50 << 20))
        time.sleep(0.05)


def event(library: type[Library]) -> str:
    pool = library()
    told = what_became_of([pool.submit_small(500_000_000, grow)]).removeprefix("0 of 1 done, 1 ")
    return f"{told}; {after(pool)}"


if __name__ == "__main__":
    main(event)
